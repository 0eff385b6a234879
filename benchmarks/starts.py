"""What a process spends before its first image, beside the other way of doing it: `python -m benchmarks.starts`.

Prints seconds of CPU time of fresh interpreters, the median of five; the two ways take turns.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from beam_jobs import ingest
from beam_jobs.images.sandbox import pool
from beam_jobs.options import IngestOptions
from benchmarks.sources import write_photographs

_TURNS = 5
_DECODER = """
import sys, time
sys.modules.update(dict.fromkeys({left_out}))
import beam_jobs.images.sandbox.worker
print(time.process_time())
"""
_INPUT = """
import time
import tensorflow as tf
from trainer.input_fn import make_dataset
from trainer.options import InputOptions
tf.constant(0)
started = time.process_time()
{build}({path!r}, "all", InputOptions(image_side_px=96, batch_size=8), training=True)
print(time.process_time() - started)
"""


def main() -> None:
    """Measures every pair and prints it."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        source = write_photographs(Path(scratch) / "photos", 20)
        out = f"{scratch}/dataset"
        ingest.run(IngestOptions(source=str(source), out=out, splits={"all": 1}))
        _show(
            {
                "imports of a decoder": _DECODER.format(left_out=pool.NOT_IMPORTED),
                "the same, with all that TensorFlow finds": _DECODER.format(left_out=()),
            }
        )
        _show(
            {
                "the first make_dataset": _INPUT.format(build="make_dataset", path=out),
                "the same, with AutoGraph": _INPUT.format(build="make_dataset.__wrapped__", path=out),
            }
        )


def _show(ways: dict[str, str]) -> None:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_TURNS):
        for name, code in ways.items():
            found[name].append(_seconds(code))
    for name, seconds in found.items():
        print(f"{name:<44} {statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")


def _seconds(code: str) -> float:
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, env=quiet, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()

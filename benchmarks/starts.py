"""Compares the start-up costs of processes with alternatives: `python -m benchmarks.starts`.

Prints seconds of CPU time of new interpreters, the median of five rounds; the alternatives alternate.
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

_ROUNDS = 5
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
    """Measures and prints all alternatives."""
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


def _show(programs: dict[str, str]) -> None:
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(_ROUNDS):
        for name, code in programs.items():
            times[name].append(_seconds(code))
    for name, seconds in times.items():
        print(f"{name:<44} {statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")


def _seconds(code: str) -> float:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, env=environment, text=True, check=True
    )
    return float(run.stdout)


if __name__ == "__main__":
    main()

"""Compares the start-up costs of processes with alternatives: `python -m benchmarks.starts`.

Prints medians of five rounds, in which the alternatives alternate: CPU seconds of new interpreters, and wall-clock
seconds of complete commands, with their ratio to the time of an import.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from beam_jobs import ingest
from beam_jobs.common import process_pool as pool
from beam_jobs.options import IngestOptions
from benchmarks.sources import write_photographs

_ROUNDS = 5
_DECODER = """
import gc, sys, time
gc.disable()
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


# Name -> the import that the next commands are compared with, or arguments of `feedline`.
_COMMANDS: dict[str, str | list[str]] = {
    "import apache_beam": "import apache_beam",
    "ingest of 24 photographs": ["ingest", "{photographs}", "--out", "{new}"],
    "import click, yaml": "import click, yaml",
    "an --out that has a dataset": ["ingest", "{photographs}", "--out", "{taken}"],
    "a source that does not exist": ["ingest", "{new}", "--out", "{new}"],
    "an unknown option": ["ingest", "{photographs}", "--outt", "{new}"],
}


def main() -> None:
    """Measures and prints all alternatives."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        source = write_photographs(Path(scratch) / "photos", 24)
        out = f"{scratch}/dataset"
        ingest.run(IngestOptions(source=str(source), out=out, splits={"all": 1}))
        _show(
            {
                "imports of a decoder": _DECODER.format(left_out=pool.NOT_IMPORTED),
                "the same, with TensorFlow's optional imports": _DECODER.format(left_out=()),
            }
        )
        _show(
            {
                "the first make_dataset": _INPUT.format(build="make_dataset", path=out),
                "the same, with AutoGraph": _INPUT.format(build="make_dataset.__wrapped__", path=out),
            }
        )

        _show_commands({"photographs": str(source), "taken": out, "new": f"{scratch}/new"})


def _show_commands(paths: dict[str, str]) -> None:
    times: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for _ in range(_ROUNDS):
        for name, work in _COMMANDS.items():
            shutil.rmtree(paths["new"], ignore_errors=True)
            program = ["-c", work] if isinstance(work, str) else ["-m", "pipeline"]
            arguments = [] if isinstance(work, str) else [word.format(**paths) for word in work]
            started = time.monotonic()
            subprocess.run([sys.executable, *program, *arguments], check=False, capture_output=True)
            times[name].append(time.monotonic() - started)
    import_seconds = 0.0
    for name, seconds in times.items():
        median = statistics.median(seconds)
        import_seconds = median if isinstance(_COMMANDS[name], str) else import_seconds
        print(f"{name:<44} {median:6.2f} s  {median / import_seconds:.2f} times the import")


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

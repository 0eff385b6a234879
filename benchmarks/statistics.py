"""Measures StatisticsGen on photographs of 500x375: `python -m benchmarks.statistics --images 10000`.

Runs in a separate process and prints its resident memory in MB, after all imports and at its peak, and the duration.
The records contain the images, so the peak shows whether images stay in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.resident import peak_bytes
from benchmarks.sources import write_photographs

LIMIT_MB = 1500
_DISTINCT = 1000  # number of different photographs; more images are links to them


def main(show: Callable[[str], object] = print) -> None:
    """Measures, or runs the measured process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="images of the dataset")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        show(json.dumps(_work(arguments.worker)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        dataset = make_dataset(Path(scratch), arguments.images)
        result = worker(dataset)
    show(
        f"{result['images']:,} images, {result['bytes'] / 1e6:,.0f} MB of records: {result['start_mb']:,.0f} MB after "
        f"imports, {result['peak_mb']:,.0f} MB at most (limit {LIMIT_MB:,}), {result['seconds']:.1f} s"
    )
    if result["peak_mb"] > LIMIT_MB:
        raise SystemExit(1)


def make_dataset(scratch: Path, count: int) -> Path:
    """Ingests photographs and returns the directory of the dataset.

    Args:
      scratch: directory of the dataset and of the photographs.
      count: number of images of the dataset.
    """
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions

    source = write_photographs(scratch / "photographs", min(count, _DISTINCT))
    photographs = sorted(source.rglob("*.jpg"))
    for index in range(len(photographs), count):
        path = photographs[index % len(photographs)]
        os.link(path, path.with_name(f"{index:06d}.jpg"))
    out = scratch / "dataset"
    ingest.run(IngestOptions(source=str(source), out=str(out)))
    return out


def worker(dataset: Path) -> dict:
    """Returns the result of `_work` in a new process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.statistics", "--worker", str(dataset)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def _work(directory: str) -> dict:
    from beam_jobs.dataset import manifest
    from components.statistics import dataset_statistics

    dataset = manifest.load(directory)
    start = peak_bytes()
    started = time.perf_counter()
    statistics = dataset_statistics(directory, dataset)
    seconds = time.perf_counter() - started
    return {
        "images": sum(split.datasets[0].num_examples for split in statistics.values()),
        "bytes": sum(info.bytes for info in dataset.splits.values()),
        "start_mb": start / 1e6,
        "peak_mb": peak_bytes() / 1e6,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()

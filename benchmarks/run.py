"""`make bench`: ingest and input pipeline, each beside its base, on the same files in the same run.

Prints a table and writes it, with machine and commit, to `benchmarks/results/`. Ratios travel between machines, rates
do not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from beam_jobs import images, ingest, manifest, storage
from beam_jobs.options import IngestOptions
from benchmarks.sources import write_photographs
from trainer import bench
from trainer.options import InputOptions

ROOT = Path(__file__).parent.parent
ROUNDS = 3


def main() -> None:
    """Measures everything and reports it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="class folders to measure with; made in code when not given")
    parser.add_argument("--count", type=int, default=2000, help="images to make")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "latest.json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.images or write_photographs(Path(scratch) / "photos", arguments.count)
        values = {"machine": machine(), "commit": commit(), "images": count_files(source)}
        results = measure(source, Path(scratch))
        values["results"] = results
    storage.write_bytes(str(arguments.out), (json.dumps(values, indent=2) + "\n").encode())
    for name, row in results.items():
        print(f"{name:<34} {row['rate']:>8,.0f} images/s   base {row['base']:>8,.0f}   ratio {row['ratio']:.2f}")


def measure(source: Path, scratch: Path) -> dict[str, dict]:
    """Returns name -> rate, base, ratio and what the base is."""
    files = sorted(str(path) for path in source.rglob("*") if path.is_file())
    threads = os.cpu_count() or 1
    _decode_all(files, threads)  # warms the page cache and the decoder
    ingested, decoded = [], []
    for attempt in range(ROUNDS):
        out = scratch / f"dataset-{attempt}"
        options = IngestOptions(source=str(source), out=str(out), shard_mb=16)
        ingested.append(len(files) / _seconds(lambda options=options: ingest.run(options)))
        decoded.append(len(files) / _seconds(lambda: _decode_all(files, threads)))
    dataset = str(scratch / "dataset-0")
    first = next(iter(manifest.load(dataset).splits))
    rates = bench.compare(dataset, first, InputOptions(), seconds=3.0)
    return {
        "ingest, copy, every check": _row(ingested, decoded, "bare tf.io.decode_jpeg of the same files, all cores"),
        "input pipeline, random crop 224": {
            "rate": rates.feedline,
            "base": rates.naive,
            "ratio": rates.ratio,
            "base_is": "sequential read, whole decode, float on the host",
        },
    }


def machine() -> dict[str, str | int]:
    """Returns what the rates depend on."""
    return {"cores": os.cpu_count() or 1, "python": platform.python_version(), "machine": platform.machine()}


def commit() -> str:
    """Returns the commit that was measured, empty outside a checkout."""
    run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    return run.stdout.strip()


def count_files(source: Path) -> int:
    """Returns the number of files below a folder."""
    return sum(path.is_file() for path in source.rglob("*"))


def _row(rates: list[float], bases: list[float], base_is: str) -> dict:
    rate, base = statistics.median(rates), statistics.median(bases)
    return {"rate": rate, "base": base, "ratio": rate / base, "base_is": base_is}


def _decode_all(files: list[str], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda path: images.decode_rgb(Path(path).read_bytes()), files):
            pass


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

"""Compares the ingest with a bare decode of the same files: `python -m benchmarks.ingest`.

Rates are slopes: differences between runs over many and over few images, which exclude the start-up time. Each ingest
runs in a separate process, alternating with the bare decode; results are medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.resident import FamilyPeak, family_bytes
from benchmarks.sources import subset, write_photographs

ROUNDS = 3
_WARM_UP_IMAGES = 64
_CHUNK = 16  # files per task of a thread, in the bare decode and in the ingest


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of the ingest.

    Attributes:
      name: name of the row in the table.
      options: fields of `IngestOptions`; `pixels` is a mapping.
      cores: number of cores; 0 for all.
      goal: minimum ratio to the bare decode.
      watched: whether memory is measured, which takes time.
    """

    name: str
    options: dict
    cores: int = 0
    goal: float = 0.0
    watched: bool = False


CASES = (
    Case(name="copy, decode check", options={"facts": "basic"}, goal=0.85),
    Case(name="copy, all image statistics", options={}, goal=0.75),
    Case(name="resize to 256, decode check", options={"facts": "basic", "pixels": {"policy": "resize"}}, goal=0.5),
    Case(name="resize to 256, all image statistics", options={"pixels": {"policy": "resize"}}, goal=0.5),
    Case(name="raw 224, all image statistics", options={"pixels": {"policy": "raw", "side_px": 224}}),
)
LARGE_CASES = (
    Case(name="2000x1500, resize to 256, decode check", options=CASES[2].options, goal=1.0),
    Case(name="2000x1500, resize to 256, all image statistics", options=CASES[3].options, goal=1.0),
)
ONE_CORE = Case(name="copy, all image statistics, one core", options={}, cores=1)
_BARE = Case(name="bare decode", options={})


def compare(cases: Sequence[Case], few: Path, many: Path, rounds: int = ROUNDS) -> dict[str, dict]:
    """Returns case -> images/s, images/s of the bare decode, their ratio and the goal.

    Args:
      cases: configurations of the ingest.
      few: class folders with few images.
      many: class folders with many images.
      rounds: number of measurements of each case; results are medians.
    """
    rates: dict[str, list[float]] = {case.name: [] for case in (*cases, _BARE)}
    for _ in range(rounds):
        for case in (*cases, _BARE):
            rates[case.name].append(slope(case, few, many))
    base = statistics.median(rates[_BARE.name])
    return {
        case.name: {
            "rate": statistics.median(rates[case.name]),
            "base": base,
            "ratio": statistics.median(rates[case.name]) / base,
            "base_is": "tf.io.decode_jpeg of the same files, all cores, every file read once",
            "goal": case.goal,
        }
        for case in cases
    }


def slope(case: Case, few: Path, many: Path) -> float:
    """Returns the slope between a run over few and a run over many images, in images/s, in a separate process."""
    first, second = worker(case, few, many)
    return (second["images"] - first["images"]) / (second["seconds"] - first["seconds"])


def worker(case: Case, *sources: Path) -> list[dict]:
    """Runs a case over the sources in sequence, in one new process; see `main`."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ingest", "--worker", json.dumps(vars(case))]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def memory(few: Path, many: Path) -> dict:
    """Returns the peak resident memory above the start-up level for both sources, in MB, and the growth.

    Each source has a separate process. Decoder processes are included; shared memory is counted once.
    """
    case = Case(name="", options={}, watched=True)
    peaks = {name: worker(case, source)[0] for name, source in (("few", few), ("many", many))}
    above = {name: result["peak_mb"] - result["start_mb"] for name, result in peaks.items()}
    return {
        "images": [result["images"] for result in peaks.values()],
        "start_mb": peaks["few"]["start_mb"],
        "above_mb": list(above.values()),
        "growth": (peaks["many"]["peak_mb"] - peaks["few"]["peak_mb"]) / peaks["few"]["peak_mb"],
    }


def line(name: str, row: dict) -> str:
    """Returns a row of results as text."""
    goal = f"   goal {row['goal']:.2f}" if row.get("goal") else ""
    return f"{name:<66} {row['rate']:>8,.0f} images/s   base {row['base']:>8,.0f}   ratio {row['ratio']:.2f}{goal}"


def bare_decode(files: Sequence[str], threads: int) -> None:
    """Reads and decodes every file with a pool of threads."""
    from beam_jobs.images.decode import decode_rgb

    def decode_files(paths: Sequence[str]) -> None:
        for path in paths:
            decode_rgb(Path(path).read_bytes())

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(decode_files, [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]):
            pass


def _work(case: Case, sources: Sequence[str]) -> list[dict]:
    if case.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.cores])
    run = _bare if case.name == _BARE.name else _ingest
    run(case, str(subset(Path(sources[0]), Path(tempfile.mkdtemp()), _WARM_UP_IMAGES)))
    results = []
    for source in sources:
        watch = FamilyPeak() if case.watched else contextlib.nullcontext()
        start = family_bytes() if case.watched else 0
        started = time.perf_counter()
        with watch as memory_watch:
            images = run(case, source)
        result = {"images": images, "seconds": time.perf_counter() - started}
        results.append(result | ({"start_mb": start / 1e6, "peak_mb": memory_watch.peak / 1e6} if memory_watch else {}))
    return results


def _bare(_: Case, source: str) -> int:
    files = sorted(str(path) for path in Path(source).rglob("*") if path.is_file())
    bare_decode(files, len(os.sched_getaffinity(0)))
    return len(files)


def _ingest(case: Case, source: str) -> int:
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions, PixelOptions

    options = dict(case.options)
    if "pixels" in options:
        options["pixels"] = PixelOptions(**options["pixels"])
    out = tempfile.mkdtemp()
    try:
        threads = len(os.sched_getaffinity(0))
        return ingest.run(IngestOptions(source=source, out=out, threads=threads, **options)).counts.written
    finally:
        shutil.rmtree(out)


def main(show: Callable[[str], object] = print) -> None:
    """Measures the cases, or runs one case in a worker process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="class folders of photographs; generated by default")
    parser.add_argument("--counts", default="500,4500", help="few and many images")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("sources", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        show(json.dumps(_work(Case(**json.loads(arguments.worker)), arguments.sources)))
        return
    few, many = (int(count) for count in arguments.counts.split(","))
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.images or write_photographs(Path(scratch) / "all", many)
        sources = [subset(source, Path(scratch) / str(count), count) for count in (few, many)]
        for name, row in compare(CASES, *sources).items():
            show(line(name, row))


if __name__ == "__main__":
    main()

"""`make bench`: compares ingest, plan, peers and input pipeline with baselines, on the same files in the same run.

Prints a table and writes it, with machine and commit, to `benchmarks/results/`. Ratios are comparable between machines,
rates are not.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from beam_jobs import storage
from benchmarks import ingest as ingest_bench
from benchmarks import input as input_bench
from benchmarks import options as options_bench
from benchmarks.input_peers import compare as input_peers
from benchmarks.input_peers.registry import PEERS as INPUT_PEERS
from benchmarks.input_sources import Sources
from benchmarks.input_turns import Effort
from benchmarks.peers import compare as peers
from benchmarks.peers.environments import DEFAULT_CACHE
from benchmarks.peers.registry import PEERS
from benchmarks.sources import subset, write_photographs
from trainer.training.malloc import keep_buffers

FEW, MANY = 500, 4500  # photographs of 500x375; the slope between the two counts
LARGE_FEW, LARGE_MANY = 20, 120  # of 2000x1500
MEMORY_IMAGES = (450, 4500)
PEER_IMAGES = 6400
PLAN_IMAGES = 1_000_000


def main() -> None:
    """Measures the sections of the command line and reports the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help=f"at least {MANY} in class folders; made in code when not given")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, default=input_bench.ROOT / "benchmarks" / "results" / "latest.json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    keep_buffers()
    results = json.loads(arguments.out.read_text())["results"] if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.images or write_photographs(Path(scratch) / "photos", MANY)
        for name in arguments.only.split(","):
            results[name] = SECTIONS[name](source, Path(scratch)) | {"commit": input_bench.commit()}
            _show(name, results[name])
    values = {"machine": input_bench.machine(), "results": results}
    storage.write_bytes(str(arguments.out), (json.dumps(values, indent=2) + "\n").encode())


def ingest_rates(source: Path, scratch: Path) -> dict:
    """Compares all configurations of the ingest with a bare decode, and all cores with one core."""
    few, many = (subset(source, scratch / f"ingest-{count}", count) for count in (FEW, MANY))
    rows = ingest_bench.compare((*ingest_bench.CASES, ingest_bench.ONE_CORE), few, many)
    one = rows.pop(ingest_bench.ONE_CORE.name)["rate"]
    rate = rows["copy, all image statistics"]["rate"]
    rows["all cores vs one core"] = {"rate": rate, "base": one, "ratio": rate / one, "base_is": "one core", "goal": 1.8}
    return rows


def large_rates(_: Path, scratch: Path) -> dict:
    """Compares the ingest of photographs of 2000x1500, resized, with a bare decode."""
    photographs = write_photographs(scratch / "large", LARGE_MANY, 1500, 2000)
    few, many = (subset(photographs, scratch / f"large-{count}", count) for count in (LARGE_FEW, LARGE_MANY))
    return ingest_bench.compare(ingest_bench.LARGE_CASES, few, many)


def memory(source: Path, scratch: Path) -> dict:
    """Measures the peak memory with ten times the images."""
    few, many = (subset(source, scratch / f"memory-{count}", count) for count in MEMORY_IMAGES)
    return {"peak resident memory, ten times the images": ingest_bench.memory(few, many)}


def plan(*_: Path) -> dict:
    """Measures scan and plan of a million references."""
    command = [sys.executable, "-m", "benchmarks.plan", "--images", str(PLAN_IMAGES), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=input_bench.ROOT)
    return json.loads(run.stdout.splitlines()[-1])


def peer_rates(source: Path, _: Path) -> dict:
    """Compares the ingest with other tools for the same task."""
    return peers.compare(source.absolute(), (FEW, MANY), PEERS, DEFAULT_CACHE.absolute(), say=print)


def input_rates(source: Path, scratch: Path) -> dict:
    """Compares the input pipeline with that of the tutorials and a bare decode, for every form of storage."""
    return input_bench.measure(_input_sources(source, scratch), Effort(), say=lambda _: None)


def input_peer_rates(source: Path, scratch: Path) -> dict:
    """Compares the input pipeline with other tools for the same task."""
    sources = _input_sources(source, scratch)
    files = {task: sources.files(kind) for task, kind in input_peers.FILES_OF.items()}
    return input_peers.compare(files, PEER_IMAGES, INPUT_PEERS, DEFAULT_CACHE.absolute())


def option_rates(source: Path, scratch: Path) -> dict:
    """Compares options of the input with the same work without them."""
    return options_bench.measure(_input_sources(source, scratch), Effort(), say=lambda _: None)


def _input_sources(source: Path, scratch: Path) -> Sources:
    return Sources(scratch=scratch / "input-sources", photos=source.absolute())


SECTIONS: dict[str, Callable[[Path, Path], dict]] = {
    "ingest": ingest_rates,
    "large": large_rates,
    "memory": memory,
    "plan": plan,
    "input": input_rates,
    "peers": peer_rates,
    "input_peers": input_peer_rates,
    "options": option_rates,
}


def _show(section: str, rows: dict) -> None:
    for name, row in rows.items():
        if isinstance(row, dict) and "rate" in row:
            print(ingest_bench.line(f"{section}: {name}", row), flush=True)
        elif name != "commit":
            print(f"{name:<66} {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()

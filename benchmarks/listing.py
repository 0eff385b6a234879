"""Compares listing with one and with eight threads: `python -m benchmarks.listing [--objects N] [--delay-ms MS]`.

The store is a sorted list of generated names in this process. Each request returns a page of 1,000 names after a delay,
like a request to a real store. Prints the seconds, their ratio, and the number of requests per page of names.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from beam_jobs.storage.object_stores.listing import list_in_order
from beam_jobs.storage.object_stores.store import ListedObject

_PAGE = 1000
_CLASSES = 1000


def in_folders(count: int) -> list[str]:
    """Returns names in a thousand folders, in the form of ImageNet: `n01234567/n01234567_89.JPEG`."""
    folders = [f"n{number * 15_073:08}" for number in range(_CLASSES)]
    each = -(-count // _CLASSES)
    return [f"{folder}/{folder}_{number}.JPEG" for folder in folders for number in range(each)][:count]


def numbered(count: int) -> list[str]:
    """Returns names that are numbers, in one folder: `images/000000123456.jpg`."""
    return [f"images/{number:012}.jpg" for number in range(count)]


NAMES: dict[str, Callable[[int], list[str]]] = {"1,000 folders": in_folders, "numbers in one folder": numbered}


class Store:
    """A store of sorted names that counts its requests."""

    def __init__(self, names: Sequence[str], delay_s: float) -> None:
        self.requests = 0
        self._names, self._delay_s = sorted(names), delay_s

    def pages(self, after: str) -> Iterator[list[ListedObject]]:
        """Yields the pages after a name."""
        first = bisect.bisect_right(self._names, after) if after else 0
        while True:
            self.requests += 1
            time.sleep(self._delay_s)
            page = self._names[first : first + _PAGE]
            if page:
                yield [ListedObject(name, 100_000, 1_700_000_000 * 10**9, f"{hash(name):032x}") for name in page]
            first += _PAGE
            if first >= len(self._names):
                return


def main() -> None:
    """Lists the names of each kind alternately with one and with eight threads, and prints medians of three rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--delay-ms", type=float, default=50)
    arguments = parser.parse_args()
    for kind, make in NAMES.items():
        store = Store(make(arguments.objects), arguments.delay_ms / 1000)
        seconds: dict[int, list[float]] = {1: [], 8: []}
        requests = {}
        for _ in range(3):
            for threads, turns in seconds.items():
                before, start = store.requests, time.perf_counter()
                objects = sum(1 for _ in list_in_order(store.pages, threads))
                turns.append(time.perf_counter() - start)
                requests[threads] = (store.requests - before) * _PAGE / objects
        single, parallel = map(statistics.median, seconds.values())
        print(
            f"{kind}: {single:.1f} s by one thread, {parallel:.1f} s by eight, ratio {single / parallel:.1f}; "
            f"{requests[8]:.2f} requests per page"
        )


if __name__ == "__main__":
    main()

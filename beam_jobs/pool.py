"""A thread pool that keeps order and bounds what is in flight. Decoders release the GIL, so threads scale here."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_CHUNK_BYTES = 1 << 20
_CHUNK_ITEMS = 16


def map_ordered(function: Callable[[T], R], items: Iterable[T], threads: int, chunk: int = 1) -> Iterator[R]:
    """Yields `function(item)` in the order of the items, computed by `threads` threads.

    At most `2 x threads` chunks are in flight, so memory is bounded by them and not by the length of `items`. The first
    exception is raised at its place in the order; what is in flight is then finished, nothing new is started.

    Args:
      function: computes one result.
      items: what to compute them of.
      threads: threads that compute.
      chunk: items handed over at a time; see `chunk_of`.
    """
    if threads == 1:  # nobody to hand anything to
        yield from map(function, items)
        return
    stream = iter(items)
    pending: deque[tuple[list[R], Future[None]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="feedline") as pool:
        while some := list(itertools.islice(stream, chunk)):
            done: list[R] = []
            pending.append((done, pool.submit(_fill, done, function, some)))
            if len(pending) >= 2 * threads:
                yield from _finished(*pending.popleft())
        while pending:
            yield from _finished(*pending.popleft())


def chunk_of(mean_bytes: float) -> int:
    """Returns how many images to hand over at a time; small ones go in lots, for each time costs tens of microseconds.

    Args:
      mean_bytes: mean size of an image; 0 when it is not known.
    """
    return max(1, min(_CHUNK_ITEMS, int(_CHUNK_BYTES / mean_bytes))) if mean_bytes > 0 else 1


def _fill(done: list[R], function: Callable[[T], R], items: list[T]) -> None:
    for item in items:
        done.append(function(item))  # noqa: PERF401 - what came before an exception must stay


def _finished(done: list[R], filling: Future[None]) -> Iterator[R]:
    """Yields what a chunk gave, and raises what broke it off after what came before."""
    error = filling.exception()  # waits for the end of it
    yield from done
    if error:
        raise error

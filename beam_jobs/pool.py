"""A thread pool that keeps order and bounds what is in flight. Decoders release the GIL, so threads scale here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ordered(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yields `function(item)` in the order of the items, computed by `threads` threads.

    At most `2 x threads` items are in flight, so memory is bounded by them and not by the length of `items`. The first
    exception is raised at its place in the order; what is in flight is then finished, nothing new is started.
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="feedline") as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

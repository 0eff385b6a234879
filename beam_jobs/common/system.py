"""The machine, or the container that this is: cores, memory, processes, threads, and what ended processes left behind.

The thread pool keeps order and bounds what is in flight. Decoders release the GIL, so threads scale here.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

_SAME_START_S = 2.0  # the clock of processes is coarser than that of the system


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes(group: str = "/sys/fs/cgroup") -> int:
    """Returns the memory that is free here: of the machine, or of the container, which may have less.

    Args:
      group: directory of the cgroup, version 2, that this process sees as its own.
    """
    import psutil  # here and below: a command line that only starts has no use for it

    free = psutil.virtual_memory().available
    try:
        most, used = (int(_text(group, name)) for name in ("memory.max", "memory.current"))
        # Files in the page cache count as used, and yet give way.
        state = dict(line.split() for line in _text(group, "memory.stat").splitlines())
        cached = sum(int(state.get(name, "0")) for name in ("inactive_file", "active_file"))
        return min(free, max(0, most - used + cached))
    except (OSError, ValueError):  # no such group, or no limit
        return free


def identity() -> str:
    """Returns what tells this machine, since it was started, and this container from others: process numbers are of it.

    Raises:
      OSError: the system has no /proc.
    """
    return f"{_text('/proc/sys/kernel/random', 'boot_id').strip()}/{os.stat('/proc/self/ns/pid').st_ino}"


def lives(process: int, since: float) -> bool:
    """Returns whether a process that ran at a time is still there; one that got its number later is not it.

    Args:
      process: its number on this machine.
      since: seconds since the epoch.
    """
    import psutil

    try:
        there = psutil.Process(process)
        return there.status() != psutil.STATUS_ZOMBIE and there.create_time() <= since + _SAME_START_S
    except psutil.Error:
        return False


def _text(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii") as stream:
        return stream.read()


_PREFIX = "feedline-copies-"
_YOUNG_S = 60.0  # a directory may have been made and not yet locked


def temporary_directory() -> str:
    """Returns a new directory, which is removed when this process ends, or by another one if it is killed.

    A process that it forks shares the directory, and does not remove it.

    Raises:
      OSError: there is no place for it.
    """
    _sweep(tempfile.gettempdir())
    directory = tempfile.mkdtemp(prefix=_PREFIX)
    _lock(directory)  # for as long as this process is there: the descriptor is never closed
    atexit.register(_remove, os.getpid(), directory)
    return directory


def _sweep(parent: str) -> None:
    """Removes what processes of this user left behind; what cannot be removed is left alone."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
        return
    number = _lock(entry.path)
    try:
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(number)


def _lock(directory: str) -> int:
    """Returns a descriptor that holds the lock.

    Raises:
      OSError: another process has it, or this is no directory.
    """
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number


def _remove(process: int, directory: str) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


T = TypeVar("T")
R = TypeVar("R")

_CHUNK_BYTES = 1 << 20
_CHUNK_ITEMS = 16


def map_ordered(
    function: Callable[[T], R], items: Iterable[T], threads: int, chunk: int = 1
) -> Generator[R, None, None]:
    """Yields `function(item)` in the order of the items, computed by `threads` threads; see `map_chunks`."""
    yield from map_chunks(partial(map, function), items, threads, chunk)


def map_chunks(function: Callable[[list[T]], Iterable[R]], items: Iterable[T], threads: int, chunk: int) -> Iterator[R]:
    """Yields what `function(some items)` gives, in the order of the items, computed by `threads` threads.

    At most `2 x threads` chunks are in flight, so memory is bounded by them and not by the length of `items`. The first
    exception is raised at its place in the order; what is in flight is then finished, nothing new is started. Ctrl-C
    does not wait for what is in flight: it may be a download.

    Args:
      function: computes the results of some items, one each, in their order.
      items: what to compute them of.
      threads: threads that compute.
      chunk: items handed over at a time; see `chunk_of`.

    Raises:
      RuntimeError: the function gave more or fewer results than it was given items.
    """
    stream = iter(items)
    if threads == 1:  # no other thread to hand anything to
        while some := list(itertools.islice(stream, chunk)):
            yield from _one_each(function, some)
        return
    pending: deque[tuple[list[R], Future[None]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline")
    wait = True
    try:
        while some := list(itertools.islice(stream, chunk)):
            done: list[R] = []
            pending.append((done, pool.submit(_fill, done, function, some)))
            if len(pending) >= 2 * threads or pending[0][1].done():
                yield from _finished(*pending.popleft())
        while pending:
            yield from _finished(*pending.popleft())
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=not wait)


def chunk_of(mean_bytes: float) -> int:
    """Returns how many images to hand over at a time; small ones go in lots, for each time costs tens of microseconds.

    Args:
      mean_bytes: mean size of an image; 0 when none has a byte.
    """
    return max(1, min(_CHUNK_ITEMS, int(_CHUNK_BYTES / mean_bytes))) if mean_bytes > 0 else 1


def lots(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Groups what was read one by one, to be handed over like the chunks of `chunk_of`: by what each really weighs.

    Args:
      items: in their order, which stays.
      size_of: returns the bytes of an item.
    """
    lot: list[T] = []
    size = 0
    for item in items:
        lot.append(item)
        size += size_of(item)
        if len(lot) == _CHUNK_ITEMS or size >= _CHUNK_BYTES:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def _fill(done: list[R], function: Callable[[list[T]], Iterable[R]], items: list[T]) -> None:
    for result in _one_each(function, items):
        done.append(result)  # noqa: PERF402 - what came before an exception must stay


def _one_each(function: Callable[[list[T]], Iterable[R]], items: list[T]) -> Iterator[R]:
    """Yields the results; fewer than there are items would be images lost in silence."""
    count = 0
    for result in function(items):
        yield result
        count += 1
    if count != len(items):
        raise RuntimeError(f"{count} results of {len(items)} items")


def _finished(done: list[R], filling: Future[None]) -> Iterator[R]:
    """Yields what a chunk gave, and raises what broke it off after what came before."""
    error = filling.exception()  # waits for the end of it
    yield from done
    if error:
        raise error


@dataclass(frozen=True)
class Progress:
    """What was done since the last reset.

    Attributes:
      images: examined or written, rejects included.
      bytes: read of them.
      rejects: images rejected.
    """

    images: int = 0
    bytes: int = 0
    rejects: int = 0

    def __add__(self, other: Progress) -> Progress:
        """Returns both together."""
        return Progress(self.images + other.images, self.bytes + other.bytes, self.rejects + other.rejects)


class _Meter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()

    def add(self, done: Progress) -> None:
        """Counts finished work; from any thread."""
        with self._lock:
            self._progress += done

    def read(self) -> Progress:
        """Returns what was done since the last reset."""
        return self._progress

    def reset(self) -> None:
        """Starts again at nothing."""
        with self._lock:
            self._progress = Progress()


local_progress = _Meter()

"""The machine or container: cores, memory, processes, threads, and temporary directories that are always removed.

The thread pool keeps the order of items and limits those in flight. Decoders release the GIL, so threads scale.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TypeVar

from beam_jobs.errors import DiskError

_CGROUP = "/sys/fs/cgroup"  # of this process, version 2
_BEAM_WORKER = "CONTROL_API_SERVICE_DESCRIPTOR"  # which the programs that start workers of Beam set
_START_TOLERANCE_S = 2.0  # start times of processes have a coarser clock than the system


def cores() -> int:
    """Returns the number of cores that this process may use, at least 1: those of the machine, or of the container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, _read_text(_CGROUP, "cpu.max").split())  # microseconds of CPU in a period
        return max(1, min(count, -(-quota // period)))
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or no limit
        return count


def worker_threads(requested: int) -> int:
    """Returns the number of threads for the work of this process, at least 1.

    A cluster runs several worker processes on a machine, usually one for each core, so each has one thread.

    Args:
      requested: threads that the user wants; 0 lets this process decide.
    """
    return requested or (1 if is_worker() else cores())


def is_worker() -> bool:
    """Returns whether this process is a worker of a cluster, of which a machine has several."""
    return _BEAM_WORKER in os.environ


def free_bytes() -> int:
    """Returns the free memory of the machine, or of the container if that has less, in bytes."""
    import psutil  # here and below: a command line that only starts does not need it

    free = psutil.virtual_memory().available
    try:
        limit, used = (int(_read_text(_CGROUP, name)) for name in ("memory.max", "memory.current"))
        # Files in the page cache count as used, but the kernel frees them when memory is needed.
        statistics = dict(line.split() for line in _read_text(_CGROUP, "memory.stat").splitlines())
        cached = sum(int(statistics.get(name, "0")) for name in ("inactive_file", "active_file"))
        return min(free, max(0, limit - used + cached))
    except (OSError, ValueError):  # no such group, or no limit
        return free


def identity() -> str:
    """Returns an identifier of this boot of the machine and this container, within which process ids are unique.

    Raises:
      OSError: the system has no /proc.
    """
    return f"{_read_text('/proc/sys/kernel/random', 'boot_id').strip()}/{os.stat('/proc/self/ns/pid').st_ino}"


def is_running(process: int, since: float) -> bool:
    """Returns whether a process still runs; another process that has the same id later does not count.

    Args:
      process: process id on this machine.
      since: a time at which the process ran, in seconds since the epoch.
    """
    import psutil

    try:
        candidate = psutil.Process(process)
        return candidate.status() != psutil.STATUS_ZOMBIE and candidate.create_time() <= since + _START_TOLERANCE_S
    except psutil.Error:
        return False


def _read_text(directory: str, name: str) -> str:
    with open(os.path.join(directory, name), encoding="ascii") as stream:
        return stream.read()


_PREFIX = "feedline-copies-"
_MIN_AGE_S = 60.0  # a younger directory may not be locked yet


def temporary_directory() -> str:
    """Returns a new directory, which this process removes at its end, or a later process if this one is killed.

    A forked process shares the directory and does not remove it.

    Raises:
      OSError: the directory cannot be created.
    """
    directory, _ = _locked_directory("")  # the descriptor stays open until this process ends
    atexit.register(_remove, os.getpid(), directory)
    return directory


@contextlib.contextmanager
def open_directory(parent: str = "") -> Iterator[str]:
    """Makes a temporary directory, and removes it at the end of the block, or in a later process if this one is killed.

    Args:
      parent: directory in which to create it; by default that of temporary files.

    Raises:
      OSError: the directory cannot be created.
    """
    directory, descriptor = _locked_directory(parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)  # as long as it is open, the file system cannot become read-only


def _locked_directory(parent: str) -> tuple[str, int]:
    parent = parent or tempfile.gettempdir()
    _remove_all_stale(parent)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    return directory, _lock(directory)


def _remove_all_stale(parent: str) -> None:
    """Removes the directories that killed processes of this user left behind, as far as possible."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(entry)


def _remove_if_stale(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _MIN_AGE_S:
        return
    descriptor = _lock(entry.path)
    try:
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(directory: str) -> int:
    """Locks a directory; returns the descriptor that holds the lock.

    Raises:
      OSError: another process has locked it, or it is not a directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove(process: int, directory: str) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def temporary_errors(problem: str) -> Iterator[None]:
    """Raises errors of a temporary file in the block as `DiskError`: the problem, its cause and a remedy."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{problem} ({error}); make room, or name another directory by TMPDIR") from error


@contextlib.contextmanager
def temporary_file(problem: str) -> Iterator[BinaryIO]:
    """Yields a temporary file, or raises the `DiskError` of `temporary_errors` if it cannot be made."""
    with contextlib.ExitStack() as stack:
        with temporary_errors(problem):
            file = stack.enter_context(tempfile.TemporaryFile())
        yield file


T = TypeVar("T")
R = TypeVar("R")

_ITEM_BYTES = 1 << 16  # of a chunk, for each of its items
CHUNK_ITEMS = 16


def map_ordered(
    function: Callable[[T], R], items: Iterable[T], threads: int, chunk: int = 1
) -> Generator[R, None, None]:
    """Yields `function(item)` in the order of the items, computed by `threads` threads; see `map_chunks`."""
    yield from map_chunks(partial(map, function), items, threads, chunk)


def map_chunks(function: Callable[[list[T]], Iterable[R]], items: Iterable[T], threads: int, chunk: int) -> Iterator[R]:
    """Yields the results of a function of chunks, in the order of the items, computed by `threads` threads.

    At most `2 x threads` chunks are in flight, which limits the memory for any length of `items`. The first exception
    is raised in order, after the results before it; chunks in flight are finished then, and no more are started.
    Ctrl-C does not wait for chunks in flight, which may be downloads.

    Args:
      function: function of a chunk that returns a result for each item, in their order.
      items: the items.
      threads: number of threads.
      chunk: number of items in a chunk; see `chunk_size`.

    Raises:
      RuntimeError: the function returns more or fewer results than items.
    """
    stream = iter(items)
    if threads == 1:  # compute in this thread
        while batch := list(itertools.islice(stream, chunk)):
            yield from _checked_results(function, batch)
        return
    pending: deque[tuple[list[R], Future[None]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline")
    wait = True
    try:
        while batch := list(itertools.islice(stream, chunk)):
            results: list[R] = []
            pending.append((results, pool.submit(_fill, results, function, batch)))
            if len(pending) >= 2 * threads or pending[0][1].done():
                yield from _yield_results(*pending.popleft())
        while pending:
            yield from _yield_results(*pending.popleft())
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=not wait)


def chunk_size(mean_bytes: float) -> int:
    """Returns the number of images in a chunk: several small ones, because a chunk costs tens of microseconds.

    Args:
      mean_bytes: mean size of an image, in bytes; 0 when all are empty.
    """
    return max(1, min(CHUNK_ITEMS, int(CHUNK_ITEMS * _ITEM_BYTES / mean_bytes))) if mean_bytes > 0 else 1


def chunks_by_size(items: Iterable[T], size_of: Callable[[T], int], most: int = CHUNK_ITEMS) -> Iterator[list[T]]:
    """Yields the items in chunks as large as those of `chunk_size`, by the actual size of each item, in their order.

    Args:
      items: the items.
      size_of: function that returns the size of an item, in bytes.
      most: maximum number of items in a chunk; the bytes are bounded by as many 64 KiB.
    """
    chunk: list[T] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += size_of(item)
        if len(chunk) == most or size >= most * _ITEM_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _fill(results: list[R], function: Callable[[list[T]], Iterable[R]], items: list[T]) -> None:
    for result in _checked_results(function, items):
        results.append(result)  # noqa: PERF402 - the results before an exception are used


def _checked_results(function: Callable[[list[T]], Iterable[R]], items: list[T]) -> Iterator[R]:
    """Yields the results; fewer results than items would mean images that are lost silently."""
    count = 0
    for result in function(items):
        yield result
        count += 1
    if count != len(items):
        raise RuntimeError(f"{count} results of {len(items)} items")


def _yield_results(results: list[R], filling: Future[None]) -> Iterator[R]:
    """Yields the results of a chunk, then raises its exception if it has one."""
    error = filling.exception()  # waits for the end of the chunk
    yield from results
    if error:
        raise error


@dataclass(frozen=True)
class Progress:
    """The work since the last reset.

    Attributes:
      images: number of images that were examined or written, rejects included.
      bytes: number of bytes that were read of them, or written.
      rejects: number of rejects.
      note: what else a display shows, such as the epoch; a sum has none.
    """

    images: int = 0
    bytes: int = 0
    rejects: int = 0
    note: str = ""

    def __add__(self, other: Progress) -> Progress:
        return Progress(self.images + other.images, self.bytes + other.bytes, self.rejects + other.rejects)


# Takes the name of a stage, its total work and a function that returns the finished work; shows it in its context.
Watch = Callable[[str, Progress, Callable[[], Progress]], contextlib.AbstractContextManager[object]]


def no_watch(*_: object) -> contextlib.AbstractContextManager[object]:
    """A `Watch` that shows nothing."""
    return contextlib.nullcontext()


# Of code that others call, such as the executors of TFX; a command sets it.
watch: ContextVar[Watch] = ContextVar("watch", default=no_watch)

_MAX_LEFT_S = 366 * 86400.0  # a later end is no estimate


def rate_and_left(done: Progress, total: Progress, seconds: float) -> tuple[float, float | None]:
    """Returns the images per second of a stage, and the seconds that are left; None where that cannot be estimated.

    Args:
      done: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since the start of the stage.
    """
    rate = done.images / seconds if seconds > 0 else 0.0
    left = max(0, total.images - done.images) / rate if rate and total.images else None
    return rate, left if left is not None and left < _MAX_LEFT_S else None


class _Meter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()

    def add(self, done: Progress) -> None:
        """Adds finished work. Thread-safe."""
        with self._lock:
            self._progress += done

    def read(self) -> Progress:
        """Returns the work since the last reset."""
        return self._progress

    def reset(self) -> None:
        """Sets all counts to 0."""
        with self._lock:
            self._progress = Progress()


local_progress = _Meter()


@contextlib.contextmanager
def slow_imports() -> Iterator[None]:
    """Runs a block of imports without garbage collection, which takes a fifth of their time and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # no later collection searches the objects of modules, or copies their pages in a forked process
        gc.enable()


@contextlib.contextmanager
def repeat(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls a function at intervals while the block runs, in a thread; waits for a running call a second at most."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(seconds):
            action()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(1.0)  # a store may not answer for minutes

"""The machine or container: cores, memory, processes, threads, and temporary directories that are always removed.

The thread pool keeps the order of items and limits the items in flight. Decoders release the GIL, so threads scale.
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

_CGROUP = "/sys/fs/cgroup"  # control group of this process, version 2
_BEAM_WORKER = "CONTROL_API_SERVICE_DESCRIPTOR"  # environment variable of every worker process of Beam
_START_TOLERANCE_S = 2.0  # the start times of processes are less precise than the system clock


def cores() -> int:
    """Returns the number of cores that this process may use, at least 1: those of the machine, or of the container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, _read_text(_CGROUP, "cpu.max").split())  # microseconds of CPU in a period
        return max(1, min(count, -(-quota // period)))
    except (OSError, ValueError, ZeroDivisionError):  # no control group, or no limit
        return count


def worker_threads(requested: int) -> int:
    """Returns the number of threads for the work of this process, at least 1.

    A cluster runs several worker processes on a machine, usually one for each core, so each has one thread.

    Args:
      requested: number of threads that the user has set; 0 for the default.
    """
    return requested or (1 if is_worker() else cores())


def is_worker() -> bool:
    """Returns whether this process is a worker of a cluster; usually a machine has several workers."""
    return _BEAM_WORKER in os.environ


def free_bytes() -> int:
    """Returns the free memory of the machine, or of the container if that is less, in bytes."""
    import psutil  # not at the top, because most commands do not need it

    free = psutil.virtual_memory().available
    try:
        limit, used = (int(_read_text(_CGROUP, name)) for name in ("memory.max", "memory.current"))
        # Files in the page cache count as used, but the kernel frees them when memory is needed.
        statistics = dict(line.split() for line in _read_text(_CGROUP, "memory.stat").splitlines())
        cached = sum(int(statistics.get(name, "0")) for name in ("inactive_file", "active_file"))
        return min(free, max(0, limit - used + cached))
    except (OSError, ValueError):  # no control group, or no limit
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


_PREFIX = "feedline-copies-"  # of the names of temporary directories
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
      parent: directory in which it is created; by default the directory of temporary files.

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
    """Returns a new locked directory and the descriptor of the lock; removes directories of killed processes."""
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
    descriptor = _lock(entry.path)  # raises an error if the process of the directory still runs
    try:
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(directory: str) -> int:
    """Locks a directory, and returns a descriptor; the lock ends when the descriptor is closed.

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
    if os.getpid() == process:  # not in a forked process
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def temporary_errors(problem: str) -> Iterator[None]:
    """Raises errors of a temporary file in the block as `DiskError`: the problem, its cause and a remedy."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{problem} ({error}); make room, or set another directory in TMPDIR") from error


@contextlib.contextmanager
def temporary_file(problem: str) -> Iterator[BinaryIO]:
    """Yields a temporary file, or raises the `DiskError` of `temporary_errors` if it cannot be made."""
    with contextlib.ExitStack() as stack:
        with temporary_errors(problem):
            file = stack.enter_context(tempfile.TemporaryFile())
        yield file


T = TypeVar("T")
R = TypeVar("R")

_ITEM_BYTES = 1 << 16  # largest mean size of the items of a chunk with `CHUNK_ITEMS` items
CHUNK_ITEMS = 16


def map_ordered(
    function: Callable[[T], R], items: Iterable[T], threads: int, chunk: int = 1
) -> Generator[R, None, None]:
    """Yields `function(item)` in the order of the items, computed by `threads` threads; see `map_chunks`."""
    yield from map_chunks(partial(map, function), items, threads, chunk)


def map_chunks(function: Callable[[list[T]], Iterable[R]], items: Iterable[T], threads: int, chunk: int) -> Iterator[R]:
    """Yields the results of a function that is applied to chunks of items, in the order of the items.

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
    is_interrupted = False
    try:
        while batch := list(itertools.islice(stream, chunk)):
            results: list[R] = []
            pending.append((results, pool.submit(_fill, results, function, batch)))
            if len(pending) >= 2 * threads or pending[0][1].done():
                yield from _yield_results(*pending.popleft())
        while pending:
            yield from _yield_results(*pending.popleft())
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        pool.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)


def chunk_size(mean_bytes: float) -> int:
    """Returns the number of images in a chunk: larger for small images, because a chunk costs tens of microseconds.

    Args:
      mean_bytes: mean size of an image, in bytes; 0 when all are empty.
    """
    return max(1, min(CHUNK_ITEMS, int(CHUNK_ITEMS * _ITEM_BYTES / mean_bytes))) if mean_bytes > 0 else 1


def chunks_by_size(items: Iterable[T], size_of: Callable[[T], int], most: int = CHUNK_ITEMS) -> Iterator[list[T]]:
    """Yields the items, in their order, in chunks of the size of `chunk_size`, by the actual size of each item.

    Args:
      items: the items.
      size_of: function that returns the size of an item, in bytes.
      most: maximum number of items in a chunk; a chunk also ends when it reaches `most` times 64 KiB.
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
    """Yields the results; raises `RuntimeError` if their number is not that of the items, so that no image is lost."""
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
    """An amount of work: the finished work of a stage, or its total work.

    Attributes:
      images: number of images that are examined or written, rejects included.
      bytes: number of bytes that are read or written for these images.
      rejects: number of rejects.
      note: additional text for a display, such as the epoch; empty in a sum.
    """

    images: int = 0
    bytes: int = 0
    rejects: int = 0
    note: str = ""

    def __add__(self, other: Progress) -> Progress:
        return Progress(self.images + other.images, self.bytes + other.bytes, self.rejects + other.rejects)


# Takes the name of a stage, its total work and a function that returns its finished work; the context shows both.
Watch = Callable[[str, Progress, Callable[[], Progress]], contextlib.AbstractContextManager[object]]


def no_watch(*_: object) -> contextlib.AbstractContextManager[object]:
    """A `Watch` that shows nothing."""
    return contextlib.nullcontext()


# A command sets it for code that gets no `Watch` as an argument, such as the executors of TFX.
watch: ContextVar[Watch] = ContextVar("watch", default=no_watch)

_MAX_REMAINING_S = 366 * 86400.0  # a longer time is not an estimate


def rate_and_remaining(current: Progress, total: Progress, seconds: float) -> tuple[float, float | None]:
    """Returns the images per second of a stage, and its remaining time in seconds; None if that cannot be estimated.

    Args:
      current: current progress.
      total: progress at the end of the stage; `images` is 0 when it is unknown.
      seconds: time since the start of the stage.
    """
    rate = current.images / seconds if seconds > 0 else 0.0
    remaining_s = max(0, total.images - current.images) / rate if rate and total.images else None
    return rate, remaining_s if remaining_s is not None and remaining_s < _MAX_REMAINING_S else None


class _Meter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()

    def add(self, work: Progress) -> None:
        """Adds finished work. Thread-safe."""
        with self._lock:
            self._progress += work

    def read(self) -> Progress:
        """Returns the work that was added since the last reset."""
        return self._progress

    def reset(self) -> None:
        """Sets all counts to 0."""
        with self._lock:
            self._progress = Progress()


local_progress = _Meter()  # finished work of this process in the current stage


@contextlib.contextmanager
def slow_imports() -> Iterator[None]:
    """Disables garbage collection during a block of imports, where it takes a fifth of the time and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # no later collection searches the objects of modules, or copies their pages in a forked process
        gc.enable()


@contextlib.contextmanager
def repeat(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls a function every `seconds` in a thread while the block runs; waits at most 1 s for the end of a call."""
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

"""Reads Python sources in threads, a bounded number of bytes ahead.

A slow source blocks only its own thread: the consumer polls and can be stopped between two polls, and the threads are
daemons, so that the interpreter can exit while a source blocks.
"""

from __future__ import annotations

import atexit
import inspect
import queue
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, Any, Any]
Source: TypeAlias = Callable[[], Iterator[Item]]

_POLL_S = 0.1  # maximum wait before the next check for a stop
_END = object()  # the last item of a queue


class SourceFailed(Exception):
    """A source raised an exception, `__cause__`."""

    def __init__(self, number: int, cause: BaseException) -> None:
        text = " ".join(str(cause).split())
        super().__init__(f"source {number}: {type(cause).__name__}{f': {text}' if text else ''}")
        self.__cause__ = cause


class SourceReader:
    """Reads several sources once, with one thread per source.

    Args:
      sources: functions that return an iterator of (key, image bytes, label); each is called once.
      limit_bytes: image bytes to read ahead, over all sources; at least one item of each is read ahead.
      in_turn: whether to take one item of each source in turn, for a reproducible order; otherwise any ready item.

    Attributes:
      is_stopped: whether `stop` was called.
    """

    def __init__(self, sources: Sequence[Source], limit_bytes: int, in_turn: bool) -> None:
        self._condition = threading.Condition()
        self._queues: list[deque[Any]] = [deque() for _ in sources]
        self._queued_bytes = [0] * len(sources)
        self._limit = limit_bytes // len(sources)  # of each queue, in bytes
        self._open_sources = list(range(len(sources)))  # their numbers
        self._next_position = 0  # index in `_open_sources`
        self._reads_in_turn = in_turn
        self.is_stopped = False
        self._consumers = 0  # threads that are taking an item
        self._iterators: list[Any] = [None] * len(sources)
        for number, source in enumerate(sources):
            name = f"feedline-source-{number}"
            threading.Thread(target=self._read_source, args=(number, source), name=name, daemon=True).start()
        _readers.add(self)

    def items(self) -> Iterator[Item | None]:
        """Yields the items until every source has ended; None if there is no item yet.

        Raises:
          SourceFailed: a source raised an exception; its earlier items are yielded first.
        """
        is_idle = False
        while self._open_sources:
            with self._condition:
                self._consumers += 1
                try:
                    item = self._take_item(wait_s=_POLL_S if is_idle else 0)
                    if self.is_stopped:
                        return
                finally:
                    self._consumers -= 1
                    self._condition.notify_all()
            if isinstance(item, SourceFailed):
                raise item
            is_idle = item is None
            if item is not _END:
                yield item

    def stop(self, wait_s: float = 0.0) -> None:
        """Stops reading; idempotent.

        Args:
          wait_s: maximum time in seconds to wait for threads that are taking an item.
        """
        with self._condition:
            self.is_stopped = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._consumers, wait_s)
        for iterator in self._iterators:
            # A running generator cannot be closed from here; its thread closes it after the next item.
            if not isinstance(iterator, types.GeneratorType) and hasattr(iterator, "close"):
                iterator.close()

    def _take_item(self, wait_s: float) -> Any:
        """Returns an item, a `SourceFailed`, or `_END` if a source has ended; None if none arrives within `wait_s`."""
        self._condition.wait_for(lambda: self.is_stopped or self._next_source() is not None, wait_s)
        number = self._next_source()
        if number is None:
            return None
        item = self._queues[number].popleft()
        position = self._open_sources.index(number)
        if item is _END:
            del self._open_sources[position]
            self._next_position = position
            return _END
        if not isinstance(item, SourceFailed):
            self._queued_bytes[number] -= _image_bytes(item)
        self._next_position = position + 1
        return item

    def _next_source(self) -> int | None:
        """Returns the number of the source to take the next item from; None if there is no item yet."""
        order = self._open_sources[self._next_position :] + self._open_sources[: self._next_position]
        candidates = order[:1] if self._reads_in_turn else order
        return next((number for number in candidates if self._queues[number]), None)

    def _read_source(self, number: int, source: Source) -> None:
        iterator: Any = None
        final_item: Any = _END
        try:
            self._iterators[number] = iterator = iter(source())
            while not self.is_stopped:
                self._put(number, next(iterator))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            final_item = SourceFailed(number, error)
        with self._condition:
            self._queues[number].append(final_item)
            self._condition.notify_all()
        if isinstance(iterator, types.GeneratorType):
            iterator.close()

    def _put(self, number: int, item: Any) -> None:
        """Waits until the buffer has space for an item, and adds it."""
        items = self._queues[number]
        with self._condition:
            self._condition.wait_for(
                lambda: self.is_stopped or not items or self._queued_bytes[number] + _image_bytes(item) <= self._limit
            )
            items.append(item)
            self._queued_bytes[number] += _image_bytes(item)
            self._condition.notify_all()


class QueueSource:
    """A source that reads a `queue.Queue` up to an end marker; the next call continues after the marker.

    Examples:
      >>> import queue
      >>> from pathlib import Path
      >>> from trainer import InputOptions, QueueSource, make_stream
      >>> received = queue.Queue(maxsize=1000)
      >>> received.put(("first", Path("photos/cat/000.jpg").read_bytes(), 0))  # usually in another thread
      >>> received.put(None)
      >>> options = InputOptions(image_side_px=32, batch_size=1)
      >>> stream = make_stream(QueueSource(received), options, classes=2, training=False)
      >>> [features["key"].numpy()[0] for features, label in stream]
      [b'first']

    Args:
      items: the queue. With a `maxsize`, the thread that fills it waits if training is slower.
      end: marker of the end of an epoch, compared with `is`.
    """

    def __init__(self, items: queue.Queue, end: object = None) -> None:
        self._items = items
        self._end = end

    def __call__(self) -> Iterator[Item]:
        """Returns the items up to the next end marker."""
        return _QueueIterator(self._items, self._end)


class _QueueIterator:
    """An iterator over a queue; any thread can close it, after which it takes no further item."""

    def __init__(self, items: queue.Queue, end: object) -> None:
        self._items = items
        self._end = end
        self._is_closed = False

    def __iter__(self) -> _QueueIterator:
        return self

    def __next__(self) -> Item:
        while not self._is_closed:
            try:
                item = self._items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if item is self._end:
                break
            return item
        raise StopIteration

    def close(self) -> None:
        self._is_closed = True


def _image_bytes(item: Any) -> int:
    try:
        return len(item[1])
    except (TypeError, IndexError, KeyError):
        return 0  # an invalid item, for which the consumer raises an error


_readers: weakref.WeakSet[SourceReader] = weakref.WeakSet()
_generators: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def wait_at_exit(generator: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Makes the interpreter wait at exit for a generator that TensorFlow runs; returns the generator."""
    _generators.add(generator)
    return generator


@atexit.register
def _stop_all() -> None:
    # At exit, the interpreter ends a thread of TensorFlow that runs Python code, and TensorFlow waits for it for ever.
    start = last_running = time.monotonic()
    for reader in list(_readers):
        reader.stop(wait_s=1.0)
    while _generators and time.monotonic() < min(start + 1.0, last_running + 2 * _POLL_S):
        time.sleep(_POLL_S / 10)
        if any(inspect.getgeneratorstate(item) == inspect.GEN_RUNNING for item in list(_generators)):
            last_running = time.monotonic()

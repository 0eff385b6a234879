"""Reads Python sources in threads of their own, a bounded number of bytes ahead, and never waits longer than a moment.

That is what keeps a slow source from holding up anything but itself: who asks gets "nothing yet" and can be stopped in
between, and the threads are daemons, so that the interpreter ends whether or not a source ever answers.
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

_POLL_S = 0.1  # how long anybody waits before looking whether it was stopped
_END = object()


class SourceFailed(Exception):
    """A source raised; `__cause__` is what."""

    def __init__(self, number: int, cause: BaseException) -> None:
        text = " ".join(str(cause).split())
        super().__init__(f"source {number}: {type(cause).__name__}{f': {text}' if text else ''}")
        self.__cause__ = cause


class Pump:
    """One pass over some sources, each read by a thread of its own.

    Args:
      sources: each is called once and gives an iterator of (key, image bytes, label).
      limit_bytes: of image bytes read ahead, of all sources together; one item of each is read ahead in any case.
      in_turn: take one item of each source after the other, so that the order is the same every time; otherwise
        whatever comes first.
    """

    def __init__(self, sources: Sequence[Source], limit_bytes: int, in_turn: bool) -> None:
        self._changed = threading.Condition()
        self._queues: list[deque[Any]] = [deque() for _ in sources]
        self._bytes = [0] * len(sources)
        self._limit = limit_bytes // len(sources)
        self._open = list(range(len(sources)))
        self._next = 0
        self._in_turn = in_turn
        self._stopped = False
        self._busy = 0
        self._iterators: list[Any] = [None] * len(sources)
        for number, source in enumerate(sources):
            name = f"feedline-source-{number}"
            threading.Thread(target=self._read, args=(number, source), name=name, daemon=True).start()
        _pumps.add(self)

    def items(self) -> Iterator[Item | None]:
        """Yields the items until every source has ended; None for "nothing yet", after a moment.

        Raises:
          SourceFailed: a source raised, after what it gave before.
        """
        is_idle = False
        while self._open:
            with self._changed:
                self._busy += 1
                try:
                    found = self._take(wait_s=_POLL_S if is_idle else 0)
                    if self._stopped:
                        return
                finally:
                    self._busy -= 1
                    self._changed.notify_all()
            if isinstance(found, SourceFailed):
                raise found
            is_idle = found is None
            if found is not _END:
                yield found

    def stop(self, wait_s: float = 0.0) -> None:
        """Stops reading; idempotent.

        Args:
          wait_s: how long to wait until no thread asks for an item any more.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy, wait_s)
        for iterator in self._iterators:
            # A generator that is running cannot be closed from here; its own thread does it after the next item.
            if not isinstance(iterator, types.GeneratorType) and hasattr(iterator, "close"):
                iterator.close()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def _take(self, wait_s: float) -> Any:
        self._changed.wait_for(lambda: self._stopped or self._ready() is not None, wait_s)
        number = self._ready()
        if number is None:
            return None
        item = self._queues[number].popleft()
        place = self._open.index(number)
        if item is _END:
            del self._open[place]
            self._next = place
            return _END
        if not isinstance(item, SourceFailed):
            self._bytes[number] -= _size(item)
        self._next = place + 1
        return item

    def _ready(self) -> int | None:
        """Returns the source to take from now; None when there is nothing yet."""
        order = self._open[self._next :] + self._open[: self._next]
        candidates = order[:1] if self._in_turn else order
        return next((number for number in candidates if self._queues[number]), None)

    def _read(self, number: int, source: Source) -> None:
        iterator: Any = None
        last: Any = _END
        try:
            self._iterators[number] = iterator = iter(source())
            while not self._stopped:
                self._put(number, next(iterator))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the one who trains must see it
            last = SourceFailed(number, error)
        with self._changed:
            self._queues[number].append(last)
            self._changed.notify_all()
        if isinstance(iterator, types.GeneratorType):
            iterator.close()

    def _put(self, number: int, item: Any) -> None:
        """Adds an item as soon as there is room for it."""
        items = self._queues[number]
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or not items or self._bytes[number] + _size(item) <= self._limit
            )
            items.append(item)
            self._bytes[number] += _size(item)
            self._changed.notify_all()


class QueueSource:
    """A source that reads a `queue.Queue` until its end marker comes; called again, it goes on after the marker.

    Examples:
      >>> import queue
      >>> from pathlib import Path
      >>> from trainer import InputOptions, QueueSource, make_stream
      >>> received = queue.Queue(maxsize=1000)
      >>> received.put(("first", Path("photos/cat/000.jpg").read_bytes(), 0))  # as a thread of yours would
      >>> received.put(None)
      >>> options = InputOptions(image_side_px=32, batch_size=1)
      >>> stream = make_stream(QueueSource(received), options, classes=2, training=False)
      >>> [features["key"].numpy()[0] for features, label in stream]
      [b'first']

    Args:
      items: the queue. Bound it, and the thread that fills it waits when training is slower.
      end: what marks the end of an epoch, compared with `is`.
    """

    def __init__(self, items: queue.Queue, end: object = None) -> None:
        self._items = items
        self._end = end

    def __call__(self) -> Iterator[Item]:
        """Returns the items up to the next end marker."""
        return _QueueIterator(self._items, self._end)


class _QueueIterator:
    """Ends when it is closed, from any thread, without taking another item away from who reads next."""

    def __init__(self, items: queue.Queue, end: object) -> None:
        self._items = items
        self._end = end
        self._closed = False

    def __iter__(self) -> _QueueIterator:
        return self

    def __next__(self) -> Item:
        while not self._closed:
            try:
                item = self._items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if item is self._end:
                break
            return item
        raise StopIteration

    def close(self) -> None:
        self._closed = True


def _size(item: Any) -> int:
    try:
        return len(item[1])
    except (TypeError, IndexError, KeyError):
        return 0  # not an item at all; who takes it says so


_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()
_generators: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def watch(generator: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Returns a generator that TensorFlow runs; the interpreter waits a moment for it at its end."""
    _generators.add(generator)
    return generator


@atexit.register
def _stop_all() -> None:
    # A thread of TensorFlow that is inside Python when the interpreter ends is ended by it, and TensorFlow waits for
    # ever for what it ran. Those of the sources are daemons.
    begun = quiet = time.monotonic()
    for pump in list(_pumps):
        pump.stop(wait_s=1.0)
    while _generators and time.monotonic() < min(begun + 1.0, quiet + 2 * _POLL_S):
        time.sleep(_POLL_S / 10)
        if any(inspect.getgeneratorstate(one) == inspect.GEN_RUNNING for one in list(_generators)):
            quiet = time.monotonic()

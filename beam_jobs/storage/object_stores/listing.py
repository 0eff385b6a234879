"""A listing by several threads, in the order of the names: an idle thread divides the widest unlisted range of names.

A store answers a request with a page of about a thousand names, so one thread lists some ten thousand objects a second.
The names need no special form, such as folders; each gap between names takes only a few requests.
"""

from __future__ import annotations

import json
import math
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import BinaryIO

from beam_jobs.common.system import temporary_errors, temporary_file
from beam_jobs.storage.object_stores.store import ListedObject

_THREADS = 8  # more threads list pages faster than one Python thread reads them
_PAGES_IN_MEMORY = 64  # about 30 MB; further pages are stored in a temporary file
_BASE = 97  # base of the numbers of names; the digits are: end of the name, characters from space to ~, all others
_WIDTH_DIGITS = 64
_NO_FILE = "a listing needs a temporary file, which cannot be written"

# Name -> pages of the objects with greater names, in their order, without an empty page.
Pages = Callable[[str], Iterator[list[ListedObject]]]


def list_in_order(pages: Pages, threads: int = _THREADS) -> Iterator[ListedObject]:
    """Yields all objects in the order of their names. Threads start after the second page.

    Args:
      pages: lists the objects with names greater than a name; called from several threads.
      threads: number of threads.

    Raises:
      DiskError: there is no room for the temporary file of the unread pages.
      Exception: the first error of `pages`.
    """
    first_pages = pages("")
    last_name = ""
    for _ in range(2):
        page = next(first_pages, None)
        if page is None:
            return
        yield from page
        last_name = page[-1].path
    is_interrupted = False
    pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline-list")
    with temporary_file(_NO_FILE) as file:
        listing = _Listing(pages, last_name, file)
        try:
            for _ in range(threads):
                pool.submit(listing.list_ranges).add_done_callback(listing.end_thread)
            yield from listing.read()
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            listing.stop()
            pool.shutdown(wait=not is_interrupted, cancel_futures=True)


@dataclass(eq=False)
class _Range:
    """A range of names, whose objects one thread lists.

    Attributes:
      after: last name before the next page.
      until: greatest possible name; empty for no bound.
      first: first name of the last page.
      pages: listed pages that have not been read, or their offset and length in the temporary file.
      is_divisible: whether a page was added after the last division, so that requests are at most twice the pages.
      is_listed: whether all its pages have been listed.
    """

    after: str
    until: str = ""
    first: str = ""
    pages: deque[list[ListedObject] | tuple[int, int]] = field(default_factory=deque)
    is_divisible: bool = False
    is_listed: bool = False

    @property
    def width(self) -> int:
        """Distance between the bounds of the range, as a number of `_WIDTH_DIGITS` digits."""
        return self._number_until(_WIDTH_DIGITS) - _to_number(self.after, _WIDTH_DIGITS)

    def add(self, page: list[ListedObject] | tuple[int, int], first: str, last: str) -> None:
        """Appends a page, given its first and last name."""
        self.pages.append(page)
        self.first, self.after, self.is_divisible = first, last, True

    def divide(self) -> _Range | None:
        """Divides the range, and returns its upper part; None if there is no name at which it can be divided.

        The distance of the cut from `after` is the geometric mean of the widths of the last page and of the range. So
        common prefixes are passed in a few steps, and evenly spaced names are divided into a growing number of pages.
        """
        self.is_divisible = False
        digits = max(len(self.after), len(self.until)) + 1
        first, last = _to_number(self.first, digits), _to_number(self.after, digits)
        cut = _to_name(last + math.isqrt((last - first) * (self._number_until(digits) - last)), digits)
        if cut <= self.after or (self.until and cut >= self.until):
            return None
        upper = _Range(cut, self.until)
        self.until = cut
        return upper

    def _number_until(self, digits: int) -> int:
        return _to_number(self.until, digits) if self.until else _BASE**digits - 1


def _to_number(name: str, digits: int) -> int:
    """Returns a number that grows with the name; characters after the first one outside space to ~ are ignored."""
    number = 0
    for position in range(digits):
        code = ord(name[position]) - 31 if position < len(name) else 0
        number = number * _BASE + min(max(code, 0), _BASE - 1)
        if not 0 < code < _BASE - 1:
            return number * _BASE ** (digits - position - 1)
    return number


def _to_name(number: int, digits: int) -> str:
    """Returns the name of a number: the inverse of `_to_number`."""
    codes = [number // _BASE**position % _BASE for position in reversed(range(digits))]
    end = codes.index(0) if 0 in codes else digits
    return "".join(chr(min(code + 31, ord("~"))) for code in codes[:end])


class _Listing:
    """The ranges of a listing, which threads list and divide, and one thread reads."""

    def __init__(self, pages: Pages, after: str, file: BinaryIO) -> None:
        """Creates a listing with one range: all names after a name.

        Args:
          pages: see `list_in_order`.
          after: name of the last object that has been read.
          file: temporary file for pages.
        """
        self._pages = pages
        self._changed = threading.Condition()  # guards all attributes below
        name_range = _Range(after)
        self._unassigned = [name_range]  # ranges without a thread
        self._ranges = [name_range]  # in the order of their names; the first range is read
        self._pages_in_memory = 0  # number of unread pages in memory
        self._error: BaseException | None = None
        self._is_stopped = False
        self._file = file

    def list_ranges(self) -> None:
        """Lists ranges until all are listed."""
        while name_range := self._next_range():
            self._list(name_range)

    def end_thread(self, thread: Future[None]) -> None:
        """Stores the error of a thread, so that `read` raises it."""
        with self._changed:
            self._error = self._error or (None if thread.cancelled() else thread.exception())
            self._changed.notify_all()

    def read(self) -> Iterator[ListedObject]:
        """Yields the objects of all ranges in their order."""
        while page := self._next_page():
            yield from page

    def stop(self) -> None:
        """Ends all threads after their current request."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _next_range(self) -> _Range | None:
        with self._changed:
            while not self._is_stopped and not self._error:
                if self._unassigned:
                    return self._unassigned.pop()
                if all(name_range.is_listed for name_range in self._ranges):
                    return None
                widest = max(filter(attrgetter("is_divisible"), self._ranges), key=attrgetter("width"), default=None)
                if widest and (upper := widest.divide()):
                    self._ranges.insert(self._ranges.index(widest) + 1, upper)
                    return upper
                self._changed.wait()
        return None

    def _list(self, name_range: _Range) -> None:
        for page in self._pages(name_range.after):
            with self._changed:
                if self._is_stopped:
                    return
                entries = [entry for entry in page if not name_range.until or entry.path <= name_range.until]
                if entries:
                    name_range.add(self._store_page(entries), entries[0].path, entries[-1].path)
                if len(entries) < len(page):
                    break
                self._changed.notify_all()
        with self._changed:
            name_range.is_listed, name_range.is_divisible = True, False
            self._changed.notify_all()

    def _next_page(self) -> list[ListedObject] | None:
        """Returns the next page in the order of the names; None after the last one."""
        with self._changed:
            while self._ranges:
                first_range = self._ranges[0]
                if self._error:
                    raise self._error
                if first_range.pages:
                    return self._load_page(first_range.pages.popleft())
                if first_range.is_listed:
                    del self._ranges[0]
                else:
                    self._changed.wait()
        return None

    def _store_page(self, page: list[ListedObject]) -> list[ListedObject] | tuple[int, int]:
        """Returns the page, or its offset and length in the temporary file when enough pages are in memory."""
        if self._pages_in_memory < _PAGES_IN_MEMORY:
            self._pages_in_memory += 1
            return page
        data = zlib.compress(json.dumps(page).encode(), 1)
        with temporary_errors(_NO_FILE):
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
        return offset, len(data)

    def _load_page(self, page: list[ListedObject] | tuple[int, int]) -> list[ListedObject]:
        if isinstance(page, list):
            self._pages_in_memory -= 1
            return page
        offset, length = page
        self._file.seek(offset)
        return [ListedObject(*entry) for entry in json.loads(zlib.decompress(self._file.read(length)))]

"""A listing by several threads, in the order of the names: idle threads divide the widest range of names that is left.

A store answers a request with a page of about a thousand names, so one thread lists some ten thousand objects a second.
Nothing is assumed of the names: folders and gaps are found alike, with a few requests for each gap.
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

_THREADS = 8  # the pages of more of them are more than one thread of Python reads
_PAGES_IN_MEMORY = 64  # about 30 MB; further ones wait in a temporary file
_BASE = 97  # of names as numbers: 0 is the end of a name, then the characters from space to ~, then all others
_WIDTH_DIGITS = 64
_NO_FILE = "a listing needs a temporary file, which cannot be written"

# Name -> pages of the objects with greater names, in their order, without an empty page.
Pages = Callable[[str], Iterator[list[ListedObject]]]


def list_in_order(pages: Pages, threads: int = _THREADS) -> Iterator[ListedObject]:
    """Yields all objects in the order of their names. Threads start after the second page.

    Args:
      pages: lists the objects with names greater than a name, from any thread.
      threads: number of threads.

    Raises:
      DiskError: there is no room for the temporary file of the pages that wait.
      Exception: the first error of `pages`.
    """
    first_pages = pages("")
    last = ""
    for _ in range(2):
        page = next(first_pages, None)
        if page is None:
            return
        yield from page
        last = page[-1].path
    wait = True
    pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline-list")
    with temporary_file(_NO_FILE) as file:
        listing = _Listing(pages, last, file)
        try:
            for _ in range(threads):
                pool.submit(listing.work).add_done_callback(listing.end_thread)
            yield from listing.read()
        except KeyboardInterrupt:
            wait = False
            raise
        finally:
            listing.stop()
            pool.shutdown(wait=wait, cancel_futures=True)


@dataclass(eq=False)
class _Range:
    """Names of which one thread lists the objects.

    Attributes:
      after: last name before the next page.
      until: greatest possible name; empty for no bound.
      first: first name of the last page.
      pages: listed pages that are not read, or their offset and length in the temporary file.
      is_divisible: whether a page came since it was divided; so there are at most twice as many requests as pages.
      is_listed: whether all its pages are there.
    """

    after: str
    until: str = ""
    first: str = ""
    pages: deque[list[ListedObject] | tuple[int, int]] = field(default_factory=deque)
    is_divisible: bool = False
    is_listed: bool = False

    @property
    def width(self) -> int:
        """Distance between its bounds."""
        return self._number_until(_WIDTH_DIGITS) - _number(self.after, _WIDTH_DIGITS)

    def add(self, page: list[ListedObject] | tuple[int, int], first: str, last: str) -> None:
        """Appends a page with these first and last names."""
        self.pages.append(page)
        self.first, self.after, self.is_divisible = first, last, True

    def divide(self) -> _Range | None:
        """Cuts off the names behind the next ones; None if there is no name to divide at.

        The distance of the cut is the geometric mean of that of the last page and that of all names: common beginnings
        of names are passed in a few steps, and equal distances are divided into a growing number of pages.
        """
        self.is_divisible = False
        digits = max(len(self.after), len(self.until)) + 1
        first, start = _number(self.first, digits), _number(self.after, digits)
        cut = _name(start + math.isqrt((start - first) * (self._number_until(digits) - start)), digits)
        if cut <= self.after or (self.until and cut >= self.until):
            return None
        upper = _Range(cut, self.until)
        self.until = cut
        return upper

    def _number_until(self, digits: int) -> int:
        return _number(self.until, digits) if self.until else _BASE**digits - 1


def _number(name: str, digits: int) -> int:
    """Returns a number that grows with the name; names that differ after a character of no own digit are equal."""
    number = 0
    for position in range(digits):
        code = ord(name[position]) - 31 if position < len(name) else 0
        number = number * _BASE + min(max(code, 0), _BASE - 1)
        if not 0 < code < _BASE - 1:
            return number * _BASE ** (digits - position - 1)
    return number


def _name(number: int, digits: int) -> str:
    codes = [number // _BASE**position % _BASE for position in reversed(range(digits))]
    end = codes.index(0) if 0 in codes else digits
    return "".join(chr(min(code + 31, ord("~"))) for code in codes[:end])


class _Listing:
    """The ranges of a listing, which threads list and divide, and one thread reads."""

    def __init__(self, pages: Pages, after: str, file: BinaryIO) -> None:
        """Starts after a name.

        Args:
          pages: see `list_in_order`.
          after: name of the last object that is read.
          file: temporary file.
        """
        self._pages = pages
        self._changed = threading.Condition()  # guards all attributes below
        first = _Range(after)
        self._new = [first]  # ranges without a thread
        self._ranges = [first]  # in the order of their names, from the one that is read
        self._in_memory = 0  # pages
        self._error: BaseException | None = None
        self._is_stopped = False
        self._file = file

    def work(self) -> None:
        """Lists ranges until all are listed."""
        while one := self._next_range():
            self._list(one)

    def end_thread(self, thread: Future[None]) -> None:
        """Takes the error of a thread, which `read` raises."""
        with self._changed:
            self._error = self._error or (None if thread.cancelled() else thread.exception())
            self._changed.notify_all()

    def read(self) -> Iterator[ListedObject]:
        """Yields the objects of all ranges in their order."""
        while page := self._next_page():
            yield from page

    def stop(self) -> None:
        """Ends all threads after their request."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _next_range(self) -> _Range | None:
        with self._changed:
            while not self._is_stopped and not self._error:
                if self._new:
                    return self._new.pop()
                if all(one.is_listed for one in self._ranges):
                    return None
                widest = max(filter(attrgetter("is_divisible"), self._ranges), key=attrgetter("width"), default=None)
                if widest and (upper := widest.divide()):
                    self._ranges.insert(self._ranges.index(widest) + 1, upper)
                    return upper
                self._changed.wait()
        return None

    def _list(self, one: _Range) -> None:
        for page in self._pages(one.after):
            with self._changed:
                if self._is_stopped:
                    return
                inside = [entry for entry in page if not one.until or entry.path <= one.until]
                if inside:
                    one.add(self._keep(inside), inside[0].path, inside[-1].path)
                if len(inside) < len(page):
                    break
                self._changed.notify_all()
        with self._changed:
            one.is_listed, one.is_divisible = True, False
            self._changed.notify_all()

    def _next_page(self) -> list[ListedObject] | None:
        """Returns the next page in the order of the names; None after the last one."""
        with self._changed:
            while self._ranges:
                first = self._ranges[0]
                if self._error:
                    raise self._error
                if first.pages:
                    return self._load(first.pages.popleft())
                if first.is_listed:
                    del self._ranges[0]
                else:
                    self._changed.wait()
        return None

    def _keep(self, page: list[ListedObject]) -> list[ListedObject] | tuple[int, int]:
        """Returns the page, or its offset and length in the temporary file when enough pages are in memory."""
        if self._in_memory < _PAGES_IN_MEMORY:
            self._in_memory += 1
            return page
        data = zlib.compress(json.dumps(page).encode(), 1)
        with temporary_errors(_NO_FILE):
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
        return offset, len(data)

    def _load(self, page: list[ListedObject] | tuple[int, int]) -> list[ListedObject]:
        if isinstance(page, list):
            self._in_memory -= 1
            return page
        offset, length = page
        self._file.seek(offset)
        return [ListedObject(*entry) for entry in json.loads(zlib.decompress(self._file.read(length)))]

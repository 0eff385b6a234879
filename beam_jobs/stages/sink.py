"""Where the bytes of a shard go: written, hashed and checksummed by a thread beside the one that makes them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO

import google_crc32c

from beam_jobs.common.concurrency import Progress, local

# Long enough that the interpreter lock changes hands once in twenty images, short enough to stay in the cache.
_BLOCK_BYTES = 1 << 20
_PENDING = 2  # blocks in flight


class Sink:
    """Takes the pieces of records, in order, and writes them in blocks of about a megabyte.

    Making records holds the interpreter lock, writing and hashing blocks does not: so the two share two cores.

    Attributes:
      position: bytes taken.
      sha256: of what was written, hex; once the block is left.
      crc32c: of what was written; once the block is left.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.position = 0
        self.sha256 = ""
        self.crc32c = 0
        self._stream = stream
        self._hasher = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._held = self._records = 0
        self._pending: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-sink")

    def __enter__(self) -> Sink:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Writes what is left, unless something went wrong, and waits for it.

        Raises:
          OSError: the stream does not take it.
        """
        try:
            if kind is None:
                self._hand_over()
                while self._pending:
                    self._pending.popleft().result()
                self.sha256 = self._hasher.hexdigest()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Takes one record.

        Raises:
          OSError: the stream did not take an earlier one.
        """
        self._pieces += pieces
        length = sum(map(len, pieces))
        self._held += length
        self._records += 1
        self.position += length
        if self._held >= _BLOCK_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        block = b"".join(self._pieces)
        if len(self._pending) >= _PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._put, block, self._records))
        self._pieces = []
        self._held = self._records = 0

    def _put(self, block: bytes, records: int) -> None:
        self._stream.write(block)
        self._hasher.update(block)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        local.add(Progress(records, len(block), 0))

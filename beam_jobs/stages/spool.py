"""Bytes that the ingest keeps between its stages: images that were changed, and images that cost a download.

Everything else is read again where it lies, so the spool holds no second copy of a source that needs none.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import BinaryIO

from beam_jobs import storage
from beam_jobs.sources.byte_range import SPOOL, Slice


class SpoolWriter:
    """Writes a spool file, complete under its name or not there; made when something is first added."""

    def __init__(self, work: str, name: str) -> None:
        """Names the file.

        Args:
          work: work directory of the ingest.
          name: of the file, relative to it.
        """
        self._path = storage.join(work, name)
        self._name = name
        self._stack = contextlib.ExitStack()
        self._stream: BinaryIO | None = None
        self._position = 0

    def add(self, data: bytes) -> str:
        """Appends bytes and returns the text of the slice that they are."""
        if self._stream is None:
            self._stream = self._stack.enter_context(storage.atomic_writer(self._path))
        self._stream.write(data)
        piece = Slice(method=SPOOL, offset=self._position, length=len(data), path=self._name)
        self._position += len(data)
        return piece.text

    @property
    def size(self) -> int:
        """Bytes added so far; there is no file while there are none."""
        return self._position

    def __enter__(self) -> SpoolWriter:
        """Opens nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Completes the file, or removes it when an error ends the block."""
        self._stack.__exit__(kind, error, trace)

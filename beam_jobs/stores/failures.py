"""Failures of object stores as the `OSError` that callers of files know."""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError

_BUFFER_BYTES = 1 << 17
_LONGEST_TEXT = 300


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Turns what Beam and the clients of the stores raise into `OSError` with one line of text."""
    try:
        yield
    except BeamIOError as error:
        cause = next(iter((error.exception_details or {}).values()), error)
        raise _os_error(cause, path) from error
    except OSError:
        raise
    except Exception as error:
        raise _os_error(error, path) from error


def status_of(error: object) -> int:
    """Returns the HTTP status that an error of a client stands for; 0 when it has none."""
    response = getattr(error, "response", None)  # of botocore a dict, of Google's client an object
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = metadata.get("HTTPStatusCode") or getattr(error, "code", None)
    return status if isinstance(status, int) else 0


def _os_error(error: Any, path: str) -> OSError:
    lines = str(getattr(error, "message", "") or error).strip().splitlines()
    text = lines[0][:_LONGEST_TEXT] if lines else type(error).__name__
    if status_of(error) == 404:
        return FileNotFoundError(errno.ENOENT, text, path)
    return OSError(errno.EIO, text, path)


class Stream(io.RawIOBase):
    """A stream of a store whose failures are `OSError`."""

    def __init__(self, inner: BinaryIO, path: str) -> None:
        super().__init__()
        self._inner = inner
        self._path = path

    def buffered(self) -> BinaryIO:
        """Returns the stream with a buffer, as `open` does of local files."""
        return io.BufferedReader(self, _BUFFER_BYTES) if self.readable() else io.BufferedWriter(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        """Returns whether it can be read from."""
        return self._inner.readable()

    def writable(self) -> bool:
        """Returns whether it can be written to."""
        return self._inner.writable()

    def seekable(self) -> bool:
        """Returns whether one can move about in it."""
        return self._inner.seekable()

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer and returns how many bytes."""
        with os_errors(self._path):
            data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Writes bytes and returns how many."""
        with os_errors(self._path):
            return self._inner.write(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a place and returns it."""
        with os_errors(self._path):
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """Returns the place."""
        return self._inner.tell()

    def close(self) -> None:
        """Closes the stream; what was written is then there."""
        if self.closed:
            return
        try:
            with os_errors(self._path):
                self._inner.close()
        finally:
            super().close()

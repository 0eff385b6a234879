"""What is asked of an object store, answered by Beam's filesystem for its scheme."""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, BinaryIO, NamedTuple

from apache_beam.io.filesystem import BeamIOError, CompressionTypes


class Listed(NamedTuple):
    """One object of a listing: its path with the scheme, its size in bytes and when it was last written, in ns."""

    path: str
    bytes: int
    mtime_ns: int


def already_exists(path: str) -> FileExistsError:
    """Returns the error of an object that is there although it is to be created."""
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def no_name(path: str, error: Exception) -> OSError:
    """Returns the error of a path that no object can have."""
    return OSError(errno.EINVAL, " ".join(str(error).split()), path)


class Store:
    """An object store. Objects are never decompressed by their names."""

    def __init__(self, system: Any) -> None:
        """Takes a `FileSystem` of Beam."""
        self._system = system

    def open(self, path: str) -> BinaryIO:
        """Opens an object for reading; jumps are allowed."""
        return self._system.open(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def create(self, path: str) -> BinaryIO:
        """Opens an object for writing; it is there when the stream is closed."""
        return self._system.create(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Writes a whole object; `FileExistsError` where there is one, known by looking where a store cannot decide."""
        if self.exists(path):
            raise already_exists(path)
        with self.create(path) as stream:
            stream.write(data)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`, fewer where the object ends."""
        with self.open(path) as stream:
            stream.seek(offset)
            return stream.read(length)

    def exists(self, path: str) -> bool:
        """Returns whether there is such an object."""
        return self._system.exists(path)

    def size(self, path: str) -> int:
        """Returns the size of an object in bytes."""
        return self._system.metadata(path).size_in_bytes

    def delete(self, path: str) -> None:
        """Deletes an object; of a path that ends in a slash, everything below."""
        self._system.delete([path])

    def rename(self, path: str, target: str) -> None:
        """Moves an object, replacing what was there."""
        self._system.rename([path], [target])

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yields every object whose path begins so, in the order of the store, which is that of the names."""
        if self._system.has_dirs():
            raise OSError("this filesystem does not list what lies below a folder; use a table of paths")
        listings: list[Iterable[Any]] = []

        def match_files(objects: Iterable[Any], _: str) -> Iterable[Any]:
            listings.append(objects)
            return ()

        # What `match` returns holds the whole listing in memory; what it passes to `match_files` is read as it comes.
        system = copy.copy(self._system)
        system.match_files = match_files
        system.match([f"{prefix}**"])
        for one in itertools.chain.from_iterable(listings):
            # A listing goes by what comes before the first character of patterns, which may be less than the prefix.
            if one.path.startswith(prefix):
                yield Listed(one.path, one.size_in_bytes, int(one.last_updated_in_seconds * 1e9))


_BUFFER_BYTES = 1 << 17
_LONGEST_TEXT = 300
_REQUEST = re.compile(r"^[A-Z]+ https?://\S+: ")  # what Google's client puts before every message
_NO_MESSAGE = "unknown error"  # what it says of an answer without one
_ONLY_STATUS = "('Request failed with status code'"  # and of an upload that was refused


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
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "code", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) else 0


def _os_error(error: Any, path: str) -> OSError:
    error = getattr(error, "cause", None) or error  # of an error that says no more than how long it was tried
    status = status_of(error)
    number = errno.ENOENT if status == 404 else getattr(error, "errno", None) or errno.EIO
    return OSError(number, _text(error, status), path)


def _text(error: Any, status: int) -> str:
    message = getattr(error, "message", "")
    if not message and not hasattr(getattr(error, "response", None), "status_code"):  # that one lists its arguments
        message = error
    lines = str(message).strip().splitlines()
    text = _REQUEST.sub("", lines[0])[:_LONGEST_TEXT] if lines else ""
    if text in ("", _NO_MESSAGE) or text.startswith(_ONLY_STATUS):
        return HTTPStatus(status).phrase if status in {*HTTPStatus} else type(error).__name__
    return text


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

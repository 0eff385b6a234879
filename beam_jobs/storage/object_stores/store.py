"""Base class of the object stores, which uses a filesystem of Beam; errors of clients become `OSError`."""

from __future__ import annotations

import abc
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


class ListedObject(NamedTuple):
    """One object of a listing.

    Attributes:
      path: path relative to the prefix of the listing, or full path.
      bytes: size.
      mtime_ns: modification time, in ns.
      checksum: text of the store that differs for other content, and may differ for equal content; empty without one.
      crc32c: checksum of the content; None if the store has none.
    """

    path: str
    bytes: int
    mtime_ns: int
    checksum: str = ""
    crc32c: int | None = None


def already_exists(path: str) -> FileExistsError:
    """Returns the error of an exclusive creation of an object that exists."""
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def invalid_path(path: str, error: Exception) -> OSError:
    """Returns the error of a path that no object can have."""
    return OSError(errno.EINVAL, " ".join(str(error).split()), path)


class Store:
    """An object store. Objects are never decompressed by their names.

    Attributes:
      has_crc32c: whether the store has the crc32c of its objects.
    """

    has_crc32c = False

    def __init__(self, filesystem: Any) -> None:
        """Stores a `FileSystem` of Beam."""
        self._filesystem = filesystem

    def open(self, path: str) -> BinaryIO:
        """Opens an object for reading; the stream is seekable."""
        return self._filesystem.open(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def create(self, path: str) -> BinaryIO:
        """Opens an object for writing; the object exists after the stream is closed."""
        return self._filesystem.create(path, compression_type=CompressionTypes.UNCOMPRESSED)

    def write(self, path: str, data: bytes) -> None:
        """Writes an object, and replaces an existing one when it is complete."""
        with self.create(path) as stream:
            stream.write(data)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Writes an object, and raises `FileExistsError` if it exists; the check and the write are not atomic here."""
        if self.exists(path):
            raise already_exists(path)
        self.write(path, data)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`, fewer where the object ends."""
        with self.open(path) as stream:
            stream.seek(offset)
            return stream.read(length)

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """Returns the first `most_bytes` bytes of an object, in one request if the store supports it."""
        size = self.describe(path).bytes  # a stream allocates all bytes that are requested
        return self.read_range(path, 0, min(most_bytes, size))

    def exists(self, path: str) -> bool:
        """Returns whether an object exists."""
        return self._filesystem.exists(path)

    def describe(self, path: str) -> ListedObject:
        """Returns the metadata of an object, with its full path."""
        metadata = self._filesystem.metadata(path)
        return ListedObject(path, metadata.size_in_bytes, int(metadata.last_updated_in_seconds * 1e9))

    def delete(self, path: str) -> None:
        """Deletes an object, or all objects below a path that ends in a slash."""
        self._filesystem.delete([path])

    def rename(self, path: str, target: str) -> None:
        """Renames an object, and replaces an existing one."""
        self._filesystem.rename([path], [target])

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Yields every object whose path begins with the prefix, in the order of the store; one page is in memory."""
        if self._filesystem.has_dirs():
            raise OSError("this filesystem cannot list the files below a folder; use a table of paths as the source")
        listings: list[Iterable[Any]] = []

        def match_files(objects: Iterable[Any], _: str) -> Iterable[Any]:
            listings.append(objects)
            return ()

        # `match` returns the complete listing in memory; it passes an iterator over the pages to `match_files`.
        filesystem = copy.copy(self._filesystem)
        filesystem.match_files = match_files
        filesystem.match([f"{prefix}**"])
        for entry in itertools.chain.from_iterable(listings):
            # The store lists by the text before the first wildcard, which may also be in the prefix.
            if entry.path.startswith(prefix):
                name = entry.path.removeprefix(prefix)
                yield ListedObject(name, entry.size_in_bytes, int(entry.last_updated_in_seconds * 1e9))


class SortedStore(Store, abc.ABC):
    """A store that lists objects by name, from any name on."""

    @abc.abstractmethod
    def pages(self, prefix: str, after: str) -> Iterator[list[ListedObject]]:
        """Yields the objects whose path begins with the prefix and whose name is greater than `after`, page by page."""

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See `Store`."""
        return itertools.chain.from_iterable(self.pages(prefix, ""))


_BUFFER_BYTES = 1 << 17
_LONGEST_TEXT = 300
_REQUEST = re.compile(r"^[A-Z]+ https?://\S+: ")  # prefix of every message of Google's client
_NO_MESSAGE = "unknown error"  # message of that client for an answer without a message
_ONLY_STATUS = "('Request failed with status code'"  # prefix of its message for a refused upload


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raises errors of Beam and the clients of the stores as `OSError` with one line of text."""
    try:
        yield
    except BeamIOError as error:
        cause = next(iter((error.exception_details or {}).values()), error)
        raise _os_error(cause, path) from error
    except OSError:
        raise
    except Exception as error:
        raise _os_error(error, path) from error


def http_status(error: object) -> int:
    """Returns the HTTP status of an error of a client; 0 when it has none."""
    response = getattr(error, "response", None)  # of botocore a dict, of Google's client an object
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "code", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) else 0


def _os_error(error: Any, path: str) -> OSError:
    error = getattr(error, "cause", None) or error  # the text of a `RetryError` is only its duration
    status = http_status(error)
    number = errno.ENOENT if status == 404 else getattr(error, "errno", None) or errno.EIO
    return OSError(number, _error_text(error, status), path)


def _error_text(error: Any, status: int) -> str:
    message = getattr(error, "message", "")
    if not message and not hasattr(getattr(error, "response", None), "status_code"):  # else the text is only arguments
        message = error
    lines = str(message).strip().splitlines()
    text = _REQUEST.sub("", lines[0])[:_LONGEST_TEXT] if lines else ""
    if text in ("", _NO_MESSAGE) or text.startswith(_ONLY_STATUS):
        return HTTPStatus(status).phrase if status in {*HTTPStatus} else type(error).__name__
    return text


class Stream(io.RawIOBase):
    """A stream of a store that raises only `OSError`."""

    def __init__(self, inner: BinaryIO, path: str) -> None:
        super().__init__()
        self._inner = inner
        self._path = path

    def buffered(self) -> BinaryIO:
        """Returns the stream with a buffer, like `open` of a local file."""
        return io.BufferedReader(self, _BUFFER_BYTES) if self.readable() else io.BufferedWriter(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        """Returns whether the stream is readable."""
        return self._inner.readable()

    def writable(self) -> bool:
        """Returns whether the stream is writable."""
        return self._inner.writable()

    def seekable(self) -> bool:
        """Returns whether the stream is seekable."""
        return self._inner.seekable()

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer and returns the number of bytes."""
        with os_errors(self._path):
            data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Writes bytes and returns their number."""
        with os_errors(self._path):
            return self._inner.write(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the position and returns it."""
        with os_errors(self._path):
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """Returns the position."""
        return self._inner.tell()

    def close(self) -> None:
        """Closes the stream; a written object then exists."""
        if self.closed:
            return
        try:
            with os_errors(self._path):
                self._inner.close()
        finally:
            super().close()

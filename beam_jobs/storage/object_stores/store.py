"""What is asked of an object store, answered by Beam's filesystem for its scheme."""

from __future__ import annotations

import copy
import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from apache_beam.io.filesystem import CompressionTypes


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

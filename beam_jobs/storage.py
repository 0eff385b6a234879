"""Files, local or remote, behind the few verbs the ingest needs.

A path with a scheme (`gs://`, `s3://`, `hdfs://`) goes through Beam's filesystems, imported when first needed; any
other path goes through the standard library, with the fsync that makes a rename mean something after a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO


def is_remote(path: str) -> bool:
    """Returns whether the path names a remote filesystem by its scheme."""
    return "://" in path


def join(base: str, *parts: str) -> str:
    """Joins path parts, with `/` after a scheme and the local separator otherwise."""
    return posixpath.join(base, *parts) if is_remote(base) else os.path.join(base, *parts)


def exists(path: str) -> bool:
    """Returns whether a file or directory is there."""
    return _filesystems().exists(path) if is_remote(path) else os.path.exists(path)


def size(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
      OSError: there is no such file.
    """
    if not is_remote(path):
        return os.stat(path).st_size
    matched = _filesystems().match([path])[0].metadata_list
    if not matched:
        raise FileNotFoundError(path)
    return matched[0].size_in_bytes


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes, never decompressing by its suffix.

    Raises:
      OSError: the file is missing or not readable.
    """
    if not is_remote(path):
        return open(path, "rb")
    from apache_beam.io.filesystem import CompressionTypes

    return _filesystems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def read_bytes(path: str) -> bytes:
    """Returns the whole file.

    Raises:
      OSError: the file is missing or not readable.
    """
    with open_read(path) as stream:
        return stream.read()


def digest(path: str) -> tuple[int, str]:
    """Returns the size in bytes and the sha256, hex, of a file.

    Raises:
      OSError: the file is missing or not readable.
    """
    hasher = hashlib.sha256()
    length = 0
    with open_read(path) as stream:
        while block := stream.read(1 << 20):
            hasher.update(block)
            length += len(block)
    return length, hasher.hexdigest()


@contextlib.contextmanager
def atomic_writer(path: str, scratch: str = "") -> Iterator[BinaryIO]:
    """Writes a file that is either complete under its name or not there. Idempotent: it replaces what was there.

    Args:
      path: final name; its directory is created.
      scratch: directory of the temporary file, on the same filesystem; the directory of `path` when empty.

    Yields:
      a binary stream.
    """
    directory = scratch or path.rpartition("/")[0]
    temporary = join(directory, f".{uuid.uuid4().hex}.tmp")
    make_dirs(path.rpartition("/")[0])
    make_dirs(directory)
    try:
        with _create(temporary) as stream:
            yield stream
            _sync(stream)
        _replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def write_bytes(path: str, data: bytes, scratch: str = "") -> None:
    """Writes a whole file atomically; see `atomic_writer`."""
    with atomic_writer(path, scratch) as stream:
        stream.write(data)


def make_dirs(path: str) -> None:
    """Creates a directory and its parents; object stores have none and need none."""
    if path and not is_remote(path):
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file if it is there."""
    if is_remote(path):
        if exists(path):
            _filesystems().delete([path])
    elif os.path.lexists(path):
        os.remove(path)


def remove_tree(path: str) -> None:
    """Removes a directory and everything in it, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    # Object stores have no directories to ask for; the slash is what makes Beam delete all below.
    with contextlib.suppress(OSError):
        _filesystems().delete([path.rstrip("/") + "/"])


def list_files(directory: str) -> list[str]:
    """Returns the sorted names of the files in a directory; empty when it does not exist."""
    if not is_remote(directory):
        if not os.path.isdir(directory):
            return []
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    matched = _filesystems().match([join(directory, "*")])[0].metadata_list
    return sorted(posixpath.basename(item.path) for item in matched)


def list_dirs(directory: str) -> list[str]:
    """Returns the sorted names of the directories in a directory; empty when it does not exist."""
    if not is_remote(directory):
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir()) if exists(directory) else []
    prefix = directory.rstrip("/") + "/"
    matched = _filesystems().match([prefix + "**"])[0].metadata_list
    below = (item.path.removeprefix(prefix) for item in matched)
    return sorted({path.partition("/")[0] for path in below if "/" in path})


def _filesystems() -> Any:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _create(path: str) -> BinaryIO:
    if not is_remote(path):
        return open(path, "wb")
    from apache_beam.io.filesystem import CompressionTypes

    return _filesystems().create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    # Streams of object stores have the method and refuse to answer; for them closing is what makes it last.
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):
        os.fsync(stream.fileno())


def _replace(temporary: str, path: str) -> None:
    if is_remote(path):
        _filesystems().rename([temporary], [path])
        return
    os.replace(temporary, path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself must survive a power cut
    finally:
        os.close(directory)

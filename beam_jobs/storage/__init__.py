"""Operations on local and remote files.

Paths with a scheme (`gs://`, `s3://`, `hdfs://`) use Beam's filesystems, which are imported when first needed; all
other paths use the standard library, with the fsync that makes a rename durable.

Untrusted JSON is limited in bytes and in depth, because parsing takes memory and recursion.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c

if TYPE_CHECKING:
    from beam_jobs.storage.object_stores import ListedObject, Store

# Errors which mean that no file has the name, or no file can have it. Other errors may be temporary.
_NO_FILE_ERRORS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.EINVAL, errno.EILSEQ, errno.ENXIO, errno.ENODEV),
    }
)
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def is_remote(path: str) -> bool:
    """Returns whether the path names a remote filesystem by its scheme."""
    return bool(_SCHEME.match(path))


def join(base: str, *parts: str) -> str:
    """Joins path parts, with `/` after a scheme and the local separator otherwise."""
    return posixpath.join(base, *parts) if is_remote(base) else os.path.join(base, *parts)


def exists(path: str) -> bool:
    """Returns whether a local file or directory, or a remote file, exists.

    Raises:
      OSError: a remote filesystem does not answer.
    """
    if not is_remote(path):
        return os.path.exists(path)
    with _remote(path) as store:
        return store.exists(path)


def is_no_file(error: OSError) -> bool:
    """Returns whether an error means that no regular file has the name.

    It returns False for other errors, such as a missing permission or a failing disk, network or store.
    """
    return error.errno in _NO_FILE_ERRORS


def size(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
      OSError: there is no such file.
    """
    return describe(path).bytes if is_remote(path) else os.stat(path).st_size


def describe(path: str) -> ListedObject:
    """Returns the metadata of a remote file from its store, without reading the file.

    Raises:
      OSError: there is no such file.
    """
    with _remote(path) as store:
        return store.describe(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes; a compressed file is not decompressed.

    Raises:
      OSError: the file is missing or not readable.
    """
    if not is_remote(path):
        return open(path, "rb", opener=_open_regular)
    from beam_jobs.storage import object_stores

    return object_stores.open_read(path)


def read_range(path: str, offset: int, length: int) -> bytes:
    """Returns `length` bytes of a file from `offset`, fewer at its end; a store transfers only these bytes.

    Raises:
      OSError: the file is missing or not readable.
    """
    if length <= 0:
        return b""  # object stores answer an empty range with the complete object
    if is_remote(path):
        with _remote(path) as store:
            return store.read_range(path, offset, length)
    descriptor = _open_regular(path)
    try:
        # At most to the end of the file: `pread` allocates all requested bytes first, and callers pass large limits.
        return os.pread(descriptor, min(length, max(0, os.fstat(descriptor).st_size - offset) + 1), offset)
    finally:
        os.close(descriptor)


def read_bytes(path: str) -> bytes:
    """Returns the content of a file.

    Raises:
      OSError: the file is missing or not readable.
    """
    if is_remote(path):
        return read_start(path, sys.maxsize)
    with open_read(path) as stream:
        return stream.read()


def read_start(path: str, most_bytes: int) -> bytes:
    """Returns the first `most_bytes` bytes of a file, or all bytes of a smaller file; takes one request to a store.

    Raises:
      OSError: the file is missing or not readable.
    """
    if not is_remote(path):
        return read_range(path, 0, most_bytes)
    with _remote(path) as store:
        return store.read_start(path, most_bytes)


def read_at_most(path: str, most_bytes: int) -> bytes:
    """Returns the content of a file of at most `most_bytes` bytes.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file has more bytes.
    """
    data = read_start(path, most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return data


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


def checksum(path: str) -> int:
    """Returns the crc32c of a file; an object is not read if its store has its crc32c.

    Raises:
      OSError: the file is missing or not readable.
    """
    if is_remote(path):
        with _remote(path) as store:
            store_checksum = store.describe(path).crc32c if store.has_crc32c else None
        if store_checksum is not None:
            return store_checksum
    value = 0
    with open_read(path) as stream:
        while block := stream.read(1 << 20):
            value = google_crc32c.extend(value, block)
    return value


@contextlib.contextmanager
def atomic_writer(path: str, scratch: str = "", durable: bool = True, exclusive: bool = False) -> Iterator[BinaryIO]:
    """Writes a file atomically: it is complete or missing. It replaces an existing file.

    Args:
      path: final name; its directory is created.
      scratch: directory of the temporary file, on the same filesystem; the directory of `path` when empty.
      durable: whether the file must survive a power cut; False for files that readers check or can recreate.
      exclusive: whether an existing local file is an error; for remote files see `create_exclusive`.

    Yields:
      binary stream.

    Raises:
      FileExistsError: `exclusive` is set and the file exists.
    """
    temporary = join(scratch or _parent(path), f".{uuid.uuid4().hex}.tmp")
    with _remove_on_error(temporary):
        with direct_writer(temporary, durable) as stream:
            yield stream
        rename(temporary, path, durable, exclusive)


@contextlib.contextmanager
def direct_writer(path: str, durable: bool = True) -> Iterator[BinaryIO]:
    """Writes a file under a name that no other process uses; it is removed when the block ends with an error.

    In an object store it takes one upload; `atomic_writer` takes an additional copy.

    Args:
      path: name of the file; its directory is created.
      durable: whether the content must survive a power cut. The name survives it after a rename in the directory.

    Yields:
      binary stream.
    """
    make_dirs(_parent(path))
    with _remove_on_error(path), _open_write(path) as stream:
        yield stream
        if durable:
            stream.flush()
            # Streams of object stores have `fileno`, but it raises; closing them makes the object durable.
            with contextlib.suppress(io.UnsupportedOperation, AttributeError):
                os.fsync(stream.fileno())


@contextlib.contextmanager
def _remove_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            remove(path)
        raise


def create_exclusive(path: str, data: bytes, scratch: str = "") -> bool:
    """Writes a file unless it exists; one of several concurrent callers succeeds.

    A local file is created by a hard link, in S3 with `If-None-Match`, in Google Storage with `ifGenerationMatch`.
    Other remote filesystems have no such operation: callers within milliseconds of each other may both succeed.

    Args:
      path: name of the file.
      data: content. The call also succeeds when the file has this content, so it may be repeated after a lost answer.
      scratch: directory of the temporary file; see `atomic_writer`.

    Returns:
      whether the file has this content; False when it has other content.

    Raises:
      OSError: the file cannot be written, or not be read for the comparison.
    """
    try:
        if is_remote(path):
            with _remote(path) as store:
                store.create_exclusive(path, data)
        else:
            with atomic_writer(path, scratch, exclusive=True) as stream:
                stream.write(data)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            return read_bytes(path) == data
        return False
    return True


def _open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Opens a local file and refuses pipes and devices, which could block forever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):  # reading a directory raises
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe, socket or device", path)


def _parent(path: str) -> str:
    """Returns the directory of a path; the directory of `s3://bucket` is remote too, not the local `s3:`."""
    parent = path.rpartition("/")[0]
    return f"{parent}/" if is_remote(path) and not is_remote(parent) else parent


def write_bytes(path: str, data: bytes, scratch: str = "", durable: bool = True) -> None:
    """Writes a file atomically; see `atomic_writer`. In an object store it takes one request, without a copy."""
    if is_remote(path):
        with _remote(path) as store:
            store.write(path, data)
    else:
        with atomic_writer(path, scratch, durable) as stream:
            stream.write(data)


def make_dirs(path: str) -> None:
    """Creates a local directory and its parents; object stores have no directories."""
    if path and not is_remote(path):
        os.makedirs(path, exist_ok=True)


def rename(path: str, target: str, durable: bool = True, exclusive: bool = False) -> None:
    """Renames a file; stores that cannot rename copy the file and delete the original.

    Args:
      path: path of a file, or of a local directory, which can replace only an empty directory.
      target: new path; its directory is created, and an existing file is replaced.
      durable: whether the new name must survive a power cut.
      exclusive: whether an existing local target is an error; for remote files see `create_exclusive`.

    Raises:
      FileNotFoundError: there is no such file.
      FileExistsError: `exclusive` is set and the target exists.
    """
    if is_remote(path):
        with _remote(path) as store:
            store.rename(path, target)
        return
    make_dirs(_parent(target))
    if exclusive:
        _rename_exclusive(path, target)
    else:
        os.replace(path, target)
    if not durable:
        return
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove(path: str) -> None:
    """Removes a file if it exists."""
    if is_remote(path):
        if exists(path):
            with _remote(path) as store:
                store.delete(path)
    elif os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.remove(path)


def remove_tree(path: str) -> None:
    """Removes a directory with its content, if it exists."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    # Object stores have no directories to check for; the slash makes Beam delete all objects below.
    with contextlib.suppress(OSError), _remote(path) as store:
        store.delete(path.rstrip("/") + "/")


def list_files(directory: str) -> list[str]:
    """Returns the sorted names of the files in a directory; empty when it does not exist."""
    if not is_remote(directory):
        entries = os.scandir(directory) if os.path.isdir(directory) else ()
        return sorted(entry.name for entry in entries if entry.is_file())
    return sorted(entry.path for entry in list_objects(directory) if "/" not in entry.path)


def stat_files(directory: str) -> dict[str, tuple[int, int | None]]:
    """Returns name -> size in bytes and crc32c of the files in a directory, without reading the files.

    The crc32c comes from the metadata of an object store; it is None if these do not contain it.
    """
    if not is_remote(directory):
        return {name: (size(join(directory, name)), None) for name in list_files(directory)}
    return {entry.path: (entry.bytes, entry.crc32c) for entry in list_objects(directory) if "/" not in entry.path}


def list_dirs(directory: str) -> list[str]:
    """Returns the sorted names of the directories in a directory; empty when it does not exist."""
    if not is_remote(directory):
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir()) if exists(directory) else []
    return sorted({entry.path.partition("/")[0] for entry in list_objects(directory) if "/" in entry.path})


def list_objects(directory: str) -> Iterator[ListedObject]:
    """Yields every file below a remote directory, with its path relative to the directory.

    The order is that of the store; S3 and Google Storage sort by name, and are listed by several threads, see
    `listing.list_in_order`. Empty objects whose name ends in a slash, which consoles create for folders, are skipped.

    Raises:
      DiskError: there is no room for the temporary file of a long listing.
      OSError: the directory cannot be listed; a missing directory is empty.
    """
    from beam_jobs.storage import object_stores

    entries = object_stores.list_objects(directory.rstrip("/") + "/")
    return (entry for entry in entries if entry.bytes or not f"/{entry.path}".endswith("/"))


@contextlib.contextmanager
def _remote(path: str) -> Iterator[Store]:
    """Yields the store of a path; errors of its client become `OSError`."""
    from beam_jobs.storage import object_stores

    with object_stores.os_errors(path):
        yield object_stores.store_for(path)


def _open_write(path: str) -> BinaryIO:
    if not is_remote(path):
        return open(path, "wb")
    from beam_jobs.storage import object_stores

    return object_stores.create(path)


def _rename_exclusive(temporary: str, path: str) -> None:
    """Renames a file and raises `FileExistsError` when the name exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # the filesystem, such as FAT, has no hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)
    else:
        os.remove(temporary)


MAX_JSON_BYTES = 64 << 20  # largest file; a `dataset.json` has 200 bytes per shard and 40 per class and split
_MAX_JSON_DEPTH = 64  # of nested lists and objects; an ingest writes 6


def read_json(path: str) -> Any:
    """Returns the parsed content of a JSON file.

    Raises:
      OSError: the file cannot be read.
      ValueError: the content is not JSON, or exceeds the limit of bytes or depth.
    """
    return parse_json(read_at_most(path, MAX_JSON_BYTES))


def parse_json(text: str | bytes) -> Any:
    """Returns the parsed value of a JSON text.

    Raises:
      ValueError: the text is not JSON, or is nested deeper than the limit.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP_JSON) from None
    level = [value]
    for _ in range(_MAX_JSON_DEPTH):
        level = [item for parent in level for item in _json_items(parent) if isinstance(item, (dict, list))]
        if not level:
            return value
    raise ValueError(_TOO_DEEP_JSON)


_TOO_DEEP_JSON = f"its JSON is nested more than {_MAX_JSON_DEPTH} deep"


def _json_items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()

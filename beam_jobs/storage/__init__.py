"""Files, local or remote, behind the few verbs the ingest needs.

A path with a scheme (`gs://`, `s3://`, `hdfs://`) goes through Beam's filesystems, imported when first needed; any
other path goes through the standard library, with the fsync that makes a rename mean something after a power cut.

JSON out of files of strangers is bounded in bytes and in depth, so that neither ends in memory or in recursion.
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
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c

if TYPE_CHECKING:
    from beam_jobs.storage.object_stores import Store


# There is no file of that name, or can be none. Any other error may pass and says nothing of what the file holds.
_NO_FILE = frozenset(
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
    """Returns whether a file or directory is there; of remote ones, a file.

    Raises:
      OSError: a remote filesystem does not say.
    """
    if not is_remote(path):
        return os.path.exists(path)
    with _remote(path) as store:
        return store.exists(path)


def is_no_file(error: OSError) -> bool:
    """Returns whether an error says that no file has that name, or that what has it is no file.

    Any other, such as a missing permission or a failing disk, network or store, is no judgement on the file.
    """
    return error.errno in _NO_FILE


def size(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
      OSError: there is no such file.
    """
    if not is_remote(path):
        return os.stat(path).st_size
    with _remote(path) as store:
        return store.size(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes, never decompressing by its suffix.

    Raises:
      OSError: the file is missing or not readable.
    """
    if not is_remote(path):
        return open(path, "rb", opener=_regular)
    from beam_jobs.storage import object_stores

    return object_stores.open_read(path)


def read_range(path: str, offset: int, length: int) -> bytes:
    """Returns a run of bytes of a file, fewer where it ends; of a remote one no others are transferred.

    Raises:
      OSError: the file is missing or not readable.
    """
    if length <= 0:
        return b""  # stores take an empty range for no range at all
    if is_remote(path):
        with _remote(path) as store:
            return store.read_range(path, offset, length)
    number = _regular(path)
    try:
        # No more than there is: the buffer is made before anything is read, and the limit is a thousand images long.
        return os.pread(number, min(length, max(0, os.fstat(number).st_size - offset) + 1), offset)
    finally:
        os.close(number)


def read_bytes(path: str) -> bytes:
    """Returns the whole file.

    Raises:
      OSError: the file is missing or not readable.
    """
    with open_read(path) as stream:
        return stream.read()


def read_at_most(path: str, most_bytes: int) -> bytes:
    """Returns the content of a file that should be small.

    Raises:
      OSError: it cannot be read.
      ValueError: it has more bytes.
    """
    with open_read(path) as stream:
        data = stream.read(most_bytes + 1)
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
    """Returns the crc32c of a file.

    Raises:
      OSError: the file is missing or not readable.
    """
    value = 0
    with open_read(path) as stream:
        while block := stream.read(1 << 20):
            value = google_crc32c.extend(value, block)
    return value


@contextlib.contextmanager
def atomic_writer(path: str, scratch: str = "", durable: bool = True, exclusive: bool = False) -> Iterator[BinaryIO]:
    """Writes a file that is either complete under its name or not there. Idempotent: it replaces what was there.

    Args:
      path: final name; its directory is created.
      scratch: directory of the temporary file, on the same filesystem; the directory of `path` when empty.
      durable: whether it must survive a power cut; False for what its readers check, or make again, anyway.
      exclusive: whether a local file that is there stays; for remote ones see `create_exclusive`.

    Yields:
      a binary stream.

    Raises:
      FileExistsError: it is to be created, and there is one of that name.
    """
    temporary = join(scratch or _parent(path), f".{uuid.uuid4().hex}.tmp")
    with _removed_on_error(temporary):
        with own_writer(temporary, durable) as stream:
            yield stream
        rename(temporary, path, durable, exclusive)


@contextlib.contextmanager
def own_writer(path: str, durable: bool = True) -> Iterator[BinaryIO]:
    """Writes a file under a name that no other process uses; it is removed when the block ends with an error.

    In an object store it costs one upload, `atomic_writer` a copy more.

    Args:
      path: its name; its directory is created.
      durable: whether its content must survive a power cut. Its name does when a file in the directory is renamed.

    Yields:
      a binary stream.
    """
    make_dirs(_parent(path))
    with _removed_on_error(path), _create(path) as stream:
        yield stream
        if durable:
            _sync(stream)


@contextlib.contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is the reason
            remove(path)
        raise


def create_exclusive(path: str, data: bytes, scratch: str = "") -> bool:
    """Writes a whole file unless there is one of that name; of several callers at once one succeeds.

    Of a local file the link decides, of S3 `If-None-Match`, of Google Storage `ifGenerationMatch`. Other remote
    filesystems have nothing like it: there, callers within milliseconds of each other may both succeed.

    Args:
      path: its name.
      data: its content. Where that is there already the call succeeds, so it may be repeated when an answer is lost.
      scratch: directory of the temporary file; see `atomic_writer`.

    Returns:
      whether the file has this content; False when it has another.

    Raises:
      OSError: it cannot be written, or read to be compared.
    """
    try:
        if is_remote(path):
            with _remote(path) as store:
                store.create_exclusive(path, data)
        else:
            with atomic_writer(path, scratch, exclusive=True) as stream:
                stream.write(data)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            return read_bytes(path) == data
        return False
    return True


def _regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Opens a local file; one that became a pipe or a device since somebody looked would never answer."""
    number = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_IFMT(os.fstat(number).st_mode) in (stat.S_IFREG, stat.S_IFDIR):  # reading says what a directory is
        return number
    os.close(number)
    raise OSError(errno.EINVAL, "it is a pipe, socket or device", path)


def _parent(path: str) -> str:
    """Returns the directory of a path; that of a bare `s3://bucket` is remote too, not the local `s3:`."""
    parent = path.rpartition("/")[0]
    return f"{parent}/" if is_remote(path) and not is_remote(parent) else parent


def write_bytes(path: str, data: bytes, scratch: str = "", durable: bool = True) -> None:
    """Writes a whole file atomically; see `atomic_writer`."""
    with atomic_writer(path, scratch, durable) as stream:
        stream.write(data)


def make_dirs(path: str) -> None:
    """Creates a directory and its parents; object stores have none and need none."""
    if path and not is_remote(path):
        os.makedirs(path, exist_ok=True)


def rename(path: str, target: str, durable: bool = True, exclusive: bool = False) -> None:
    """Gives a file another name, by a copy within the store where there is no renaming.

    Args:
      path: of the file, or of a local directory, which replaces an empty directory alone.
      target: its new name; its directory is created, and a file of that name replaced.
      durable: whether the new name must survive a power cut.
      exclusive: whether a local file of that name stays instead; for remote ones see `create_exclusive`.

    Raises:
      FileNotFoundError: there is no such file.
      FileExistsError: there is one of the new name, and it is to stay.
    """
    if is_remote(path):
        with _remote(path) as store:
            store.rename(path, target)
        return
    make_dirs(_parent(target))
    if exclusive:
        _link(path, target)
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
    """Removes a file if it is there."""
    if is_remote(path):
        if exists(path):
            with _remote(path) as store:
                store.delete(path)
    elif os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.remove(path)


def remove_tree(path: str) -> None:
    """Removes a directory and everything in it, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    # Object stores have no directories to ask for; the slash is what makes Beam delete all below.
    with contextlib.suppress(OSError), _remote(path) as store:
        store.delete(path.rstrip("/") + "/")


def list_files(directory: str) -> list[str]:
    """Returns the sorted names of the files in a directory; empty when it does not exist."""
    if not is_remote(directory):
        if not os.path.isdir(directory):
            return []
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    return sorted(path for path, _, _ in walk_files(directory) if "/" not in path)


def list_dirs(directory: str) -> list[str]:
    """Returns the sorted names of the directories in a directory; empty when it does not exist."""
    if not is_remote(directory):
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir()) if exists(directory) else []
    return sorted({path.partition("/")[0] for path, _, _ in walk_files(directory) if "/" in path})


def walk_files(directory: str) -> Iterator[tuple[str, int, int]]:
    """Yields relative path, size in bytes and time of writing in ns of every file below a remote directory.

    A page of the listing is in memory at a time. The order is that of the store, which is the order of the names. Empty
    objects whose name ends in a slash, with which consoles show folders, are left out.

    Raises:
      OSError: the directory cannot be listed; one that does not exist is empty.
    """
    prefix = directory.rstrip("/") + "/"
    with _remote(prefix) as store:
        for found in store.list(prefix):
            if found.bytes or not found.path.endswith("/"):
                yield found.path.removeprefix(prefix), found.bytes, found.mtime_ns


@contextlib.contextmanager
def _remote(path: str) -> Iterator[Store]:
    """Yields the store that a path lies in; whatever its client raises becomes an `OSError`."""
    from beam_jobs.storage import object_stores

    with object_stores.os_errors(path):
        yield object_stores.store_for(path)


def _create(path: str) -> BinaryIO:
    if not is_remote(path):
        return open(path, "wb")
    from beam_jobs.storage import object_stores

    return object_stores.create(path)


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    # Streams of object stores have the method and refuse to answer; for them closing is what makes it last.
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):
        os.fsync(stream.fileno())


def _link(temporary: str, path: str) -> None:
    """Renames a file to a name that must be free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on FAT
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)
    else:
        os.remove(temporary)


MAX_JSON_BYTES = 64 << 20  # of a file; a `dataset.json` takes 200 bytes a shard and 40 a class and split
_MAX_JSON_DEPTH = 64  # lists and objects inside each other; an ingest writes 6


def read_json(path: str) -> Any:
    """Returns the content of a file of JSON.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no JSON, or larger or deeper than the limits.
    """
    return parse_json(read_at_most(path, MAX_JSON_BYTES))


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a text of JSON.

    Raises:
      ValueError: it is no JSON, or deeper than the limit.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP_JSON) from None
    level = [value]
    for _ in range(_MAX_JSON_DEPTH):
        level = [item for one in level for item in _json_items(one) if isinstance(item, (dict, list))]
        if not level:
            return value
    raise ValueError(_TOO_DEEP_JSON)


_TOO_DEEP_JSON = f"its JSON is nested more than {_MAX_JSON_DEPTH} deep"


def _json_items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()

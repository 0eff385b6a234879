"""Plain copies of compressed containers. gzip, bzip2 and xz have no random access, so a process unpacks each once.

A copy lies in a temporary directory that goes when the process ends, see `leftovers`; threads share it.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.errors import SourceError

GZIP, BZIP2, XZ, ZLIB = PACKINGS = ("gzip", "bzip2", "xz", "zlib")

MAX_RATIO = 1000  # deflate reaches 1032 on zeros alone, images 2: more is a bomb
SPARE_BYTES = 64 << 20  # a full disk stops other programs too, so this much of it is left alone
XZ_MEMORY_BYTES = 256 << 20  # `xz -9` needs 65 MiB to unpack; the format allows 4 GiB

_BLOCK_BYTES = 1 << 20
_XZ_READ_BYTES = 64 << 10  # what follows a stream is copied for each: small, where there are thousands of empty ones
DAMAGED = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
)  # what reading from `unpacked` raises besides OSError
_DAMAGE = (*DAMAGED, OSError, ValueError)
_XZ_TOO_LARGE = "Memory usage limit exceeded"  # of liblzma


@dataclass
class _Copy:
    lock: threading.Lock = field(default_factory=threading.Lock)
    path: str = ""
    fault: str = ""  # kept, because unpacking again for each image would fail as often


_lock = threading.Lock()
_copies: dict[tuple[str, int, int], _Copy] = {}
_newest: dict[str, _Copy] = {}  # path of a remote container -> its copy
_directories: dict[int, str] = {}  # process -> directory; a forked process must not remove that of its parent


def packing_of(head: bytes) -> str:
    """Returns how a file is compressed, from its first ten bytes; empty when it is not.

    zlib has no magic bytes worth the name, so a caller must know that the file is nothing else.
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return GZIP
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return BZIP2
    return XZ if head.startswith(b"\xfd7zXZ\x00") else ""


def is_zlib(head: bytes) -> bool:
    """Returns whether a file may be a zlib stream, from its first two bytes; one in a thousand other files passes."""
    return len(head) > 1 and head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0


def stamp(path: str) -> tuple[int, int]:
    """Returns the size in bytes and the time of writing in ns of a file; of stores that cannot say when, 0.

    Raises:
      OSError: it is missing or cannot be looked at.
    """
    if not storage.is_remote(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    from beam_jobs.storage import object_stores

    size = storage.size(path)
    with contextlib.suppress(OSError), object_stores.os_errors(path):
        for found in object_stores.store_for(path).list(path):
            if found.path == path:  # the first, unless the store has an order of its own
                return size, found.mtime_ns
    return size, 0


def unpacked(stream: BinaryIO, packing: str) -> BinaryIO:
    """Returns the content of a compressed stream, read forwards in bounded memory; a read may give less than asked.

    Args:
      stream: at the start of the file.
      packing: one of `PACKINGS`.
    """
    if packing == GZIP:
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if packing == BZIP2:
        return bz2.BZ2File(stream)  # type: ignore[return-value]
    blocks = _zlib_blocks(stream) if packing == ZLIB else _xz_blocks(stream)
    return _Blocks(blocks)  # type: ignore[return-value]


def plain_path(path: str, packing: str, fresh: bool = True) -> str:
    """Returns a local file that holds what a compressed container unpacks to.

    Args:
      path: of the container.
      packing: one of `PACKINGS`.
      fresh: whether a remote container is asked if it has changed; a request each time, so not for every image.

    Raises:
      SourceError: it is damaged, unpacks to more than `MAX_RATIO` times its size, needs more than `XZ_MEMORY_BYTES` of
        memory, or the disk has no room for it.
      OSError: it is missing, or cannot be read.
    """
    copy = _newest.get(path) if storage.is_remote(path) and not fresh else None
    if copy is None:
        size, mtime_ns = stamp(path)
        with _lock:
            copy = _copies.setdefault((path, size, mtime_ns), _Copy())
            _newest[path] = copy
    with copy.lock:
        if not copy.path and not copy.fault:
            try:
                copy.path = _unpack(path, packing, storage.size(path))
            except SourceError as error:
                copy.fault = str(error)
    if copy.fault:
        raise SourceError(copy.fault)
    return copy.path


def _unpack(path: str, packing: str, size: int) -> str:
    try:
        handle, target = tempfile.mkstemp(dir=_directory())
    except OSError as error:
        raise SourceError(_no_room(path, error.strerror or str(error))) from error
    try:
        with os.fdopen(handle, "wb") as out, storage.open_read(path) as stream:
            plain = unpacked(stream, packing)
            _copy(iter(functools.partial(plain.read, _BLOCK_BYTES), b""), out, path, size)
    except BaseException:
        os.remove(target)
        raise
    return target


def _copy(blocks: Iterator[bytes], out: BinaryIO, path: str, size: int) -> None:
    written = 0
    while True:
        try:
            block = next(blocks, b"")
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno:  # of the disk or the store; those of gzip and bz2 have none
                raise
            reason = str(error) or type(error).__name__
            raise SourceError(f"{path} cannot be unpacked past byte {written} of its content: {reason}") from error
        if not block:
            return
        written += len(block)
        if written > MAX_RATIO * size:
            limit = f"{MAX_RATIO} times its {size} bytes"
            raise SourceError(f"{path} unpacks to more than {limit}, as no honest container does; it is refused")
        _write(out, block, path)


def _write(out: BinaryIO, block: bytes, path: str) -> None:
    try:
        free = shutil.disk_usage(_directory()).free
        if free < SPARE_BYTES + len(block):
            raise SourceError(_no_room(path, f"{free >> 20} MiB are free and {SPARE_BYTES >> 20} MiB are left alone"))
        out.write(block)
        out.flush()  # what a full disk says must be heard here
    except OSError as error:
        raise SourceError(_no_room(path, error.strerror or str(error))) from error


def _no_room(path: str, reason: str) -> str:
    place = f"{path} is compressed and cannot be unpacked below {tempfile.gettempdir()}"
    return f"{place}: {reason}; set TMPDIR to a larger disk, or decompress it yourself"


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)


def _xz_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the content of the streams of an xz file, one after the other; zeros between them are padding."""
    packed = stream.read(_XZ_READ_BYTES)
    while packed:
        # Not `LZMAFile`, which takes no limit of memory.
        inflater = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
        while not inflater.eof:
            if not packed and inflater.needs_input and not (packed := stream.read(_XZ_READ_BYTES)):
                raise EOFError("it ends before its end-of-stream marker")
            if block := _xz_block(inflater, packed):
                yield block
            packed = b""
        packed = inflater.unused_data
        while not (packed := packed.lstrip(b"\0")) and (more := stream.read(_XZ_READ_BYTES)):
            packed = more


def _xz_block(inflater: lzma.LZMADecompressor, packed: bytes) -> bytes:
    try:
        return inflater.decompress(packed, _BLOCK_BYTES)
    except lzma.LZMAError as error:
        if str(error) != _XZ_TOO_LARGE:
            raise
        limit = f"it needs more than the {XZ_MEMORY_BYTES >> 20} MiB of memory that are allowed"
        raise lzma.LZMAError(f"{limit}; compress it with a smaller dictionary, as xz -9 does") from error


def _zlib_blocks(stream: BinaryIO) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    while not inflater.eof:
        packed = inflater.unconsumed_tail or stream.read(_BLOCK_BYTES)
        if not packed:
            raise EOFError("it ends before its end-of-stream marker")
        if block := inflater.decompress(packed, _BLOCK_BYTES):
            yield block


def _directory() -> str:
    process = os.getpid()
    with _lock:
        if process not in _directories:
            _directories[process] = system.temporary_directory()
        return _directories[process]

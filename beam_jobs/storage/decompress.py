"""Decompressed copies of files. gzip, bzip2 and xz have no random access, so a process decompresses each file once.

Copies are in a temporary directory that is removed when the process ends; threads share them.
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

GZIP, BZIP2, XZ, ZLIB = COMPRESSIONS = ("gzip", "bzip2", "xz", "zlib")

MAX_RATIO = 1000  # deflate reaches 1032 on zeros, images reach 2: a larger ratio means a decompression bomb
SPARE_BYTES = 64 << 20  # must stay free, because a full disk stops other programs too
XZ_MEMORY_BYTES = 256 << 20  # `xz -9` needs 65 MiB to unpack; the format allows 4 GiB

_BLOCK_BYTES = 1 << 20
_XZ_READ_BYTES = 64 << 10  # small, because each of up to thousands of empty streams copies the unread part of the block
# Raised by reads of `open_decompressed`, besides OSError.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_DAMAGE_ERRORS = (*DAMAGED, OSError, ValueError)
_XZ_TOO_LARGE = "Memory usage limit exceeded"  # message of liblzma


@dataclass
class _Copy:
    lock: threading.Lock = field(default_factory=threading.Lock)
    path: str = ""  # empty before the file is decompressed
    error_message: str = ""  # stored, so that a damaged file is not decompressed again for each image


_lock = threading.Lock()
_copies: dict[tuple[str, int, int], _Copy] = {}  # path, size and modification time of a compressed file -> its copy
_latest_copies: dict[str, _Copy] = {}  # path of a compressed file -> its last copy
_directories: dict[int, str] = {}  # process id -> directory; a forked process must not remove that of its parent


def detect_compression(head: bytes) -> str:
    """Returns the compression of a file from its first ten bytes: `gzip`, `bzip2`, `xz` or empty.

    zlib has no reliable magic bytes; see `is_zlib`.
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return GZIP
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return BZIP2
    return XZ if head.startswith(b"\xfd7zXZ\x00") else ""


def is_zlib(head: bytes) -> bool:
    """Returns whether a file may be a zlib stream, from its first two bytes; True for one in a thousand other files."""
    return len(head) > 1 and head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0


def read_size_and_mtime(path: str) -> tuple[int, int]:
    """Returns the size in bytes and the modification time in ns of a file; the time is 0 if the store has none.

    Raises:
      OSError: the file is missing or not accessible.
    """
    if not storage.is_remote(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    from beam_jobs.storage import object_stores

    size = storage.size(path)
    with contextlib.suppress(OSError), object_stores.os_errors(path):
        for entry in object_stores.store_for(path).list(path):
            if not entry.path:  # the file itself, which is the first entry if the listing is sorted by name
                return size, entry.mtime_ns
    return size, 0


def open_decompressed(stream: BinaryIO, compression: str) -> BinaryIO:
    """Returns a stream of the decompressed content, for reading forwards in bounded memory; reads may return less.

    Args:
      stream: compressed stream, at the start of the file.
      compression: one of `COMPRESSIONS`.
    """
    if compression == GZIP:
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if compression == BZIP2:
        return bz2.BZ2File(stream)  # type: ignore[return-value]
    blocks = _zlib_blocks(stream) if compression == ZLIB else _xz_blocks(stream)
    return _Blocks(blocks)  # type: ignore[return-value]


def decompressed_path(path: str, compression: str, check_for_changes: bool = True) -> str:
    """Returns the path of a local file with the decompressed content of a compressed file.

    Args:
      path: path of the compressed file.
      compression: one of `COMPRESSIONS`.
      check_for_changes: whether to check if a remote file has changed; False saves a request for each image.

    Raises:
      SourceError: the file is damaged, unpacks to more than `MAX_RATIO` times its size, needs more than
        `XZ_MEMORY_BYTES` of memory, or the disk has too little room.
      OSError: the file is missing, or cannot be read.
    """
    copy = _latest_copies.get(path) if storage.is_remote(path) and not check_for_changes else None
    if copy is None:
        size, mtime_ns = read_size_and_mtime(path)
        with _lock:
            copy = _copies.setdefault((path, size, mtime_ns), _Copy())
            _latest_copies[path] = copy
    with copy.lock:
        if not copy.path and not copy.error_message:
            try:
                copy.path = _decompress(path, compression, storage.size(path))
            except SourceError as error:
                copy.error_message = str(error)
    if copy.error_message:
        raise SourceError(copy.error_message)
    return copy.path


def _decompress(path: str, compression: str, size: int) -> str:
    try:
        descriptor, target = tempfile.mkstemp(dir=_copies_directory())
    except OSError as error:
        raise SourceError(_no_room(path, error.strerror or str(error))) from error
    try:
        with os.fdopen(descriptor, "wb") as out, storage.open_read(path) as stream:
            content = open_decompressed(stream, compression)
            _write_blocks(iter(functools.partial(content.read, _BLOCK_BYTES), b""), out, path, size)
    except BaseException:
        os.remove(target)
        raise
    return target


def _write_blocks(blocks: Iterator[bytes], out: BinaryIO, path: str, size: int) -> None:
    position = 0
    while True:
        try:
            block = next(blocks, b"")
        except _DAMAGE_ERRORS as error:
            if isinstance(error, OSError) and error.errno:  # of the disk or store; errors of gzip and bz2 have no errno
                raise
            reason = str(error) or type(error).__name__
            raise SourceError(f"{path} cannot be unpacked past byte {position} of its content: {reason}") from error
        if not block:
            return
        position += len(block)
        if position > MAX_RATIO * size:
            limit = f"{MAX_RATIO} times its {size} bytes"
            raise SourceError(f"{path} unpacks to more than {limit}; it is refused as a decompression bomb")
        _write_block(out, block, path)


def _write_block(out: BinaryIO, block: bytes, path: str) -> None:
    try:
        free = shutil.disk_usage(_copies_directory()).free
        if free < SPARE_BYTES + len(block):
            raise SourceError(_no_room(path, f"{free >> 20} MiB are free and {SPARE_BYTES >> 20} MiB must stay free"))
        out.write(block)
        out.flush()  # raises the error of a full disk here
    except OSError as error:
        raise SourceError(_no_room(path, error.strerror or str(error))) from error


def _no_room(path: str, reason: str) -> str:
    problem = f"{path} is compressed and cannot be unpacked below {tempfile.gettempdir()}"
    return f"{problem}: {reason}; set TMPDIR to a larger disk, or decompress it yourself"


class _Blocks(io.RawIOBase):
    """Readable stream of blocks of bytes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._unread = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        if not self._unread:
            self._unread = memoryview(next(self._blocks, b""))
        part = self._unread[: len(buffer)]
        buffer[: len(part)] = part
        self._unread = self._unread[len(part) :]
        return len(part)


def _xz_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the content of all streams of an xz file; zeros between them are padding."""
    packed = stream.read(_XZ_READ_BYTES)
    while packed:
        # Not `LZMAFile`, which has no memory limit.
        inflater = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
        while not inflater.eof:
            if not packed and inflater.needs_input and not (packed := stream.read(_XZ_READ_BYTES)):
                raise EOFError("it ends before its end-of-stream marker")
            if block := _xz_block(inflater, packed):
                yield block
            packed = b""  # the inflater stores unused input
        packed = inflater.unused_data
        while not (packed := packed.lstrip(b"\0")) and (next_packed := stream.read(_XZ_READ_BYTES)):
            packed = next_packed


def _xz_block(inflater: lzma.LZMADecompressor, packed: bytes) -> bytes:
    try:
        return inflater.decompress(packed, _BLOCK_BYTES)
    except lzma.LZMAError as error:
        if str(error) != _XZ_TOO_LARGE:
            raise
        limit = f"it needs more than the {XZ_MEMORY_BYTES >> 20} MiB of memory that are allowed"
        raise lzma.LZMAError(f"{limit}; compress it with a smaller dictionary, such as that of xz -9") from error


def _zlib_blocks(stream: BinaryIO) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    while not inflater.eof:
        packed = inflater.unconsumed_tail or stream.read(_BLOCK_BYTES)
        if not packed:
            raise EOFError("it ends before its end-of-stream marker")
        if block := inflater.decompress(packed, _BLOCK_BYTES):
            yield block


def _copies_directory() -> str:
    process = os.getpid()
    with _lock:
        if process not in _directories:
            _directories[process] = system.temporary_directory()
        return _directories[process]

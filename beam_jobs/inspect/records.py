"""The records of any TFRecord file, compressed or not, read in bounded memory.

A record that is longer than `LOOKED_BYTES` is checked and counted like any other, and never read whole into memory:
what a foreign file claims, or unpacks to, must not take the memory of the machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c

from beam_jobs import storage
from beam_jobs.dataset import tfrecord
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.storage import decompress

LOOKED_BYTES = 64 << 20

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Found:
    """One record.

    Attributes:
      offset: where it begins, in bytes of the unpacked file.
      length: bytes of its payload.
      payload: it; None when it is longer than `LOOKED_BYTES`.
    """

    offset: int
    length: int
    payload: bytes | None


@contextmanager
def opened(path: str) -> Iterator[tuple[Iterator[Found], str]]:
    """Opens a TFRecord file.

    Args:
      path: of the file, local or remote.

    Yields:
      its records, both checksums of each verified, and how it is compressed: `none`, `gzip` or `zlib`. Reading on
      raises `CorruptDataset` where the file is damaged, with the offset, and `SourceError` where it cannot be read.

    Raises:
      SourceError: it cannot be opened.
    """
    try:
        with storage.open_read(path) as stream:
            compression = _compression(stream.read(tfrecord.HEADER))
            stream.seek(0)
            plain: BinaryIO = stream
            if compression != "none":
                plain = decompress.unpacked(stream, compression)
                if isinstance(plain, io.RawIOBase):
                    plain = io.BufferedReader(plain, _BLOCK_BYTES)
            yield _records(plain, path), compression
    except OSError as error:
        raise _unreadable(path, error) from error


def is_tfrecord(path: str) -> bool:
    """Returns whether a file begins like one of TFRecord; False also when it cannot be read, or is empty."""
    try:
        with opened(path) as (found, _):
            return next(found, None) is not None
    except (CorruptDataset, SourceError):
        return False


def _records(stream: BinaryIO, path: str) -> Iterator[Found]:
    offset = 0
    try:
        while head := stream.read(tfrecord.HEAD.size):
            length = _length(head, path, offset)
            yield Found(offset, length, _payload(stream, path, offset, length))
            offset += length + tfrecord.OVERHEAD
    except decompress.DAMAGED as error:
        reason = str(error).rstrip(".")
        raise CorruptDataset(f"{path} cannot be unpacked: {reason}, in the record at offset {offset}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _length(head: bytes, path: str, offset: int) -> int:
    if len(head) < tfrecord.HEAD.size:
        perhaps = "" if offset else "; it is cut off, or no TFRecord file"
        raise CorruptDataset(
            f"{path} ends inside the record at offset {offset}: {len(head)} of 12 header bytes{perhaps}"
        )
    if not tfrecord.begins_record(head):
        raise CorruptDataset(f"{path} has a corrupt length at offset {offset}; it is damaged, or no TFRecord file")
    return int(tfrecord.HEAD.unpack(head)[0])


def _payload(stream: BinaryIO, path: str, offset: int, length: int) -> bytes | None:
    kept: list[bytes] = []
    crc = left = 0
    # In blocks, also what is kept: a forged length must not allocate what the file does not have.
    for left in range(length, 0, -_BLOCK_BYTES):
        block = stream.read(min(left, _BLOCK_BYTES))
        crc = google_crc32c.extend(crc, block)
        if length <= LOOKED_BYTES:
            kept.append(block)
        if len(block) < min(left, _BLOCK_BYTES):
            raise _torn(path, offset, length - left + len(block), length)
    tail = stream.read(tfrecord.TAIL.size)
    if len(tail) < tfrecord.TAIL.size:
        raise _torn(path, offset, length + len(tail), length)
    if tfrecord.TAIL.unpack(tail)[0] != tfrecord.masked(crc):
        raise CorruptDataset(f"{path} has a corrupt record at offset {offset}; it is damaged")
    return b"".join(kept) if length <= LOOKED_BYTES else None


def _torn(path: str, offset: int, found: int, length: int) -> CorruptDataset:
    return CorruptDataset(
        f"{path} ends inside the record at offset {offset}: {found} of {length + tfrecord.TAIL.size} bytes"
    )


def _compression(head: bytes) -> str:
    # A record starts with its length, which may look like anything; but then its checksum is right.
    if tfrecord.begins_record(head):
        return "none"
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zlib" if decompress.is_zlib(head) else "none"


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"{path} cannot be read: {error.strerror or error}")

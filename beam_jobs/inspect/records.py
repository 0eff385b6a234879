"""The records of any TFRecord file, compressed or not, read in bounded memory.

The payload of a record longer than `MAX_PAYLOAD_BYTES` is checked, but not kept in memory, which neither declared
nor unpacked sizes of a foreign file may exhaust.
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
from beam_jobs.errors import CorruptDataset, SourceError, os_errors_as
from beam_jobs.storage import decompress

MAX_PAYLOAD_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Record:
    """A record.

    Attributes:
      offset: start of the record, in bytes of the unpacked file.
      length: size of the payload, in bytes.
      payload: the payload; None when it is longer than `MAX_PAYLOAD_BYTES`.
    """

    offset: int
    length: int
    payload: bytes | None


@contextmanager
def open_records(path: str) -> Iterator[tuple[Iterator[Record], str]]:
    """Opens a TFRecord file.

    Args:
      path: path of the file, local or remote.

    Yields:
      the records, whose checksums are verified, and the compression: `none`, `gzip` or `zlib`. The iteration raises
      `CorruptDataset` if the file is damaged, with the offset, and `SourceError` if it cannot be read.

    Raises:
      SourceError: the file cannot be opened.
    """
    with os_errors_as(SourceError, f"{path} cannot be read"), storage.open_read(path) as stream:
        compression = _detect_compression(stream.read(tfrecord.HEADER_BYTES))
        stream.seek(0)
        unpacked_stream: BinaryIO = stream
        if compression != "none":
            unpacked_stream = decompress.open_decompressed(stream, compression)
            if isinstance(unpacked_stream, io.RawIOBase):
                unpacked_stream = io.BufferedReader(unpacked_stream, _BLOCK_BYTES)
        yield _read_records(unpacked_stream, path), compression


def is_tfrecord(path: str) -> bool:
    """Returns whether a file starts with a valid TFRecord record; False also when it cannot be read, or is empty."""
    try:
        with open_records(path) as (records, _):
            return next(records, None) is not None
    except (CorruptDataset, SourceError):
        return False


def _read_records(stream: BinaryIO, path: str) -> Iterator[Record]:
    offset = 0
    try:
        while head := stream.read(tfrecord.HEAD.size):
            length = _parse_length(head, path, offset)
            yield Record(offset, length, _read_payload(stream, path, offset, length))
            offset += length + tfrecord.OVERHEAD
    except decompress.DAMAGED as error:
        reason = str(error).rstrip(".")
        raise CorruptDataset(f"{path} cannot be unpacked: {reason}, in the record at offset {offset}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _parse_length(head: bytes, path: str, offset: int) -> int:
    if len(head) < tfrecord.HEAD.size:
        hint = "" if offset else "; it is truncated, or not a TFRecord file"
        raise CorruptDataset(f"{path} ends inside the record at offset {offset}: {len(head)} of 12 header bytes{hint}")
    if not tfrecord.begins_record(head):
        raise CorruptDataset(f"{path} has a corrupt length at offset {offset}; it is damaged, or not a TFRecord file")
    return int(tfrecord.HEAD.unpack(head)[0])


def _read_payload(stream: BinaryIO, path: str, offset: int, length: int) -> bytes | None:
    blocks: list[bytes] = []
    crc = remaining = 0
    # Read in blocks, so that a forged length does not allocate more memory than the file has bytes.
    for remaining in range(length, 0, -_BLOCK_BYTES):
        block = stream.read(min(remaining, _BLOCK_BYTES))
        crc = google_crc32c.extend(crc, block)
        if length <= MAX_PAYLOAD_BYTES:
            blocks.append(block)
        if len(block) < min(remaining, _BLOCK_BYTES):
            raise _truncated_error(path, offset, length - remaining + len(block), length)
    tail = stream.read(tfrecord.TAIL.size)
    if len(tail) < tfrecord.TAIL.size:
        raise _truncated_error(path, offset, length + len(tail), length)
    if tfrecord.TAIL.unpack(tail)[0] != tfrecord.masked(crc):
        raise CorruptDataset(f"{path} has a corrupt record at offset {offset}; it is damaged")
    return b"".join(blocks) if length <= MAX_PAYLOAD_BYTES else None


def _truncated_error(path: str, offset: int, available_bytes: int, length: int) -> CorruptDataset:
    return CorruptDataset(
        f"{path} ends inside the record at offset {offset}: {available_bytes} of {length + tfrecord.TAIL.size} bytes"
    )


def _detect_compression(head: bytes) -> str:
    # The length at the start of a record may look like a magic number; but then the checksum of the length is correct.
    if tfrecord.begins_record(head):
        return "none"
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zlib" if decompress.is_zlib(head) else "none"

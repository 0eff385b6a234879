"""TFRecord framing: the bytes around a record, written and read without TensorFlow.

Source of the format: tensorflow/core/lib/io/record_writer.h. A record is

    uint64 length | uint32 masked crc32c of length | payload | uint32 masked crc32c of payload     (little endian)

so a record has `OVERHEAD` bytes beyond its payload.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

from beam_jobs.errors import CorruptDataset

HEAD = struct.Struct("<QI")  # length of the payload and its checksum
TAIL = struct.Struct("<I")
HEADER_BYTES = HEAD.size  # bytes: 8 + 4
OVERHEAD = HEAD.size + TAIL.size  # bytes
MAX_RECORD_BYTES = 1 << 30  # limit of a payload, both in writing and reading
_MASK_DELTA = 0xA282EAD8


def frame(*parts: bytes) -> tuple[bytes, ...]:
    """Returns the pieces to write for the parts of a payload: header, parts and footer; the parts are not copied."""
    length = struct.pack("<Q", sum(map(len, parts)))
    checksum = functools.reduce(google_crc32c.extend, parts, 0)
    return length + TAIL.pack(_checksum(length)), *parts, TAIL.pack(masked(checksum))


def read_records(stream: BinaryIO, name: str, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, payload) of every record, both checksums verified.

    Args:
      stream: binary stream at the start of the file.
      name: name of the file in errors.
      max_bytes: longest payload that is read; a forged length must not exhaust the memory.

    Raises:
      CorruptDataset: a checksum is wrong or the file ends inside a record; the message gives the offset.
    """
    offset = 0
    while (payload := read_record(stream, name, offset, max_bytes)) is not None:
        yield offset, payload
        offset += len(payload) + OVERHEAD


def read_record_at(stream: BinaryIO, name: str, offset: int, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Returns the payload of the record that starts at `offset`.

    Raises:
      CorruptDataset: there is no intact record at `offset`.
    """
    stream.seek(offset)
    payload = read_record(stream, name, offset, max_bytes)
    if payload is None:
        raise CorruptDataset(f"{name} ends before offset {offset}; the image table lists a record there")
    return payload


def read_record(stream: BinaryIO, name: str, offset: int, max_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
    """Returns the payload of the next record of a stream; None at the end of the file.

    Args:
      stream: binary stream, at `offset`.
      name: name of the file in errors.
      offset: position of the record in bytes, for errors.
      max_bytes: longest payload that is read.

    Raises:
      CorruptDataset: the record is damaged.
    """
    head = stream.read(HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size:
        raise CorruptDataset(f"{name} ends inside the record at offset {offset}: {len(head)} of 12 header bytes")
    length = HEAD.unpack(head)[0]
    if not begins_record(head) or length > max_bytes:
        raise CorruptDataset(f"{name} has a corrupt length at offset {offset}; write the dataset again")
    payload = stream.read(length)
    tail = stream.read(TAIL.size)
    if len(tail) < TAIL.size:
        read_bytes = len(payload) + len(tail)
        raise CorruptDataset(f"{name} ends inside the record at offset {offset}: {read_bytes} of {length + 4} bytes")
    if _checksum(payload) != TAIL.unpack(tail)[0]:
        raise CorruptDataset(f"{name} has a corrupt record at offset {offset}; write the dataset again")
    return payload


def begins_record(head: bytes) -> bool:
    """Returns whether bytes are the header of a record: `HEADER_BYTES` bytes with the right checksum of the length."""
    return len(head) == HEADER_BYTES and _checksum(head[:8]) == HEAD.unpack(head)[1]


def masked(crc: int) -> int:
    """Returns the masked form of a crc32c, as files store it."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _checksum(data: bytes) -> int:
    return masked(google_crc32c.value(data))

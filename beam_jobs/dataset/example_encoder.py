"""`tf.train.Example` on the wire, written without building the message: what every record pays for.

Every entry has the bytes that protobuf gives it (a test holds them equal), three times as fast and with the image
copied once. Entries stand in the order of their names as UTF-8 bytes, which is part of the disk contract: the order of
protobuf's own deterministic serialisation changed between its versions 3 and 6. Source of the format:
tensorflow/core/example/{example,feature}.proto and the protobuf encoding of length-delimited fields, packed numbers and
maps.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Tags are (field number << 3) | 2: every field on the way down is length-delimited.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = _FIELD_1, _FIELD_2, _FIELD_3
_INT64_END = 1 << 63
# Wire types: 0 a varint, 2 a length and as many bytes, 1 and 5 of fixed size, 3 and 4 around a group.
_VARYING, _GROUPS, _FIXED = (0, 2), (3, 4), {1: 8, 5: 4}

Values = Sequence[bytes] | Sequence[float] | Sequence[int]
_List = Callable[[Any], tuple[bytes, list[bytes]]]


def example(features: Mapping[str, tuple[str, Values]]) -> bytes:
    """Serialises an Example.

    Args:
      features: name -> kind and values; the kind is `bytes`, `float` (written as float32) or `int64`.

    Raises:
      KeyError: a kind is none of the three.
    """
    pieces = [b""]  # what goes before all others is known last
    # Python compares text by code point, which is the order of its UTF-8 bytes.
    for name in sorted(features):
        kind, values = features[name]
        if kind == "int64" and len(values) == 1:
            pieces.append(_one_int64(name, values[0]))
        else:
            _add_entry(pieces, name, *_LISTS[kind](values))
    pieces[0] = _FIELD_1 + _varint(sum(map(len, pieces)))
    return b"".join(pieces)


def ends_early(serialized: bytes) -> bool:
    """Returns whether protobuf would take a part of the bytes for the whole message, with a warning and no error.

    It does at a tag of a group or of field 0, which no Example has.
    """
    position = 0
    while position < len(serialized):
        tag, position = _read_varint(serialized, position)
        tag &= 0xFFFFFFFF
        if tag >> 3 == 0 or tag & 7 in _GROUPS:
            return True
        size = _FIXED.get(tag & 7, 0)
        if tag & 7 in _VARYING:
            value, position = _read_varint(serialized, position)
            size = value if tag & 7 else 0
        position += size
    return False  # what is beyond the end, protobuf sees as well


def _add_entry(pieces: list[bytes], name: str, tag: bytes, body: list[bytes]) -> None:
    """Appends the pieces of one entry of the feature map; values stay pieces of their own, copied once."""
    length = sum(map(len, body))
    pieces.append((_short_head if length < _SHORT_BODY else _head)(name, tag, length))
    pieces += body


def _head(name: str, tag: bytes, body_length: int) -> bytes:
    """Returns what stands before the values of an entry: nothing but their length changes it."""
    feature = tag + _varint(body_length)
    head = _key(name) + _varint(len(feature) + body_length) + feature
    return _FIELD_1 + _varint(len(head) + body_length) + head


# All values but images and masks are this short, so nearly every head was made before.
_SHORT_BODY = 512
_short_head = functools.lru_cache(maxsize=1 << 14)(_head)


@functools.lru_cache(maxsize=1 << 14)
def _one_int64(name: str, value: int) -> bytes:
    """Returns the entry of one number: sizes and labels are the same in record after record."""
    pieces: list[bytes] = []
    _add_entry(pieces, name, *_int64_list((value,)))
    return b"".join(pieces)


@functools.lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    key = name.encode()
    return _FIELD_1 + _varint(len(key)) + key + _FIELD_2


def _bytes_list(values: Iterable[bytes]) -> tuple[bytes, list[bytes]]:
    return _BYTES_LIST, [piece for value in values for piece in (_FIELD_1 + _varint(len(value)), value)]


def _float_list(values: Sequence[float]) -> tuple[bytes, list[bytes]]:
    numbers = array("f", values)  # infinite where a float32 cannot be so large, as protobuf has it
    if sys.byteorder == "big":
        numbers.byteswap()
    packed = numbers.tobytes()
    return _FLOAT_LIST, [_FIELD_1 + _varint(len(packed)) + packed] if packed else []


def _int64_list(values: Sequence[int]) -> tuple[bytes, list[bytes]]:
    if values and not -_INT64_END <= min(values) <= max(values) < _INT64_END:
        raise ValueError(f"{min(values)} to {max(values)} is not in the range of int64")
    packed = b"".join([_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values])  # negative ones as two's complement
    return _INT64_LIST, [_FIELD_1 + _varint(len(packed)) + packed] if packed else []


_LISTS: dict[str, _List] = {"bytes": _bytes_list, "float": _float_list, "int64": _int64_list}


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and where it ends; the end of the data when it has none."""
    value = 0
    for place, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    return value, len(data)


def _varint(value: int) -> bytes:
    if value < 0x4000:
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# One and two bytes, ready made: the lengths of all but the image.
_SHORT = [bytes([value] if value < 0x80 else [value & 0x7F | 0x80, value >> 7]) for value in range(0x4000)]

"""Layout of a record, a `tf.train.Example`: the only definition, which the writer and the readers import.

image/encoded          bytes    JPEG or PNG file; with format `raw`, RGB pixels row by row
image/format           bytes    b"jpeg", b"png" or b"raw"
image/height           int64    pixels
image/width            int64    pixels
image/channels         int64    1 or 3, of the stored file
image/filename         bytes    key of the image, which never changes
image/source_uri       bytes    path or URL of the image; relative to the source if it is local
image/key/sha256       bytes    hex sha256 of image/encoded
image/bytes            int64    length of image/encoded
image/mean_rgb         float[3] mean of each channel, 0-255
image/var_rgb          float[3] population variance of each channel
image/brightness       float    mean of the three channel means, 0-255
image/aspect_ratio     float    width / height
image/class/label      int64    class index, 0-based, into the labels of dataset.json; any number if multi-label
image/class/text       bytes    class name of each label

Only if the source has these annotations:

image/weight                          float    weight of the image in the loss
image/object/bbox/{xmin,ymin,xmax,ymax} float  one value per object, fraction of width or height, 0-1
image/object/class/{label,text}       int64, bytes
image/object/is_crowd                 int64    1 for a group that is annotated as one object
image/object/area                     float    pixels of the source image
image/object/mask                     bytes    PNG per object, 0 outside and 1 inside; b"" without a segmentation
image/segmentation/class/encoded      bytes    PNG of class indices, of the size of the image
image/segmentation/class/format       bytes    b"png"
extra/NAME                            user columns: int64, float or bytes; any length

`example_parts` writes the wire format of `tf.train.Example` without building the message: it is three times as fast,
does not copy the image, and gives each entry the same bytes as protobuf (a test compares them). Entries are in the
order of their names as UTF-8 bytes, which is part of the record format: the order of protobuf's deterministic
serialisation changed between its versions 3 and 6. Source of the format:
tensorflow/core/example/{example,feature}.proto and the protobuf encoding of length-delimited fields, packed numbers and
maps.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs.types import ExtraValue, ImageRecord, RecordObject

if TYPE_CHECKING:
    import tensorflow as tf


# Tags are (field number << 3) | 2: every field from the Example to its values is length-delimited.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = _FIELD_1, _FIELD_2, _FIELD_3
_INT64_END = 1 << 63
# Wire types: 0 is a varint, 2 a length and that many bytes, 1 and 5 have a fixed size, 3 and 4 delimit a group.
_VARYING_TYPES, _GROUP_TYPES, _FIXED_SIZES = (0, 2), (3, 4), {1: 8, 5: 4}

Values = Sequence[bytes] | Sequence[float] | Sequence[int]
_EncodeList = Callable[[Any], tuple[bytes, list[bytes]]]  # values -> tag and pieces of a list message


def encode_example(features: Mapping[str, tuple[str, Values]]) -> bytes:
    """Serialises an Example; see `example_parts`."""
    return b"".join(example_parts(features))


def example_parts(features: Mapping[str, tuple[str, Values]]) -> tuple[bytes, bytes, bytes]:
    """Serialises an Example in three parts; the second is the largest value, usually the image, which is not copied.

    Args:
      features: name -> kind and values; the kind is `bytes`, `float` (written as float32) or `int64`.

    Raises:
      KeyError: a kind is not one of these three.
    """
    pieces = [b""]  # the first piece holds the total length, which is known last
    # Python compares text by code point, which is the order of its UTF-8 bytes.
    for name in sorted(features):
        kind, values = features[name]
        if kind == "int64" and len(values) == 1:
            pieces.append(_int64_entry(name, values[0]))
        else:
            _add_entry(pieces, name, *_LIST_ENCODERS[kind](values))
    pieces[0] = _FIELD_1 + _varint(sum(map(len, pieces)))
    largest = max(pieces, key=len)
    index = pieces.index(largest)
    return b"".join(pieces[:index]), largest, b"".join(pieces[index + 1 :])


def ends_early(serialized: bytes) -> bool:
    """Returns whether protobuf would stop before the end of the bytes without an error.

    It stops at a tag of a group or of field 0, which no Example has.
    """
    position = 0
    while position < len(serialized):
        tag, position = _read_varint(serialized, position)
        tag &= 0xFFFFFFFF
        if tag >> 3 == 0 or tag & 7 in _GROUP_TYPES:
            return True
        size = _FIXED_SIZES.get(tag & 7, 0)
        if tag & 7 in _VARYING_TYPES:
            value, position = _read_varint(serialized, position)
            size = value if tag & 7 else 0
        position += size
    return False  # protobuf reports a field that reaches beyond the end


def _add_entry(pieces: list[bytes], name: str, tag: bytes, body: list[bytes]) -> None:
    """Appends the pieces of one entry of the feature map; values stay separate pieces, so the largest is not copied."""
    length = sum(map(len, body))
    pieces.append((_short_entry_head if length < _SHORT_BODY_BYTES else _entry_head)(name, tag, length))
    pieces += body


def _entry_head(name: str, tag: bytes, body_length: int) -> bytes:
    """Returns the bytes before the values of an entry; they depend only on name, tag and length of the values."""
    feature = tag + _varint(body_length)
    head = _entry_key(name) + _varint(len(feature) + body_length) + feature
    return _FIELD_1 + _varint(len(head) + body_length) + head


# All values but images and masks are this short, so nearly every head is in the cache.
_SHORT_BODY_BYTES = 512
_short_entry_head = functools.lru_cache(maxsize=1 << 14)(_entry_head)


@functools.lru_cache(maxsize=1 << 14)
def _int64_entry(name: str, value: int) -> bytes:
    """Returns the entry of one number; cached, because many records have the same sizes and labels."""
    pieces: list[bytes] = []
    _add_entry(pieces, name, *_int64_list((value,)))
    return b"".join(pieces)


@functools.lru_cache(maxsize=1024)
def _entry_key(name: str) -> bytes:
    """Returns the key of an entry of the feature map, and the tag of the value that follows it."""
    key = name.encode()
    return _FIELD_1 + _varint(len(key)) + key + _FIELD_2


def _bytes_list(values: Iterable[bytes]) -> tuple[bytes, list[bytes]]:
    return _BYTES_LIST, [piece for value in values for piece in (_FIELD_1 + _varint(len(value)), value)]


def _float_list(values: Sequence[float]) -> tuple[bytes, list[bytes]]:
    numbers = array("f", values)  # values beyond the range of float32 become infinite, as in protobuf
    if sys.byteorder == "big":
        numbers.byteswap()
    packed = numbers.tobytes()
    return _FLOAT_LIST, [_FIELD_1 + _varint(len(packed)) + packed] if packed else []


def _int64_list(values: Sequence[int]) -> tuple[bytes, list[bytes]]:
    if values and not -_INT64_END <= min(values) <= max(values) < _INT64_END:
        raise ValueError(f"{min(values)} to {max(values)} is not in the range of int64")
    packed = b"".join([_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values])  # negative values as two's complement
    return _INT64_LIST, [_FIELD_1 + _varint(len(packed)) + packed] if packed else []


_LIST_ENCODERS: dict[str, _EncodeList] = {"bytes": _bytes_list, "float": _float_list, "int64": _int64_list}


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and the position after it; the end of the data for a number that does not end."""
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    return value, len(data)


def _varint(value: int) -> bytes:
    if value < 0x4000:
        return _SHORT_VARINTS[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Varints of one and two bytes: they encode the lengths of all values but the image.
_SHORT_VARINTS = [bytes([value] if value < 0x80 else [value & 0x7F | 0x80, value >> 7]) for value in range(0x4000)]


ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
FILENAME = "image/filename"
SOURCE_URI = "image/source_uri"
SHA256 = "image/key/sha256"
BYTES = "image/bytes"
MEAN_RGB = "image/mean_rgb"
VAR_RGB = "image/var_rgb"
BRIGHTNESS = "image/brightness"
ASPECT_RATIO = "image/aspect_ratio"
LABEL = "image/class/label"
TEXT = "image/class/text"
WEIGHT = "image/weight"
MASK = "image/segmentation/class/encoded"
MASK_FORMAT = "image/segmentation/class/format"
OBJECT_PREFIX = "image/object/"
OBJECT_SIDES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
OBJECT_LABEL, OBJECT_TEXT = f"{OBJECT_PREFIX}class/label", f"{OBJECT_PREFIX}class/text"
EXTRA_PREFIX = "extra/"

# Name -> (dtype name, shape) of the features of single-label records; extra columns differ between datasets.
FEATURES: dict[str, tuple[str, tuple[int, ...]]] = {
    ENCODED: ("string", ()),
    FORMAT: ("string", ()),
    HEIGHT: ("int64", ()),
    WIDTH: ("int64", ()),
    CHANNELS: ("int64", ()),
    FILENAME: ("string", ()),
    SOURCE_URI: ("string", ()),
    SHA256: ("string", ()),
    BYTES: ("int64", ()),
    MEAN_RGB: ("float32", (3,)),
    VAR_RGB: ("float32", (3,)),
    BRIGHTNESS: ("float32", ()),
    ASPECT_RATIO: ("float32", ()),
    LABEL: ("int64", ()),
    TEXT: ("string", ()),
}
# Name -> type of each value, for all features that a record may have, except the extra columns.
_VALUE_TYPES: dict[str, type] = {
    **{name: {"string": bytes, "int64": int, "float32": float}[dtype] for name, (dtype, _) in FEATURES.items()},
    WEIGHT: float,
    MASK: bytes,
    MASK_FORMAT: bytes,
    **dict.fromkeys(OBJECT_SIDES, float),
    OBJECT_LABEL: int,
    OBJECT_TEXT: bytes,
    OBJECT_PREFIX + "is_crowd": int,
    OBJECT_PREFIX + "area": float,
    OBJECT_PREFIX + "mask": bytes,
}
MAX_VALUES = 4 << 20  # limit of the values of a decoded feature; a user column has at most a mebibyte
# Features for the statistics, numbers and categories; other features would be stored as categories, even images.
STATISTICS_FEATURES = (
    *(FORMAT, HEIGHT, WIDTH, CHANNELS, BYTES, ASPECT_RATIO),
    *(MEAN_RGB, VAR_RGB, BRIGHTNESS),
    *(LABEL, TEXT),
)


def encode(record: ImageRecord, channel_statistics: bool = True) -> bytes:
    """Serialises a record; equal records give equal bytes. See `encode_parts`."""
    return b"".join(encode_parts(record, channel_statistics))


def encode_parts(record: ImageRecord, channel_statistics: bool = True) -> tuple[bytes, bytes, bytes]:
    """Serialises a record in three parts; see `example_parts`.

    Args:
      record: image with its facts and annotations.
      channel_statistics: whether to write mean and variance of the channels and the brightness.

    Raises:
      TypeError: an extra column holds something other than int, float, str or a list of one of them.
    """
    facts = record.facts
    features: dict[str, tuple[str, Values]] = {
        ENCODED: ("bytes", (record.encoded,)),
        FORMAT: ("bytes", (facts.format.encode(),)),
        HEIGHT: ("int64", (facts.height,)),
        WIDTH: ("int64", (facts.width,)),
        CHANNELS: ("int64", (facts.channels,)),
        FILENAME: ("bytes", (record.key.encode(),)),
        SOURCE_URI: ("bytes", (record.uri.encode(),)),
        SHA256: ("bytes", (facts.sha256.encode(),)),
        BYTES: ("int64", (facts.bytes,)),
        ASPECT_RATIO: ("float", (facts.width / facts.height,)),
    }
    if channel_statistics:
        features[MEAN_RGB] = ("float", facts.mean_rgb)
        features[VAR_RGB] = ("float", facts.var_rgb)
        features[BRIGHTNESS] = ("float", (sum(facts.mean_rgb) / 3,))
    if record.labels is not None:
        features[LABEL] = ("int64", [index for index, _ in record.labels])
        features[TEXT] = ("bytes", [text.encode() for _, text in record.labels])
    if record.weight is not None:
        features[WEIGHT] = ("float", (record.weight,))
    if record.objects is not None:
        features |= _object_features(record.objects)
    if record.mask:
        features[MASK] = ("bytes", (record.mask,))
        features[MASK_FORMAT] = ("bytes", (b"png",))
    for name, value in record.extra.items():
        features[EXTRA_PREFIX + name] = extra_feature(name, value)
    return example_parts(features)


def decode(serialized: bytes) -> dict[str, list]:
    """Returns feature name -> list of values of any serialised `tf.train.Example`.

    Raises:
      google.protobuf.message.DecodeError: the bytes are not an Example, or a feature has over `MAX_VALUES` values.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.example import example_pb2

    if ends_early(serialized):
        raise DecodeError("bytes after the end of the message")
    example = example_pb2.Example.FromString(serialized)
    values = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        entries = getattr(feature, kind).value if kind else ()
        if len(entries) > MAX_VALUES:
            raise DecodeError(f"feature {name!r:.60} has {len(entries)} values; {MAX_VALUES} are allowed")
        values[name] = list(entries)
    return values


def type_problem(values: Mapping[str, list]) -> str:
    """Returns a message about the first feature with values of a wrong type; empty when all types are right.

    Args:
      values: feature name -> values of any record, as `decode` returns them.
    """
    for name, value_type in _VALUE_TYPES.items():
        entries = values.get(name)
        if entries and not isinstance(entries[0], value_type):  # a feature has one list, of one type
            return f"feature {name!r} holds {type(entries[0]).__name__}, it must hold {value_type.__name__}"
    return ""


def feature_spec(names: Sequence[str] = tuple(FEATURES)) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the parse specification of the named features for `tf.io.parse_example`.

    Raises:
      KeyError: a name is not in `FEATURES`.
    """
    import tensorflow as tf

    return {name: tf.io.FixedLenFeature(FEATURES[name][1], tf.as_dtype(FEATURES[name][0])) for name in names}


def extra_feature(name: str, value: ExtraValue) -> tuple[str, Values]:
    """Returns kind and values of the feature of a user column; the kind `float` is written as float32.

    Raises:
      TypeError: the value is something other than int, float, str or a list of one of them.
    """
    values: list[Any] = [value] if isinstance(value, (int, float, str)) else list(value)
    if all(isinstance(item, str) for item in values):
        return "bytes", [item.encode() for item in values]
    if all(isinstance(item, int) for item in values):
        return "int64", values
    if all(isinstance(item, (int, float)) for item in values):
        return "float", values
    raise TypeError(f"extra column {name!r} holds {value!r}; it must be int, float, str or a list of one of them")


def _object_features(objects: Sequence[RecordObject]) -> dict[str, tuple[str, Values]]:
    return {
        **{name: ("float", [item.bbox[index] for item in objects]) for index, name in enumerate(OBJECT_SIDES)},
        OBJECT_LABEL: ("int64", [item.label for item in objects]),
        OBJECT_TEXT: ("bytes", [item.text.encode() for item in objects]),
        OBJECT_PREFIX + "is_crowd": ("int64", [int(item.crowd) for item in objects]),
        OBJECT_PREFIX + "area": ("float", [item.area for item in objects]),
        OBJECT_PREFIX + "mask": ("bytes", [item.mask for item in objects]),
    }

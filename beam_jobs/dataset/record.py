"""What a record holds: the one definition of the `tf.train.Example` layout, imported by the writer and the readers.

image/encoded          bytes    JPEG or PNG, as stored; of format `raw` the pixels themselves, row by row, R G B
image/format           bytes    b"jpeg", b"png" or b"raw"
image/height           int64    pixels
image/width            int64    pixels
image/channels         int64    1 or 3, of the stored file
image/filename         bytes    the key: identity of the image for ever
image/source_uri       bytes    where it came from, relative to the source for local files
image/key/sha256       bytes    hex sha256 of image/encoded
image/bytes            int64    length of image/encoded
image/mean_rgb         float[3] mean of each channel, 0-255
image/var_rgb          float[3] population variance of each channel
image/brightness       float    mean of the three channel means, 0-255
image/aspect_ratio     float    width / height
image/class/label      int64    class index, 0-based, into the label list of dataset.json; any number if multi-label
image/class/text       bytes    class name of each

When the source speaks of them:

image/weight                          float    weight of the image in the loss
image/object/bbox/{xmin,ymin,xmax,ymax} float  an entry an object, shares of width and height, 0-1
image/object/class/{label,text}       int64, bytes
image/object/is_crowd                 int64    1 for a group that was not taken apart
image/object/area                     float    pixels of the source image
image/object/mask                     bytes    PNG an object, 0 outside and 1 inside; b"" without a segmentation
image/segmentation/class/encoded      bytes    PNG of class indices, of the size of the image
image/segmentation/class/format       bytes    b"png"
extra/NAME                            user columns: int64, float or bytes; any length
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs.dataset import example_encoder
from beam_jobs.types import ExtraValue, ImageRecord, RecordObject

if TYPE_CHECKING:
    import tensorflow as tf

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
EXTRA_PREFIX = "extra/"

# Name -> (dtype name, shape) of what single-label records hold; extra columns differ between datasets.
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
_OBJECT_TYPES = {
    **{f"bbox/{side}": float for side in ("ymin", "xmin", "ymax", "xmax")},
    "class/label": int,
    "class/text": bytes,
    "is_crowd": int,
    "area": float,
    "mask": bytes,
}
# Name -> type of each value, of all that a record may hold but the extra columns.
_TYPES: dict[str, type] = {
    **{name: {"string": bytes, "int64": int, "float32": float}[dtype] for name, (dtype, _) in FEATURES.items()},
    WEIGHT: float,
    MASK: bytes,
    MASK_FORMAT: bytes,
    **{OBJECT_PREFIX + name: kind for name, kind in _OBJECT_TYPES.items()},
}
MAX_VALUES = 4 << 20  # of a feature, decoded; a user column has a mebibyte
# Small numbers and categories: safe for statistics, which would keep whole images as categorical values otherwise.
STATISTICS_FEATURES = (
    *(FORMAT, HEIGHT, WIDTH, CHANNELS, BYTES, ASPECT_RATIO),
    *(MEAN_RGB, VAR_RGB, BRIGHTNESS),
    *(LABEL, TEXT),
)


def encode(record: ImageRecord, moments: bool = True) -> bytes:
    """Serialises a record; equal records give equal bytes.

    Args:
      record: what to write.
      moments: whether the mean and variance of the channels are known, and so the brightness.

    Raises:
      TypeError: an extra column holds something other than int, float, str or a list of one of them.
    """
    facts = record.facts
    features: dict[str, tuple[str, example_encoder.Values]] = {
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
    if moments:
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
    return example_encoder.example(features)


def decode(serialized: bytes) -> dict[str, list]:
    """Returns feature name -> list of values of any serialised `tf.train.Example`, ours or not.

    Raises:
      google.protobuf.message.DecodeError: the bytes are not an Example, or a feature has over `MAX_VALUES` values.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.example import example_pb2

    if example_encoder.ends_early(serialized):
        raise DecodeError("bytes after the end of the message")
    example = example_pb2.Example.FromString(serialized)
    values = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        found = getattr(feature, kind).value if kind else ()
        if len(found) > MAX_VALUES:
            raise DecodeError(f"feature {name!r:.60} has {len(found)} values; {MAX_VALUES} are allowed")
        values[name] = list(found)
    return values


def type_problem(values: Mapping[str, list]) -> str:
    """Returns which feature holds values of another type than this layout has; empty when none does.

    Args:
      values: what `decode` returned, of a record of anybody.
    """
    for name, kind in _TYPES.items():
        entries = values.get(name)
        if entries and not isinstance(entries[0], kind):  # a feature has one list, of one type
            return f"feature {name!r} holds {type(entries[0]).__name__}, it must hold {kind.__name__}"
    return ""


def feature_spec(names: Sequence[str] = tuple(FEATURES)) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the parse specification of the named features for `tf.io.parse_example`.

    Raises:
      KeyError: a name is not in `FEATURES`.
    """
    import tensorflow as tf

    return {name: tf.io.FixedLenFeature(FEATURES[name][1], tf.as_dtype(FEATURES[name][0])) for name in names}


def extra_feature(name: str, value: ExtraValue) -> tuple[str, example_encoder.Values]:
    """Returns kind and values of the feature of a user column; those of the kind `float` are written as float32.

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


def _object_features(objects: Sequence[RecordObject]) -> dict[str, tuple[str, example_encoder.Values]]:
    ymin, xmin, ymax, xmax = ([item.bbox[place] for item in objects] for place in range(4))
    return {
        OBJECT_PREFIX + "bbox/ymin": ("float", ymin),
        OBJECT_PREFIX + "bbox/xmin": ("float", xmin),
        OBJECT_PREFIX + "bbox/ymax": ("float", ymax),
        OBJECT_PREFIX + "bbox/xmax": ("float", xmax),
        OBJECT_PREFIX + "class/label": ("int64", [item.label for item in objects]),
        OBJECT_PREFIX + "class/text": ("bytes", [item.text.encode() for item in objects]),
        OBJECT_PREFIX + "is_crowd": ("int64", [int(item.crowd) for item in objects]),
        OBJECT_PREFIX + "area": ("float", [item.area for item in objects]),
        OBJECT_PREFIX + "mask": ("bytes", [item.mask for item in objects]),
    }

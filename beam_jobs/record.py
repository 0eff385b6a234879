"""What a record holds: the one definition of the `tf.train.Example` layout, imported by the writer and the readers.

image/encoded          bytes    JPEG or PNG, as stored
image/format           bytes    b"jpeg" or b"png"
image/height           int64    pixels
image/width            int64    pixels
image/channels         int64    1 or 3, of the stored file
image/filename         bytes    the key: identity of the image for ever
image/source_uri       bytes    where it came from, relative to the source for local files
image/key/sha256       bytes    hex sha256 of image/encoded
image/bytes            int64    length of image/encoded
image/mean_rgb         float[3] mean of each channel, 0-255
image/var_rgb          float[3] population variance of each channel
image/class/label      int64    class index, 0-based, into the label list of dataset.json
image/class/text       bytes    class name
extra/NAME             user columns: int64, float or bytes; any length
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs.types import ExtraValue, ImageRecord

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
LABEL = "image/class/label"
TEXT = "image/class/text"
EXTRA_PREFIX = "extra/"

# Name -> (dtype name, shape). Extra columns are not listed: they differ between datasets.
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
    LABEL: ("int64", ()),
    TEXT: ("string", ()),
}
# Small numbers and categories: safe for statistics, which would keep whole images as categorical values otherwise.
STATISTICS_FEATURES = (FORMAT, HEIGHT, WIDTH, CHANNELS, BYTES, MEAN_RGB, VAR_RGB, LABEL, TEXT)


def encode(record: ImageRecord) -> bytes:
    """Serialises a record; equal records give equal bytes.

    Raises:
      TypeError: an extra column holds something other than int, float, str or a list of one of them.
    """
    from tensorflow.core.example import example_pb2

    facts = record.facts
    example = example_pb2.Example()
    feature = example.features.feature
    for name, payload in (
        (ENCODED, record.encoded),
        (FORMAT, facts.format.encode()),
        (FILENAME, record.key.encode()),
        (SOURCE_URI, record.uri.encode()),
        (SHA256, facts.sha256.encode()),
        (TEXT, record.text.encode()),
    ):
        feature[name].bytes_list.value.append(payload)
    for name, number in (
        (HEIGHT, facts.height),
        (WIDTH, facts.width),
        (CHANNELS, facts.channels),
        (BYTES, facts.bytes),
        (LABEL, record.label),
    ):
        feature[name].int64_list.value.append(number)
    feature[MEAN_RGB].float_list.value.extend(facts.mean_rgb)
    feature[VAR_RGB].float_list.value.extend(facts.var_rgb)
    for name, value in record.extra.items():
        _set_extra(feature[EXTRA_PREFIX + name], name, value)
    # Map fields have no order of their own; without this two equal records may differ in bytes.
    return example.SerializeToString(deterministic=True)


def decode(serialized: bytes) -> dict[str, list]:
    """Returns feature name -> list of values of any serialised `tf.train.Example`, ours or not.

    Raises:
      google.protobuf.message.DecodeError: the bytes are not an Example.
    """
    from tensorflow.core.example import example_pb2

    example = example_pb2.Example.FromString(serialized)
    values = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values[name] = list(getattr(feature, kind).value) if kind else []
    return values


def feature_spec(names: Sequence[str] = tuple(FEATURES)) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the parse specification of the named features for `tf.io.parse_example`.

    Raises:
      KeyError: a name is not in `FEATURES`.
    """
    import tensorflow as tf

    return {name: tf.io.FixedLenFeature(FEATURES[name][1], tf.as_dtype(FEATURES[name][0])) for name in names}


def _set_extra(feature: Any, name: str, value: ExtraValue) -> None:
    values = [value] if isinstance(value, (int, float, str)) else list(value)
    if all(isinstance(item, str) for item in values):
        feature.bytes_list.value.extend(str(item).encode() for item in values)
    elif all(isinstance(item, int) for item in values):
        feature.int64_list.value.extend(values)
    elif all(isinstance(item, (int, float)) for item in values):
        feature.float_list.value.extend(values)
    else:
        raise TypeError(f"extra column {name!r} holds {value!r}; it must be int, float, str or a list of one of them")

"""Metadata files of TensorFlow Datasets; with them, `tfds.builder_from_directory` opens a dataset.

DIR/features.json                   the features of a record
DIR/image-class-label.labels.txt    the class names, one per line
DIR/dataset_info.json               the splits and the paths of their shards
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from beam_jobs.dataset import record, shards
from beam_jobs.dataset.manifest import SplitInfo

FEATURES_NAME = "features.json"
INFO_NAME = "dataset_info.json"
LABELS_NAME = "image-class-label.labels.txt"
OBJECT_LABELS_NAME = "image-object-class-label.labels.txt"

NAMES = (FEATURES_NAME, INFO_NAME, LABELS_NAME, OBJECT_LABELS_NAME)

_CORE = "tensorflow_datasets.core.features."
_Feature = dict[str, Any]


def _tensor(dtype: str, *shape: int) -> _Feature:
    dimensions = {"dimensions": [str(size) for size in shape]} if shape else {}
    kind = "tensor_feature.Tensor" if shape else "scalar.Scalar"
    return {"pythonClassName": _CORE + kind, "tensor": {"dtype": dtype, "encoding": "none", "shape": dimensions}}


def _sequence(feature: _Feature) -> _Feature:
    return {"pythonClassName": _CORE + "sequence_feature.Sequence", "sequence": {"feature": feature, "length": "-1"}}


def _image(channels: int) -> _Feature:
    shape = {"dimensions": ["-1", "-1", str(channels)]}
    return {"pythonClassName": _CORE + "image_feature.Image", "image": {"dtype": "uint8", "shape": shape}}


def _class_label(count: int) -> _Feature:
    return {"pythonClassName": _CORE + "class_label_feature.ClassLabel", "classLabel": {"numClasses": str(count)}}


_TEXT: _Feature = {"pythonClassName": _CORE + "text_feature.Text", "text": {}}
_INT64, _FLOAT = _tensor("int64"), _tensor("float32")
_EXTRA = {int: _INT64, float: _FLOAT, str: _TEXT}


def files(
    splits: Mapping[str, SplitInfo], labels: tuple[str, ...], features: Mapping[str, _Feature], name: str
) -> dict[str, bytes]:
    """Returns file name -> content of the metadata files of a dataset called `name`; see `describe_features`."""
    contents = {FEATURES_NAME: _to_json(_nest_features(features)), INFO_NAME: _to_json(_dataset_info(splits, name))}
    label_lines = "".join(f"{' '.join(label.split())}\n" for label in labels).encode()
    for label_feature, file_name in ((record.LABEL, LABELS_NAME), (record.OBJECT_LABEL, OBJECT_LABELS_NAME)):
        if label_feature in features:
            contents[file_name] = label_lines
    return contents


def describe_features(
    *,
    label_kind: str,
    labels: int,
    raw: bool,
    channel_statistics: bool,
    parts: frozenset[str],
    extra: Mapping[str, type],
) -> dict[str, _Feature]:
    """Returns record feature -> TFDS feature.

    Args:
      label_kind: one of `types.LABEL_KINDS`.
      labels: number of classes.
      raw: whether images are stored as pixels; TFDS then reads them as bytes.
      channel_statistics: whether records have mean and variance of the channels, and the brightness.
      parts: the annotations that records have: any of `objects`, `mask` and `weight`.
      extra: user column -> int, float or str; TFDS reads lists of values, because a cell may be empty.
    """
    features: dict[str, _Feature] = {
        record.ENCODED: _TEXT if raw else _image(3),
        **dict.fromkeys((record.FORMAT, record.FILENAME, record.SOURCE_URI, record.SHA256), _TEXT),
        **dict.fromkeys((record.HEIGHT, record.WIDTH, record.CHANNELS, record.BYTES), _INT64),
        record.ASPECT_RATIO: _FLOAT,
    }
    if channel_statistics:
        features |= {
            **dict.fromkeys((record.MEAN_RGB, record.VAR_RGB), _tensor("float32", 3)),
            record.BRIGHTNESS: _FLOAT,
        }
    if label_kind == "single":
        features |= {record.LABEL: _class_label(labels), record.TEXT: _TEXT}
    elif label_kind == "multi":
        features |= {record.LABEL: _sequence(_class_label(labels)), record.TEXT: _sequence(_TEXT)}
    if "weight" in parts:
        features[record.WEIGHT] = _FLOAT
    if "mask" in parts:
        features |= {record.MASK: _image(1), record.MASK_FORMAT: _TEXT}
    if "objects" in parts:
        features |= _object_features(labels)
    features |= {record.EXTRA_PREFIX + name: _sequence(_EXTRA[kind]) for name, kind in extra.items()}
    return features


def _object_features(class_count: int) -> dict[str, _Feature]:
    prefix = record.OBJECT_PREFIX
    return {
        **dict.fromkeys((*record.OBJECT_SIDES, prefix + "area"), _sequence(_FLOAT)),
        record.OBJECT_LABEL: _sequence(_class_label(class_count)),
        record.OBJECT_TEXT: _sequence(_TEXT),
        prefix + "is_crowd": _sequence(_INT64),
        prefix + "mask": _sequence(_TEXT),
    }


def _nest_features(features: Mapping[str, _Feature]) -> _Feature:
    """Returns nested dictionaries of features; TFDS joins their names with `/` to the feature names of records."""
    children: dict[str, Any] = {}
    for name, feature in features.items():
        head, _, tail = name.partition("/")
        if tail:
            children.setdefault(head, {})[tail] = feature
        else:
            children[head] = feature
    return {
        "pythonClassName": _CORE + "features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                name: value if "pythonClassName" in value else _nest_features(value)
                for name, value in sorted(children.items())
            }
        },
    }


def _dataset_info(splits: Mapping[str, SplitInfo], dataset_name: str) -> dict[str, Any]:
    return {
        "name": re.sub(r"\W+", "_", dataset_name).strip("_").lower() or "dataset",
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": split_name(split),
                "filepathTemplate": f"{shards.split_dir(split)}/data-{{SHARD_X_OF_Y}}.tfrecord",
                "shardLengths": [str(shard.records) for shard in info.shards],
                "numBytes": str(info.bytes),
            }
            for split, info in splits.items()
        ],
    }


def split_name(split: str) -> str:
    """Returns the name of a split for TFDS and Hugging Face, which reserve `all` for the union of the splits."""
    return "all_images" if split == "all" else split


def _to_json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

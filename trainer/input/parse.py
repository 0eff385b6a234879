"""Serialised records -> features, a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from trainer.input.columns_parse import join_targets
from trainer.ops import IMAGE

KEY = "key"
DRAW = "draw"
LABEL = "label"
WEIGHT = "weight"
NO_LABEL = -1
Features: TypeAlias = dict[str, tf.Tensor]
# A record without a weight, such as one of another dataset of a mixture, counts once.
WEIGHT_SPEC = {record.WEIGHT: tf.io.FixedLenFeature([], tf.float32, default_value=1.0)}
_BASE = (record.ENCODED, record.HEIGHT, record.WIDTH, record.FILENAME)


def base_spec(dataset: Manifest) -> dict[str, Any]:
    """Returns what `tf.io.parse_example` has to know of the features that every dataset has."""
    spec: dict[str, Any] = record.feature_spec(_BASE)
    if dataset.label_kind == "single":
        spec |= record.feature_spec((record.LABEL,))
    elif dataset.label_kind == "multi":
        # Ragged, not sparse: sparse tensors would be serialised and parsed again between the stages.
        spec[record.LABEL] = tf.io.RaggedFeature(tf.int64)
    return spec | WEIGHT_SPEC if dataset.options["columns"]["weight"] else spec


def parse(serialized: tf.Tensor, draws: tf.Tensor, spec: Mapping[str, Any], dataset: Manifest, seed: int) -> Features:
    """Parses a batch of records.

    Args:
      serialized: string[batch].
      draws: int64[batch], what the random draws of each take for the epoch.
      spec: what is in them.
      dataset: the dataset they belong to.
      seed: of the input pipeline.

    Returns:
      `image` string[batch], as stored; `image/height` and `image/width` int64[batch]; `key` string[batch]; `draw`
      int32[batch, 2]; `label` int64[batch] or float32[batch, classes]; `weight` float32[batch] where `spec` names
      it; everything else of `spec` under its own name.
    """
    parsed = join_targets(tf.io.parse_example(serialized, dict(spec)))
    parsed[IMAGE] = parsed.pop(record.ENCODED)
    parsed[KEY] = parsed.pop(record.FILENAME)
    parsed[DRAW] = draw_of(parsed[KEY], draws, seed)
    parsed[LABEL] = _label(parsed, dataset)
    if record.WEIGHT in parsed:
        parsed[WEIGHT] = parsed.pop(record.WEIGHT)
    return parsed


def draw_of(key: tf.Tensor, draws: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns what every random draw of an image derives from: int32[batch, 2].

    From the key, not from the position: a record draws the same whatever the order, the batch or the host.
    """
    hashed = (tf.strings.to_hash_bucket_fast(key, 1 << 32) + seed) % (1 << 32) - (1 << 31)
    return tf.cast(tf.stack([hashed, draws % (1 << 31)], axis=-1), tf.int32)


def _label(parsed: Features, dataset: Manifest) -> tf.Tensor:
    if dataset.label_kind == "single":
        return parsed.pop(record.LABEL)
    if dataset.label_kind == "none":
        return tf.fill(tf.shape(parsed[KEY]), tf.constant(NO_LABEL, tf.int64))
    one_hot = tf.one_hot(parsed.pop(record.LABEL).to_tensor(default_value=NO_LABEL), len(dataset.labels))
    return tf.ensure_shape(tf.reduce_max(tf.pad(one_hot, [[0, 0], [0, 1], [0, 0]]), 1), [None, len(dataset.labels)])

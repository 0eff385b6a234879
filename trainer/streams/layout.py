"""Which features of foreign records hold what, and how they become image, label and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from beam_jobs.common.strings import unknown
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.parse import NO_LABEL


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Which features of a `tf.train.Example` hold what.

    Examples:
      >>> from trainer import RecordLayout
      >>> RecordLayout(image="jpeg", text="species", classes=("crow", "rook"), key="id").labelled
      'species'

    Attributes:
      image: the JPEG or PNG file.
      label: the class index, from 0; empty for none.
      text: the class name, looked up in `classes`, in place of `label`; empty to use `label`.
      key: identity of the image, text or a whole number; empty to make it of file and place, `FILE:INDEX`.
      classes: class names in order of their index; needed for `text` and `multi`.
      multi: whether an image may have any number of labels.

    Raises:
      OptionError: the attributes do not fit each other.
    """

    image: str = record.ENCODED
    label: str = record.LABEL
    text: str = ""
    key: str = record.FILENAME
    classes: tuple[str, ...] = ()
    multi: bool = False

    def __post_init__(self) -> None:
        if not self.image:
            raise OptionError("the image of a layout is empty; name the feature that holds the file")
        if (self.text or self.multi) and not self.classes:
            raise OptionError("a layout with text or multi needs classes, the class names in order of their index")

    @property
    def labelled(self) -> str:
        """The feature that labels come from; empty for none."""
        return self.text or self.label

    def spec(self, first: Mapping[str, list], name: str) -> dict[str, Any]:
        """Returns what `tf.io.parse_example` has to know.

        Args:
          first: feature -> values of the first record.
          name: of its file, for messages.

        Raises:
          OptionError: the record has no such feature, or one of another type.
        """
        found = {self.image: tf.io.FixedLenFeature([], _checked(first, self.image, (bytes,), name))}
        if self.labelled:
            kind = _checked(first, self.labelled, (bytes,) if self.text else (int,), name)
            found[self.labelled] = tf.io.RaggedFeature(kind) if self.multi else tf.io.FixedLenFeature([], kind)
        if self.key:
            found[self.key] = tf.io.FixedLenFeature([], _checked(first, self.key, (bytes, int), name))
        return found


TFDS = RecordLayout(image="image", label="label", key="")
"""The layout of what TensorFlow Datasets prepares for classification: `image` and `label`, and no key.

Examples:
  >>> from trainer import TFDS, InputOptions, make_file_stream
  >>> options = InputOptions(image_side_px=28, batch_size=16)
  >>> train = make_file_stream("mnist/mnist-train.tfrecord-*", options, training=True, layout=TFDS)
  >>> for features, label in train.take(1):
  ...     print(features["image"].shape, label.dtype)
  (16, 28, 28, 3) <dtype: 'int64'>
"""


def labels_of(parsed: Mapping[str, Any], layout: RecordLayout, count: tf.Tensor) -> tf.Tensor:
    """Returns the labels of a batch: int64[count], or float32[count, classes] of several each.

    Raises:
      tf.errors.InvalidArgumentError: a class name is not among `classes`.
    """
    if not layout.labelled:
        return tf.fill([count], tf.constant(NO_LABEL, tf.int64))
    values = parsed[layout.labelled]
    if layout.text:
        values = tf.ragged.map_flat_values(_index_of, values, layout.classes)
    if not layout.multi:
        return values
    classes = len(layout.classes)
    hot = tf.one_hot(values.to_tensor(default_value=NO_LABEL), classes)
    none = tf.zeros([count, 1, classes])  # of an image without labels there is nothing to take the greatest of
    return tf.ensure_shape(tf.reduce_max(tf.concat([hot, none], 1), 1), [None, classes])


def _index_of(names: tf.Tensor, classes: tuple[str, ...]) -> tf.Tensor:
    equal = tf.equal(names[:, None], tf.constant(classes)[None])
    known = tf.reduce_all(tf.reduce_any(equal, 1))
    with tf.control_dependencies([tf.debugging.Assert(known, ["a record has a class that is not in classes", names])]):
        return tf.argmax(equal, 1)


def _checked(first: Mapping[str, list], feature: str, kinds: tuple[type, ...], name: str) -> tf.DType:
    if feature not in first:
        raise OptionError(f"{name}: {unknown('feature', feature, sorted(first))}")
    kind = type(first[feature][0]) if first[feature] else kinds[0]
    if kind not in kinds:
        wanted = " or ".join(_NAMES[one] for one in kinds)
        raise OptionError(f"{name}: the feature {feature!r} holds {_NAMES[kind]}; the layout wants {wanted} there")
    return {bytes: tf.string, int: tf.int64}[kind]


_NAMES = {bytes: "bytes", int: "whole numbers", float: "fractions"}

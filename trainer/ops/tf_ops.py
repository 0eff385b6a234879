"""Functions of TensorFlow with the names of `keras.ops`, so that the same kernels run in tf.data and on the device.

tf.data needs TensorFlow, while `keras.ops` may use JAX. `without_autograph` disables AutoGraph for functions that build
graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from typing import cast as typed

import tensorflow as tf

from trainer.ops.base import HALF

abs = tf.abs  # noqa: A001 - the name in keras.ops
arange = tf.range
bitwise_xor = tf.bitwise.bitwise_xor
broadcast_to = tf.broadcast_to
cast = tf.cast
convert_to_tensor = tf.convert_to_tensor
cos = tf.cos
cumsum = tf.cumsum
floor = tf.floor
maximum = tf.maximum
minimum = tf.minimum
pad = tf.pad
reshape = tf.reshape
right_shift = tf.bitwise.right_shift
round = tf.round  # noqa: A001 - the name in keras.ops
sin = tf.sin
sqrt = tf.sqrt
stack = tf.stack
where = tf.where


def clip(x: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Returns x no lower than `low` and no higher than `high`."""
    return tf.minimum(tf.maximum(x, low), high)


def concatenate(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Joins along an axis."""
    return tf.concat(parts, axis)


def flip(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Reverses along an axis."""
    return tf.reverse(x, [axis])


def max(x: tf.Tensor, axis: Any = None) -> tf.Tensor:  # noqa: A001 - the name in keras.ops
    """Returns the largest values along axes."""
    return tf.reduce_max(x, axis)


def mean(x: tf.Tensor, axis: Any = None) -> tf.Tensor:
    """Returns the means along axes."""
    return tf.reduce_mean(x, axis)


def min(x: tf.Tensor, axis: Any = None) -> tf.Tensor:  # noqa: A001 - the name in keras.ops
    """Returns the smallest values along axes."""
    return tf.reduce_min(x, axis)


def segment_sum(data: tf.Tensor, segment_ids: tf.Tensor, num_segments: Any) -> tf.Tensor:
    """Adds up the values of each segment."""
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments)


def shape(x: tf.Tensor) -> tuple[Any, ...]:
    """Returns the dimensions: an int if it is static, otherwise a scalar tensor."""
    static = x.shape.as_list()
    if None not in static:
        return tuple(static)
    dynamic = tf.unstack(tf.shape(x))
    return tuple(size if number is None else number for number, size in zip(static, dynamic, strict=True))


def to_uint8(images: tf.Tensor) -> tf.Tensor:
    """Converts float32 images in 0-255 to uint8, rounded like `base.round_pixels`; not in `keras.ops`."""
    return tf.cast(images + HALF, tf.uint8)


def sum(x: tf.Tensor, axis: Any = None) -> tf.Tensor:  # noqa: A001 - the name in keras.ops
    """Adds up along axes."""
    return tf.reduce_sum(x, axis)


def take(x: tf.Tensor, indices: tf.Tensor, axis: int = 0) -> tf.Tensor:
    """Takes slices by their indices along an axis."""
    return tf.gather(x, indices, axis=axis)


F = TypeVar("F", bound=Callable[..., Any])


def without_autograph(function: F) -> F:
    """Disables AutoGraph for a function and for the functions that it passes to tf.data.

    AutoGraph rewrites branches on tensors. This code has none, and the search for them takes most of the time of
    building an input pipeline: 3 s of CPU time for the first one of a process instead of 0.3 s.

    Args:
      function: function without branches and loops on tensors, also in the functions that it calls.
    """
    return typed(F, tf.autograph.experimental.do_not_convert(function))

"""Functions of TensorFlow with the names of `keras.ops`, so that the same kernels run in tf.data and on the device.

tf.data needs TensorFlow, while `keras.ops` may use JAX. `without_autograph` disables AutoGraph for functions that build
graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typing_cast

import tensorflow as tf

from trainer.ops.base import HALF

abs = tf.abs  # noqa: A001 - the name in keras.ops
arange = tf.range
bitwise_xor = tf.bitwise.bitwise_xor
broadcast_to = tf.broadcast_to
cast = tf.cast
concatenate = tf.concat
convert_to_tensor = tf.convert_to_tensor
cos = tf.cos
cumsum = tf.cumsum
floor = tf.floor
max = tf.reduce_max  # noqa: A001 - the name in keras.ops
maximum = tf.maximum
mean = tf.reduce_mean
min = tf.reduce_min  # noqa: A001 - the name in keras.ops
minimum = tf.minimum
pad = tf.pad
reshape = tf.reshape
right_shift = tf.bitwise.right_shift
round = tf.round  # noqa: A001 - the name in keras.ops
segment_sum = tf.math.unsorted_segment_sum
sin = tf.sin
sqrt = tf.sqrt
stack = tf.stack
sum = tf.reduce_sum  # noqa: A001 - the name in keras.ops
take = tf.gather
where = tf.where


def clip(x: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Returns x no lower than `low` and no higher than `high`."""
    return tf.minimum(tf.maximum(x, low), high)


def flip(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns x reversed along an axis."""
    return tf.reverse(x, [axis])


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


F = TypeVar("F", bound=Callable[..., Any])


def without_autograph(function: F) -> F:
    """Disables AutoGraph for a function and for the functions that it passes to tf.data.

    AutoGraph rewrites branches on tensors. This code has none, and the search for them takes most of the time of
    building an input pipeline: 3 s of CPU time for the first one of a process instead of 0.3 s.

    Args:
      function: function without branches and loops on tensors, also in the functions that it calls.
    """
    return typing_cast(F, tf.autograph.experimental.do_not_convert(function))

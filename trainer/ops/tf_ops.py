"""TensorFlow under the names of `keras.ops`, so that a kernel written once runs in tf.data and on the device.

tf.data always runs TensorFlow, while `keras.ops` may be JAX; hence this table of the few functions that kernels use.
`as_written` keeps AutoGraph away from functions that build graphs.
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
    """Returns the sides: an int where it is known when the graph is built, else a scalar."""
    known = x.shape.as_list()
    if None not in known:
        return tuple(known)
    sides = tf.unstack(tf.shape(x))
    return tuple(side if size is None else size for size, side in zip(known, sides, strict=True))


def stored(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 images of float32 images in 0-255, rounded as `ops_kernels.whole` does; not in `keras.ops`."""
    return tf.cast(images + HALF, tf.uint8)


def sum(x: tf.Tensor, axis: Any = None) -> tf.Tensor:  # noqa: A001 - the name in keras.ops
    """Adds up along axes."""
    return tf.reduce_sum(x, axis)


def take(x: tf.Tensor, indices: tf.Tensor, axis: int = 0) -> tf.Tensor:
    """Picks rows, or what else `axis` names."""
    return tf.gather(x, indices, axis=axis)


F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """Returns a function in which nothing is rewritten, nor in the functions that it hands to tf.data.

    AutoGraph turns branches on tensors into ops. Ours are ops already, and the search for others took most of the time
    of building an input pipeline: 3 s of CPU time for the first of a process, and 0.3 s without.

    Args:
      function: has no branch or loop on a tensor, and calls none that has.
    """
    return typed(F, tf.autograph.experimental.do_not_convert(function))

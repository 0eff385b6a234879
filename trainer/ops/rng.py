"""Random numbers as a pure function of a draw: no state, no order, the same eager, in tf.data and compiled.

A draw is int32[2], what every random choice about one image in one epoch derives from. `device_chance` gives the same
numbers, to the bit, on whatever backend Keras runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from trainer.ops import bits, tf_ops


def uniform(draw: tf.Tensor, salt: int, count: int) -> tf.Tensor:
    """Returns numbers from 0 up to but without 1.

    Args:
      draw: int32[..., 2]; wider integers count by their low 32 bits.
      salt: what the numbers are for, 0 to 65534; other salts give independent numbers.
      count: how many.

    Returns:
      float32[..., count].
    """
    return bits.uniform(tf_ops, draw, [(salt, count)])


def of_chain(draw: tf.Tensor, counts: Sequence[int], first_salt: int) -> list[tf.Tensor]:
    """Returns the numbers of every op of a chain: `uniform(draw, first_salt + i, counts[i])` for each i.

    One hash makes them all: on an image of 32 x 32 pixels a hash for each op would cost more than the ops.
    """
    if not any(counts):
        return [tf.zeros([0])] * len(counts)
    drawn = bits.uniform(tf_ops, draw, [(first_salt + i, count) for i, count in enumerate(counts)])
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [drawn[..., end - count : end] for end, count in zip(ends, counts, strict=True)]


def split(draw: tf.Tensor, count: int) -> tf.Tensor:
    """Returns int32[..., count, 2], the draws of several images made of one."""
    return bits.split(tf_ops, draw, count)

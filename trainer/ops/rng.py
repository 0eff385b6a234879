"""Random numbers as a pure function of an image seed, without state: equal in eager mode, tf.data and XLA.

An image seed, int32[2], is the seed of every random number of one image in one epoch. The numbers are counter-based and
defined for any array library `xp`: `keras.ops`, or `trainer.ops.tf_ops`, which has the same names. So the numbers of
`trainer.ops.device` are equal in every bit on all backends of Keras.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.ops import tf_ops

# The high bits of a counter are the salt, the low bits the index of the number.
_MAX_COUNT = 1 << 16
_SPLIT_SALT = _MAX_COUNT - 1
# 2^32 over the golden ratio, which spreads neighbouring counters (Knuth, The Art of Computer Programming 3, 6.4).
_SCATTER = 0x9E3779B9
# (shift, multiplier) of the 32-bit finaliser of MurmurHash3 by Austin Appleby (`fmix32` in MurmurHash3.cpp, public
# domain), in which every bit of the input changes every bit of the output with a probability near a half.
_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
_LAST_SHIFT = 16


def uniform_with(xp: Any, image_seed: Any, salt_counts: Sequence[tuple[int, int]]) -> Any:
    """Returns random numbers for several salts, such as the indices of ops, in about the time for one salt.

    Args:
      xp: the array library.
      image_seed: int32[..., 2]; only the low 32 bits of wider integers are used.
      salt_counts: pairs of a salt, 0 to 65534, and a number of random numbers, at most 65536.

    Returns:
      float32[..., total] in [0, 1), multiples of 2^-24, in the order of the pairs.
    """
    counters = np.concatenate([_counters(salt, count) for salt, count in salt_counts])
    words = _words(xp, image_seed, counters)
    # A float32 represents 24 bits exactly, so rounding cannot differ between machines or give 1.
    return xp.cast(xp.right_shift(words, _constant(xp, np.uint32(8))), "float32") * 2.0**-24


def _counters(salt: int, count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32) + np.uint32(salt * _MAX_COUNT)


def _words(xp: Any, image_seed: Any, counters: np.ndarray) -> Any:
    """Returns a hash of both halves of the seed with each counter, uint32[..., n]."""
    # The counters are hashed only once, when the graph is built.
    first_hash = _mix_array(counters * np.uint32(_SCATTER))
    second_hash = _mix_array(first_hash + np.uint32(_SCATTER))
    halves = xp.cast(image_seed, "uint32")
    inner = _mix(xp, xp.bitwise_xor(halves[..., 0:1], _constant(xp, first_hash)))
    return _mix(xp, inner + xp.bitwise_xor(halves[..., 1:2], _constant(xp, second_hash)))


def _mix(xp: Any, words: Any) -> Any:
    for shift, factor in _ROUNDS:
        words = _shift(xp, words, shift) * _constant(xp, np.uint32(factor))
    return _shift(xp, words, _LAST_SHIFT)


def _shift(xp: Any, words: Any, bits: int) -> Any:
    return xp.bitwise_xor(words, xp.right_shift(words, _constant(xp, np.uint32(bits))))


def _mix_array(words: np.ndarray) -> np.ndarray:
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    return words ^ (words >> np.uint32(_LAST_SHIFT))


def _constant(xp: Any, value: np.ndarray | np.uint32) -> Any:
    return xp.convert_to_tensor(value, dtype="uint32")


def uniform_for_chain(image_seed: tf.Tensor, counts: Sequence[int], first_salt: int) -> list[tf.Tensor]:
    """Returns the numbers of every op of a chain: `counts[i]` with the salt `first_salt` + i, for each i.

    One hash makes all of them: for an image of 32 x 32 pixels, one hash per op would be slower than the ops.
    """
    if not any(counts):
        return [tf.zeros([0])] * len(counts)
    numbers = uniform_with(tf_ops, image_seed, [(first_salt + i, count) for i, count in enumerate(counts)])
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [numbers[..., end - count : end] for end, count in zip(ends, counts, strict=True)]


def split(image_seed: tf.Tensor, count: int) -> tf.Tensor:
    """Returns seeds for the crops of an image, int32[..., count, 2], independent of each other and of that seed."""
    words = _words(tf_ops, image_seed, _counters(_SPLIT_SALT, 2 * count))
    # Without the highest bit, which does not fit into a non-negative int32.
    halves = tf.cast(tf.bitwise.right_shift(words, _constant(tf_ops, np.uint32(1))), tf.int32)
    return tf.reshape(halves, (*tf_ops.shape(image_seed)[:-1], count, 2))

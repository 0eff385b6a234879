"""The random numbers of `trainer.ops.rng` with `keras.ops`, so that they can be drawn inside a compiled step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from trainer.ops import bits


def uniform(draw: Any, salt: int, count: int) -> Any:
    """Returns float32[..., count] in [0, 1), equal to the bit to `chance.uniform`.

    Args:
      draw: int32[..., 2].
      salt: what the numbers are for, 0 to 65534.
      count: how many.
    """
    return bits.uniform(ops, draw, [(salt, count)])


def of_chain(draw: Any, counts: Sequence[int], first_salt: int) -> list[Any]:
    """Returns `uniform(draw, first_salt + i, counts[i])` for each i, with one hash."""
    return [uniform(draw, first_salt + i, count) for i, count in enumerate(counts)]

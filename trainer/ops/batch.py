"""Chains over whole batches, with any array library: on the device, and on the host where that is faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from beam_jobs.errors import OptionError
from trainer.ops.colour import Normalize
from trainer.ops.types import BatchOp, IndexOp, MixingOp, Op, Size, moved


def run_batch(
    xp: Any,
    ops: Sequence[BatchOp],
    images: Any,
    numbers: Sequence[Any],
    after: Callable[[BatchOp, Any], Any] = lambda _, images: images,
    lanes: int = 1,
) -> Any:
    """Runs a chain on a batch.

    Args:
      xp: `keras.ops` or `trainer.ops.tf_ops`.
      ops: the chain.
      images: [batch, height, width, 3], 0-255, uint8 or float32; only the batch may be of unknown size.
      numbers: float32[batch, draws] for each op.
      after: takes an op and the images that it made, and returns what the next op gets.
      lanes: see `MixingOp`; they divide the batch.

    Raises:
      OptionError: an op does not fit the size of the images.
    """
    steps = zip(ops, numbers, strict=True)
    for by_index, group in itertools.groupby(steps, key=lambda step: isinstance(step[0], IndexOp)):
        members = list(group)
        if by_index and any(op.moves_window for op, _ in members):  # type: ignore[attr-defined]
            images = moved(xp, members, images)  # type: ignore[arg-type]
        else:
            for op, drawn in members:
                mixed = (lanes,) if isinstance(op, MixingOp) else ()
                images = after(op, op.batch(xp, images, drawn, *mixed))
    return images


def split_position(ops: Sequence[Op], moves_targets: bool = False) -> int:
    """Returns from which op on a chain runs on batches, or its length.

    From there on all images have one size that is known, and every op is faster on a batch than image by image: small
    images, for which calling an op costs more than its pixels. Mixing ops run on a batch whatever their size.

    Args:
      ops: a chain of the host.
      moves_targets: boxes or masks come along, which only move image by image.

    Raises:
      OptionError: an op mixes images that may differ in size.
    """
    sizes: list[Size] = [None]
    for op in ops:
        sizes.append(op.size(sizes[-1]))
    position = len(ops)
    while position > 0 and _fits(ops[position - 1], sizes[position - 1], moves_targets):
        position -= 1
    for op in ops[:position]:
        if isinstance(op, MixingOp):
            raise OptionError(f"{op} mixes images, which must have one size by then; put a crop or resize before it")
    return position


def check_order(ops: Sequence[Any], spec: str) -> None:
    """Raises `OptionError` when an op stands behind one that must come after it."""
    for op, following in itertools.pairwise(ops):
        if isinstance(op, Normalize):
            raise OptionError(f"ops {spec!r}: normalize must be the last op")
        if isinstance(op, MixingOp) and not isinstance(following, (MixingOp, Normalize)):
            raise OptionError(f"ops {spec!r}: only mixup, cutmix and normalize may follow mixup and cutmix")


def _fits(op: Any, size: Size, moves_targets: bool) -> bool:
    if not isinstance(op, BatchOp) or size is None:
        return False
    if isinstance(op, (MixingOp, Normalize)):
        return True
    return not moves_targets and size[0] * size[1] <= op.batch_px

"""Augmentation on the device: whole batches inside the compiled step, with `keras.ops` alone.

A chain reads as in `trainer.ops`, such as `"pad_reflect(4)|random_crop(32)|flip|cutout(8)|mixup(0.2)"`, and gives what
the ops of the host give for the same numbers. It draws other numbers than the chain of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops as xp

from trainer.ops import device_rng
from trainer.ops.batch import check_order, run_batch
from trainer.ops.chain import OPS
from trainer.ops.parse import parse_chain
from trainer.ops.types import BatchOp, MixingOp

DeviceOp = BatchOp
DEVICE_OPS: dict[str, type] = {name: op for name, op in OPS.items() if issubclass(op, BatchOp)}
FIRST_SALT = 1000  # positions of the host are far below


def parse_device_ops(spec: str) -> tuple[DeviceOp, ...]:
    """Reads a chain such as `"flip|mixup(0.2)"`; nothing is an empty chain.

    Raises:
      OptionError: the text is not such a chain, or names an op or argument that there is not on the device.
    """
    if not spec.strip():
        return ()
    ops = parse_chain(spec, DEVICE_OPS, "device op")
    check_order(ops, spec)
    return ops


def apply_device_ops(ops: Sequence[DeviceOp], images: Any, draw: Any) -> Any:
    """Runs a chain on a batch, under `jit_compile` or not, on any backend of Keras.

    Args:
      ops: the chain.
      images: uint8 or float32[batch, height, width, 3], 0-255.
      draw: int32[batch, 2].

    Returns:
      float32[batch, height, width, 3], 0-255 but behind `normalize`.

    Raises:
      OptionError: an op does not fit the size of the images.
    """
    return run_batch(xp, ops, xp.cast(images, "float32"), _numbers(ops, draw))


def mix_labels(ops: Sequence[DeviceOp], labels: Any, draw: Any) -> Any:
    """Mixes the labels as `apply_device_ops` mixes the images of the same draws.

    Args:
      ops: the chain.
      labels: float32[batch, classes].
      draw: int32[batch, 2].

    Returns:
      float32[batch, classes].
    """
    for op, numbers in zip(ops, _numbers(ops, draw), strict=True):
        labels = op.labels(xp, labels, numbers) if isinstance(op, MixingOp) else labels
    return labels


def output_side(ops: Sequence[DeviceOp], side: int) -> int:
    """Returns height and width that a chain leaves of square images."""
    size = (side, side)
    for op in ops:
        size = op.size(size) or size
    return size[0]


def _numbers(ops: Sequence[DeviceOp], draw: Any) -> list[Any]:
    return device_rng.of_chain(draw, [op.draws for op in ops], FIRST_SALT)

"""Augmentation on the device: whole batches inside the compiled step, with `keras.ops` alone.

A chain reads as in `trainer.ops`, such as `"pad_reflect(4)|random_crop(32)|flip|cutout(8)|mixup(0.2)"`, and gives what
the ops of the host give for the same numbers. It draws other numbers than the chain of the host. `Augmented` is a model
that changes its images, and their labels, while it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
from keras import ops
from keras import ops as xp

from beam_jobs.errors import OptionError
from trainer.ops import rng
from trainer.ops.base import BatchOp, MixingOp
from trainer.ops.chain import OPS, check_order, parse_chain, run_batch
from trainer.ops.colour import Normalize
from trainer.ops.mixing import mix_weighted


def device_uniform(draw: Any, salt: int, count: int) -> Any:
    """Returns float32[..., count] in [0, 1), equal to the bit to `chance.uniform`.

    Args:
      draw: int32[..., 2].
      salt: what the numbers are for, 0 to 65534.
      count: how many.
    """
    return rng.uniform_with(ops, draw, [(salt, count)])


def numbers_of_chain(draw: Any, counts: Sequence[int], first_salt: int) -> list[Any]:
    """Returns `uniform(draw, first_salt + i, counts[i])` for each i, with one hash."""
    return [device_uniform(draw, first_salt + i, count) for i, count in enumerate(counts)]


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
    return numbers_of_chain(draw, [op.draws for op in ops], FIRST_SALT)


IMAGE = "image"
DRAW = "draw"


class Augmented(keras.Model):
    """Wraps a model for training: a chain of device ops first, compiled together with it.

    Takes `{"image": uint8[batch, side, side, 3], "draw": int32[batch, 2]}` and labels float32[batch, classes], one-hot
    or multi-hot. Only training augments; then the loss compares with labels that are mixed as the images were, while
    metrics keep comparing with the label of the image that came first. Evaluation needs no `draw`.

    Weights, export and serving belong to `inner`, which knows nothing of augmentation.

    Attributes:
      inner: uint8[batch, side, side, 3] -> float32[batch, classes].
      device_ops: the chain, from `parse_device_ops`.

    Raises:
      OptionError: the chain leaves images that the model does not take.
    """

    def __init__(self, inner: keras.Model, device_ops: Sequence[DeviceOp]) -> None:
        super().__init__(name=f"augmented_{inner.name}")
        self.inner = inner
        self.device_ops = tuple(device_ops)
        _check_model(self.device_ops, inner)

    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        """Returns float32[batch, classes]."""
        images = inputs[IMAGE]
        if training and self.device_ops:
            changed = apply_device_ops(self.device_ops, images, inputs[DRAW])
            # Back to bytes: a model declares uint8, and Keras would cut off the fraction and wrap what is over 255. It
            # also keeps training on the very values that serving will see.
            images = keras.ops.cast(keras.ops.clip(keras.ops.round(changed), 0, 255), "uint8")
        return self.inner(images, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the loss that was compiled, in training against labels and weights mixed as the images were."""
        if training and self.device_ops:
            mix = partial(mix_labels, self.device_ops, draw=x[DRAW])
            if sample_weight is None:
                y = mix(y)
            else:
                y, sample_weight = mix_weighted(keras.ops, mix, y, sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def _check_model(ops: Sequence[DeviceOp], inner: keras.Model) -> None:
    if any(isinstance(op, Normalize) for op in ops):
        raise OptionError("device_ops hold normalize; leave it out, for every model normalises its images itself")
    if not getattr(inner, "inputs", None):  # a model of the user's that shows its shape only when it runs
        return
    side = inner.inputs[0].shape[1]
    found = output_side(ops, side)
    if found != side:
        raise OptionError(f"device_ops turn images of {side} pixels into {found}; the model takes {side}")

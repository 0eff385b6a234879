"""Augmentation on the device: a model that changes its images, and their labels, while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from beam_jobs.errors import OptionError
from trainer.ops.colour import Normalize
from trainer.ops.device import DeviceOp, apply_device_ops, mix_labels, output_side
from trainer.ops.mixing import mix_weighted

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
        _check(self.device_ops, inner)

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


def _check(ops: Sequence[DeviceOp], inner: keras.Model) -> None:
    if any(isinstance(op, Normalize) for op in ops):
        raise OptionError("device_ops hold normalize; leave it out, for every model normalises its images itself")
    if not getattr(inner, "inputs", None):  # a model of the user's that shows its shape only when it runs
        return
    side = inner.inputs[0].shape[1]
    found = output_side(ops, side)
    if found != side:
        raise OptionError(f"device_ops turn images of {side} pixels into {found}; the model takes {side}")

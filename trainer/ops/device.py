"""Augmentation on the device: batches inside the compiled step, with `keras.ops` only.

Chains such as `"pad_reflect(4)|random_crop(32)|flip|cutout(8)|mixup(0.2)"` are written as in `trainer.ops` and give the
same images for the same random numbers, but use other numbers than the chain of the host. `Augmented` is a model that
augments its images and labels during training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
from keras import ops as xp

from beam_jobs.errors import OptionError
from trainer.ops import rng
from trainer.ops.base import IMAGE, IMAGE_SEED, BatchOp, MixingOp
from trainer.ops.chain import OPS, check_order, parse_chain, run_batch
from trainer.ops.colour import Normalize
from trainer.ops.mixing import mix_weighted

DEVICE_OPS: dict[str, type] = {name: op for name, op in OPS.items() if issubclass(op, BatchOp)}
FIRST_SALT = 1000  # indices of the ops of the host are smaller


def parse_device_ops(spec: str) -> tuple[BatchOp, ...]:
    """Parses a chain such as `"flip|mixup(0.2)"`; an empty text is an empty chain.

    Raises:
      OptionError: the text is not a chain of ops, or an op or argument is unknown on the device.
    """
    if not spec.strip():
        return ()
    ops = parse_chain(spec, DEVICE_OPS, "device op")
    check_order(ops, spec)
    return ops


def apply_device_ops(ops: Sequence[BatchOp], images: Any, image_seed: Any) -> Any:
    """Runs a chain on a batch, with or without `jit_compile`, on any backend of Keras.

    Args:
      ops: ops of the chain.
      images: uint8 or float32[batch, height, width, 3], 0-255.
      image_seed: int32[batch, 2].

    Returns:
      float32[batch, height, width, 3], 0-255 except after `normalize`.

    Raises:
      OptionError: an op does not fit the size of the images.
    """
    return run_batch(xp, ops, xp.cast(images, "float32"), _random_numbers(ops, image_seed))


def mix_labels(ops: Sequence[BatchOp], labels: Any, image_seed: Any) -> Any:
    """Mixes labels like the images of `apply_device_ops` with the same seeds.

    Args:
      ops: ops of the chain.
      labels: float32[batch, classes].
      image_seed: int32[batch, 2].

    Returns:
      float32[batch, classes].
    """
    for op, uniforms in zip(ops, _random_numbers(ops, image_seed), strict=True):
        labels = op.labels(xp, labels, uniforms) if isinstance(op, MixingOp) else labels
    return labels


def output_side(ops: Sequence[BatchOp], side: int) -> int:
    """Returns the side in pixels of square images after a chain."""
    size = (side, side)
    for op in ops:
        size = op.size(size) or size
    return size[0]


def _random_numbers(ops: Sequence[BatchOp], image_seed: Any) -> list[Any]:
    return [rng.uniform_with(xp, image_seed, [(salt, op.random_count)]) for salt, op in enumerate(ops, FIRST_SALT)]


class Augmented(keras.Model):
    """Wraps a model for training with a chain of device ops, compiled together with it.

    Takes `{"image": uint8[batch, side, side, 3], "draw": int32[batch, 2]}` and labels float32[batch, classes], one-hot
    or multi-hot. Images are augmented only in training. The loss then uses labels that are mixed like the images, while
    metrics use the label of the first image of each mixture. Evaluation needs no `draw`.

    Weights, export and serving belong to `inner`, which has no augmentation.

    Attributes:
      inner: model uint8[batch, side, side, 3] -> float32[batch, classes].
      device_ops: chain from `parse_device_ops`.

    Raises:
      OptionError: the chain changes images to a size that the model does not take.
    """

    def __init__(self, inner: keras.Model, device_ops: Sequence[BatchOp]) -> None:
        super().__init__(name=f"augmented_{inner.name}")
        self.inner = inner
        self.device_ops = tuple(device_ops)
        _check_model(self.device_ops, inner)

    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        """Returns float32[batch, classes]."""
        images = inputs[IMAGE]
        if training and self.device_ops:
            augmented = apply_device_ops(self.device_ops, images, inputs[IMAGE_SEED])
            # A model declares uint8, and Keras would truncate fractions and wrap values over 255. Rounding also gives
            # training the same values as serving.
            images = keras.ops.cast(keras.ops.clip(keras.ops.round(augmented), 0, 255), "uint8")
        return self.inner(images, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the compiled loss, in training for labels and weights that are mixed like the images."""
        if training and self.device_ops:
            mix = partial(mix_labels, self.device_ops, image_seed=x[IMAGE_SEED])
            if sample_weight is None:
                y = mix(y)
            else:
                y, sample_weight = mix_weighted(keras.ops, mix, y, sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def _check_model(ops: Sequence[BatchOp], inner: keras.Model) -> None:
    if any(isinstance(op, Normalize) for op in ops):
        raise OptionError("device_ops contain normalize; leave it out: every model normalises its images itself")
    if not getattr(inner, "inputs", None):  # a model of the user without a static input shape
        return
    side = inner.inputs[0].shape[1]
    output = output_side(ops, side)
    if output != side:
        raise OptionError(f"device_ops turn images of {side} pixels into {output}; the model takes {side}")

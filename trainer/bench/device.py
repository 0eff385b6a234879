"""The two stages behind the input pipeline: a batch copied to the device, and a training step on it."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from trainer.bench.chain import Source
from trainer.bench.meter import Counts, Subject
from trainer.models import ModelSpec, build_model
from trainer.ops import IMAGE

TRANSFER, STEP = "transfer", "step"
_BATCHES = 4  # taken in turn, so that no copy is made from what the processor still holds
_UNKNOWN_MEAN, _UNKNOWN_STD = (127.5,) * 3, (64.0,) * 3  # of a dataset without channel statistics; speed is the same


def device() -> str:
    """Returns the first accelerator as TensorFlow names it, such as `GPU:0`, or `CPU:0`."""
    found = [one.device_type for one in tf.config.list_logical_devices() if one.device_type in ("GPU", "TPU")]
    return f"{found[0]}:0" if found else "CPU:0"


def transfer(source: Source, where: str) -> Subject:
    """Returns the subject that copies uint8 batches to the device; where that is the CPU, from memory to memory.

    Args:
      source: what is measured.
      where: the device.
    """
    size, side = source.options.batch_size, source.options.image_side_px
    noise = np.random.default_rng(0)
    with tf.device("CPU:0"):
        batches = [tf.constant(noise.integers(0, 256, [size, side, side, 3], np.uint8)) for _ in range(_BATCHES)]

    def start() -> Counts:
        while True:
            for batch in batches:
                with tf.device(where):
                    # On the same device an identity is no copy.
                    copy = tf.raw_ops.DeepCopy(x=batch) if where == "CPU:0" else tf.identity(batch)
                copy[0, 0, 0, 0].numpy()  # waits until the copy is there
                yield float(size)

    return Subject(name=TRANSFER, start=start)


def training_step(source: Source, name: str) -> Callable[[tf.Tensor], None]:
    """Builds a model and returns its training step: uint8[batch, side, side, 3] in, weights changed, nothing out.

    The classes of the images are all the first one: how long a step takes does not depend on them.

    Args:
      source: what is measured.
      name: of the model.

    Raises:
      OptionError: there is no such model, or it does not fit.
    """
    channels, options = source.choices.dataset.channels, source.options
    spec = ModelSpec(
        side_px=options.image_side_px,
        classes=max(2, len(source.choices.dataset.labels)),
        mean_rgb=channels.mean_rgb if channels else _UNKNOWN_MEAN,
        std_rgb=channels.std_rgb if channels else _UNKNOWN_STD,
    )
    model = build_model(name, spec)
    model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="sparse_categorical_crossentropy")
    labels = np.zeros([options.batch_size], np.int64)
    return lambda images: model.train_on_batch(images, labels)


def step_alone(source: Source, step: Callable[[tf.Tensor], None], where: str) -> Subject:
    """Returns the subject that trains on one batch that already lies on the device, over and over."""
    size, side = source.options.batch_size, source.options.image_side_px

    def start() -> Counts:
        with tf.device(where):
            images = tf.zeros([size, side, side, 3], tf.uint8)
        while True:
            step(images)
            yield float(size)

    return Subject(name=STEP, start=start)


def trained(name: str, dataset: tf.data.Dataset, step: Callable[[tf.Tensor], None]) -> Subject:
    """Returns the subject that trains on what an input pipeline delivers.

    Args:
      name: of the subject.
      dataset: endless, of (features, label).
      step: of `training_step`.
    """

    def start() -> Counts:
        for features, _ in dataset:
            step(features[IMAGE])
            yield float(features[IMAGE].shape[0])

    return Subject(name=name, start=start)

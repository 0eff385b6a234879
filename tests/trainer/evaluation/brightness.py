"""A model whose figures one can predict, on either backend."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from trainer.evaluation.evaluate import evaluate
from trainer.input.position import Host
from trainer.input_fn import make_dataset
from trainer.options import InputOptions

ALL = Host()


def linear(slopes: list[float], offsets: list[float], activation: str = "softmax", side: int = 8) -> keras.Model:
    """A model of which a class has the logit `3 * slope * (mean of all values of the pixels) + offset`."""
    inputs = keras.Input([side, side, 3], dtype="uint8")
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1.0)(inputs))
    dense = keras.layers.Dense(len(offsets), activation=activation)
    model = keras.Model(inputs, dense(mean))
    dense.set_weights([np.array([slopes] * 3), np.array(offsets)])
    return model


def brightness(middle: float = 50.0) -> keras.Model:
    """A model one can predict: from `middle` on, a grey is `light`. It is wrong about the greys from 48 to 49."""
    return linear([0.0, 0.1], [0.0, 0.15 - 0.3 * middle])


def batches_of(directory: Path, host: Host = ALL, batch_size: int = 40) -> tf.data.Dataset:
    options = InputOptions(image_side_px=8, batch_size=batch_size, threads=1, cache="none")
    return make_dataset(str(directory), "train", options, training=False, host=host)


def figures(directory: str) -> list[float]:
    """Accuracy and loss of the dataset of greys."""
    found = evaluate(brightness(), lambda host: batches_of(Path(directory), host)).figures
    return [found["accuracy"].value, found["loss"].value]

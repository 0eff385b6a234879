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


def brightness(middle: float = 50.0) -> keras.Model:
    """A model one can predict: from `middle` on, a grey is `light`. It is wrong about the greys from 48 to 49."""
    inputs = keras.Input([8, 8, 3], dtype="uint8")
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1.0)(inputs))
    dense = keras.layers.Dense(2, activation="softmax")
    model = keras.Model(inputs, dense(mean))
    dense.set_weights([np.array([[0.0, 0.1]] * 3), np.array([0.0, 0.15 - 0.3 * middle])])
    return model


def batches_of(directory: Path, host: Host = ALL, batch_size: int = 40) -> tf.data.Dataset:
    options = InputOptions(image_side_px=8, batch_size=batch_size, threads=1, cache="none")
    return make_dataset(str(directory), "train", options, training=False, host=host)


def figures(directory: str) -> list[float]:
    """Accuracy and loss of the dataset of greys."""
    found = evaluate(brightness(), lambda host: batches_of(Path(directory), host)).figures
    return [found["accuracy"].value, found["loss"].value]

"""Models of a user's own that go wrong: in the export, in a process of another, or after some steps."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from trainer.models import ModelSpec


def _around(layer: keras.layers.Layer, spec: ModelSpec, name: str = "head") -> keras.Model:
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8")
    pixels = keras.layers.GlobalAveragePooling2D()(layer(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(spec.classes, activation="softmax", name=name)(pixels))


def badly_named(spec: ModelSpec) -> keras.Model:
    return _around(keras.layers.ReLU(), spec, name="_head")


class CallsPython(keras.layers.Layer):
    def call(self, pixels):
        called = tf.py_function(lambda values: values, [pixels], tf.float32)
        return tf.ensure_shape(called, pixels.shape)


def calls_python(spec: ModelSpec) -> keras.Model:
    return _around(CallsPython(), spec)


class Fuse(keras.layers.Layer):
    """Turns everything into NaN after 6 steps of training."""

    def build(self, shape):
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, pixels, training=False):
        if training:
            self.steps.assign_add(1.0)
        return pixels * keras.ops.where(self.steps > 6, np.nan, 1.0)


def diverging(spec: ModelSpec) -> keras.Model:
    return _around(Fuse(), spec)

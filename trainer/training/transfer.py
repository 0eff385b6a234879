"""Transfer learning: loads weights from a file, and freezes and unfreezes layers.

The head of a model is its last layer with weights; the base consists of all layers before the head.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from beam_jobs.errors import OptionError

SUFFIXES = (".weights.h5", ".keras", ".h5")
# Keras, h5py and zipfile raise these errors for the weights of another model and for damaged files.
_LOAD_ERRORS = (ValueError, TypeError, LookupError, OSError, AttributeError, RuntimeError, zipfile.BadZipFile)


def load_weights(model: keras.Model, path: str) -> None:
    """Loads initial weights from a file.

    The file may contain the weights of the complete model, or only those of the base, such as the files of
    `keras.applications` without top. A head with another number of classes is skipped.

    Args:
      model: model to initialise.
      path: file `.weights.h5`, `.keras`, or `.h5` of older versions of Keras; on any file system of TensorFlow.

    Raises:
      OptionError: the file does not exist, is of another format, or has no weights for a layer of the base.
    """
    if not path.endswith(SUFFIXES):
        raise OptionError(f"weights is {path!r}; it must be imagenet or a file that ends in {', '.join(SUFFIXES)}")
    bases = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    is_legacy = path.endswith(".h5") and not path.endswith(".weights.h5")
    reason = ""
    with _local_file(path) as file:
        for target, optional_layer in ((model, head(model)), *((base, None) for base in bases)):
            for arguments in ({}, {"by_name": True}) if is_legacy else ({},):
                reason = _try_load(target, file, optional_layer, arguments)
                if not reason:
                    return
    raise OptionError(f"the weights of {path} do not fit {model.name}: {reason}")


def weights_digest(path: str) -> str:
    """Returns the hex SHA-256 of a file of weights on any file system of TensorFlow; empty if it does not exist.

    Raises:
      OptionError: the file cannot be read.
    """
    import tensorflow as tf

    hasher = hashlib.sha256()
    try:
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            return ""  # `load_weights` raises the error later, on the machine that trains
        with tf.io.gfile.GFile(path, "rb") as stream:
            while block := stream.read(1 << 20):
                hasher.update(block)
    except tf.errors.OpError as error:
        raise OptionError(f"weights is {path!r}; it cannot be read: {error.message}") from error
    return hasher.hexdigest()


def head(model: keras.Model) -> keras.layers.Layer:
    """Returns the last layer that has weights.

    Raises:
      OptionError: no layer has weights.
    """
    layers = [layer for layer in leaves(model) if layer.weights]
    if not layers:
        raise OptionError(f"the model {model.name} has no weights")
    return layers[-1]


def leaves(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model in order, including those of nested models."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from leaves(layer)
        else:
            yield layer


def freeze(model: keras.Model) -> None:
    """Makes only the head trainable; normalisation layers then no longer update their statistics.

    Call it before `compile`, which reads the list of trainable weights.
    """
    head_layer = head(model)
    for layer in leaves(model):
        layer.trainable = layer is head_layer


def unfreeze(model: keras.Model, layers: int = 0) -> None:
    """Makes the head and the last layers of the base trainable.

    Batch normalisation stays frozen with its pretrained statistics: statistics of small batches would destroy the
    features of the base (Keras guide "Transfer learning and fine-tuning").

    Then call `compile` with a new optimizer, usually with a hundredth to a tenth of the previous learning rate. Do not
    reuse the state of the previous optimizer: Adam with the old step count, but without moments of the new weights,
    would begin with updates that are sqrt(0.1^2 / 0.001) = 3.2 times too large.

    Args:
      model: model to change.
      layers: number of layers with weights, without batch normalisation, from the end of the base; 0 means all.

    Raises:
      OptionError: `layers` is below 0.
    """
    if layers < 0:
        raise OptionError(f"layers to unfreeze is {layers}; it must be a whole number of at least 0, 0 for all")
    freeze(model)
    base = [layer for layer in leaves(model) if layer.weights and layer is not head(model)]
    candidates = [layer for layer in base if not isinstance(layer, keras.layers.BatchNormalization)]
    for layer in candidates[-layers:]:  # all for 0
        layer.trainable = True


def _try_load(model: keras.Model, file: str, optional: keras.layers.Layer | None, arguments: dict[str, Any]) -> str:
    """Loads a file into a model; returns the reason why the file does not fit the model, empty if it fits.

    Keras does not report skipped layers, so all weights are NaN before; only those of `optional` may remain NaN.
    """
    # Weights of other types are the states of random generators, which may be missing in a file.
    weights = [weight for weight in model.weights if keras.backend.is_float_dtype(weight.dtype)]
    initial_values = {id(weight): weight.numpy() for weight in weights}
    for weight in weights:
        weight.assign(np.full(weight.shape, np.nan))
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns about each skipped layer
            model.load_weights(file, skip_mismatch=True, **arguments)
    except _LOAD_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    skipped = [weight for weight in weights if np.isnan(weight.numpy()).any()]
    optional_ids = {id(weight) for weight in optional.weights} if optional else set()
    missing = [weight.path for weight in skipped if id(weight) not in optional_ids]
    if missing:
        reason = reason or f"{len(missing)} weights are absent or of another shape, first {missing[0]}"
    for weight in skipped:
        weight.assign(initial_values[id(weight)])
    return reason


@contextmanager
def _local_file(path: str) -> Iterator[str]:
    """Yields the path of a temporary local copy, or the path itself if it is local: HDF5 opens only local files."""
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        raise OptionError(f"weights is {path!r}; there is no such file")
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local_path = os.path.join(folder, os.path.basename(path))
        tf.io.gfile.copy(path, local_path)
        yield local_path

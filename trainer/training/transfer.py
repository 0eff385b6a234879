"""Transfer learning: weights from a file, and which layers are trained in which epoch.

The head of a model is its last layer with weights; the base is all before it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from beam_jobs.errors import OptionError

SUFFIXES = (".weights.h5", ".keras", ".h5")
# What Keras, h5py and zipfile raise for a file that does not fit or is damaged.
_UNFIT = (ValueError, TypeError, LookupError, OSError, AttributeError, RuntimeError, zipfile.BadZipFile)


def load_weights(model: keras.Model, path: str) -> None:
    """Begins with the weights of a file.

    The file may hold the weights of the whole model, in which case a head for other classes stays as it is, or those of
    the base alone, such as the files of `keras.applications` without top.

    Args:
      model: what is to be trained.
      path: `.weights.h5`, `.keras`, or `.h5` of older versions; on any file system that TensorFlow reads.

    Raises:
      OptionError: there is no such file, it is of another kind, or a layer of the base is not in it.
    """
    if not path.endswith(SUFFIXES):
        raise OptionError(f"weights is {path!r}; it must be imagenet or a file that ends in {', '.join(SUFFIXES)}")
    nested = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    complaints = []
    with _local(path) as file:
        for part, optional in ((model, head(model)), *((base, None) for base in nested)):
            for by_name in ({}, {"by_name": True}) if _is_legacy(path) else ({},):
                complaint = _try_load(part, file, optional, by_name)
                if not complaint:
                    return
                complaints.append(complaint)
    raise OptionError(f"the weights of {path} do not fit {model.name}: {complaints[-1]}")


def weights_digest(path: str) -> str:
    """Returns the sha256, hex, of a file of weights on any file system that TensorFlow reads; empty without a file.

    Raises:
      OptionError: it cannot be read.
    """
    import tensorflow as tf

    hasher = hashlib.sha256()
    try:
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            return ""  # `load_weights` refuses it, or finds it on the machine that trains
        with tf.io.gfile.GFile(path, "rb") as stream:
            while block := stream.read(1 << 20):
                hasher.update(block)
    except tf.errors.OpError as error:
        raise OptionError(f"weights is {path!r}; it cannot be read: {error.message}") from error
    return hasher.hexdigest()


def head(model: keras.Model) -> keras.layers.Layer:
    """Returns the last layer that has weights.

    Raises:
      OptionError: none has.
    """
    layers = [layer for layer in leaves(model) if layer.weights]
    if not layers:
        raise OptionError(f"the model {model.name} has no weights")
    return layers[-1]


def leaves(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model in order, those of the models within it included."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from leaves(layer)
        else:
            yield layer


def freeze(model: keras.Model) -> None:
    """Leaves only the head to training. The statistics of normalisation layers stay as they are.

    Must come before `compile`: Keras fixes what is trained when it compiles.
    """
    unfrozen = head(model)
    for layer in leaves(model):
        layer.trainable = layer is unfrozen


def unfreeze(model: keras.Model, layers: int = 0) -> None:
    """Gives the last layers of the base to training, besides the head.

    Batch normalisation stays frozen, that is, with the statistics it came with: those of small batches would undo what
    the base has learned (Keras guide "Transfer learning and fine-tuning").

    Must be followed by `compile` with an optimizer of its own, as a rule at a hundredth to a tenth of the learning
    rate. It must not take over the state of the one before: Adam with its count of steps but without the moments of the
    new weights would begin with steps sqrt(0.1^2 / 0.001) = 3.2 times too long.

    Args:
      model: the model.
      layers: how many layers with weights, batch normalisation aside, from the end of the base; 0 means all.

    Raises:
      OptionError: `layers` is below 0.
    """
    if layers < 0:
        raise OptionError(f"layers to unfreeze is {layers}; it must be a whole number of at least 0, 0 for all")
    freeze(model)
    base = [layer for layer in leaves(model) if layer.weights and layer is not head(model)]
    movable = [layer for layer in base if not isinstance(layer, keras.layers.BatchNormalization)]
    for layer in movable[-layers:]:
        layer.trainable = True


def for_epoch(model: keras.Model, epoch: int, unfreeze_epoch: int, layers: int = 0) -> None:
    """Sets what is trained in an epoch: `freeze` before `unfreeze_epoch`, from then on `unfreeze`.

    It looks at nothing but the number of the epoch, so a training that resumes gets the layers of one that never
    stopped, and its optimizer the same variables.
    """
    if epoch < unfreeze_epoch:
        freeze(model)
    else:
        unfreeze(model, layers)


def _is_legacy(path: str) -> bool:
    return path.endswith(".h5") and not path.endswith(".weights.h5")


def _try_load(part: keras.Model, file: str, optional: keras.layers.Layer | None, how: dict[str, Any]) -> str:
    """Loads a file into a model and returns what is wrong with it, if anything.

    Keras does not tell what it passed over, so everything is made NaN first: what still is was not in the file.
    """
    before = {id(weight): weight.numpy() for weight in _floats(part.weights)}
    for weight in _floats(part.weights):
        weight.assign(np.full(weight.shape, np.nan))
    complaint = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each layer that is passed over
            part.load_weights(file, skip_mismatch=True, **how)
    except _UNFIT as error:
        complaint = str(error).splitlines()[0] if str(error) else type(error).__name__
    missing = [weight for weight in _floats(part.weights) if np.isnan(weight.numpy()).any()]
    spare = {id(weight) for weight in optional.weights} if optional else set()
    absent = [weight.path for weight in missing if id(weight) not in spare]
    if absent:
        complaint = complaint or f"{len(absent)} weights are absent or of another shape, first {absent[0]}"
    for weight in missing:
        weight.assign(before[id(weight)])
    return complaint


def _floats(weights: Sequence[keras.Variable]) -> list[keras.Variable]:
    # The rest are states of random generators, which no file needs to bring along.
    return [weight for weight in weights if keras.backend.is_float_dtype(weight.dtype)]


@contextmanager
def _local(path: str) -> Iterator[str]:
    """Gives the file a name that HDF5 can open."""
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        raise OptionError(f"weights is {path!r}; there is no such file")
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        tf.io.gfile.copy(path, copy)
        yield copy

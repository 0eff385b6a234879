"""Classify image files with a pushed model, through the same gate and normalisation as the ingest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from beam_jobs import images
from beam_jobs.errors import BadImage, OptionError, SourceError
from beam_jobs.options import ImageLimits

_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says about one file.

    Examples:
      >>> from trainer import Prediction
      >>> prediction = Prediction(path="photos/cat/000.jpg", label=0, text="cat", probability=0.93)
      >>> f"{prediction.text} {prediction.probability:.0%}"
      'cat 93%'

    Attributes:
      path: of the file.
      label: 0-based index of the class among the labels of the model.
      text: class name.
      probability: of that class, 0-1.
    """

    path: str
    label: int
    text: str
    probability: float


def predict(
    model: str, paths: Sequence[str], refuse: Callable[[str, SourceError], object] | None = None
) -> list[Prediction]:
    """Classifies files, in order.

    Examples:
      >>> from trainer import predict_files
      >>> [prediction.path for prediction in predict_files("model", ["photos/cat/000.jpg", "photos/dog/002.png"])]
      ['photos/cat/000.jpg', 'photos/dog/002.png']

    Args:
      model: directory of a SavedModel exported by `trainer.serving`, or of numbered versions of one.
      paths: image files of any format the ingest takes.
      refuse: takes the path and the error of a file that cannot be used, which is then left out; without it, the first
        such file raises.

    Returns:
      one prediction per file that can be used, in the order of `paths`.

    Raises:
      OptionError: there is no such model.
      SourceError: a file cannot be read or is not a usable image.
    """
    newest_version(model)  # or a long list of files would be read for nothing
    usable = list(_loaded(paths, refuse))
    if not usable and paths:
        return []
    serve = _load_model(model)
    predictions = []
    for start in range(0, len(usable), _BATCH):
        batch = usable[start : start + _BATCH]
        outputs = serve(image_bytes=tf.constant([encoded for _, encoded in batch]))
        predictions += [
            Prediction(path=path, label=int(label), text=text.decode(), probability=float(probability))
            for (path, _), label, text, probability in zip(
                batch,
                outputs["class"].numpy(),
                outputs["text"].numpy(),
                outputs["probability"].numpy(),
                strict=True,
            )
        ]
    return predictions


def newest_version(model: str) -> str:
    """Returns the directory of the SavedModel: `model` itself, or its highest numbered sub-directory.

    Raises:
      OptionError: neither holds a SavedModel.
    """
    if os.path.isfile(os.path.join(model, "saved_model.pb")):
        return model
    names = [name for name in os.listdir(model) if name.isdigit()] if os.path.isdir(model) else []
    # A version without the graph is one that is being pushed right now, or whose push broke off.
    versions = [name for name in names if os.path.isfile(os.path.join(model, name, "saved_model.pb"))]
    if not versions:
        pushed = os.path.join(model, "serving")
        place = f"give {pushed}" if os.path.isdir(pushed) else "give the folder that `feedline run` pushed to"
        raise OptionError(f"{model} holds no model; {place}")
    return os.path.join(model, max(versions, key=int))


def _load_model(model: str) -> tf.types.experimental.ConcreteFunction:
    path = newest_version(model)
    loaded = tf.saved_model.load(path)
    serve = loaded.signatures.get("serving_default")
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise OptionError(f"{path} was not exported by feedline: its signature takes no image_bytes")
    # The signature does not keep the object alive, and its variables die with it.
    serve._feedline_model = loaded
    return serve


def _loaded(paths: Sequence[str], refuse: Callable[[str, SourceError], object] | None) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        loaded = _load(path) if not refuse else _load_or_refuse(path, refuse)
        if loaded is not None:
            yield path, loaded


def _load_or_refuse(path: str, refuse: Callable[[str, SourceError], object]) -> bytes | None:
    try:
        return _load(path)
    except SourceError as error:
        refuse(path, error)
        return None


def _load(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return images.examine(stream.read(), ImageLimits())[0]
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except BadImage as bad:
        raise SourceError(f"{path} is not a usable image: {bad}") from bad

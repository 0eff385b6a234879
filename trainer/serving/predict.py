"""Classifies image files with an exported model, after the checks and the normalisation of the ingest of its dataset.

The directory of an exported model also contains its class names and its `ServingSpec`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.images import sandbox
from beam_jobs.options import ImageLimits, PixelOptions

EVALUATE_SIGNATURE = "evaluate"  # its input is serialised records; TFMA uses it
PROBABILITIES = "probabilities"
# SavedModel reserves `assets.extra` for user files. Models with equal descriptions read the same records and have the
# same classes, so that they can be compared.
DESCRIPTION_NAME = "assets.extra/feedline.json"
SPEC_NAME = "assets.extra/serving.json"


@dataclass(frozen=True, kw_only=True)
class ServingSpec:
    """Properties of the training dataset that serving needs.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import ServingSpec
      >>> ServingSpec.of(load("dataset")).pixels.policy
      'copy'

    Attributes:
      pixels: pixel options of the ingest, which prediction applies to image files.
      limits: limits of the ingest for images.
      multi_label: whether an image may have several labels.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)
    limits: ImageLimits = field(default_factory=ImageLimits)
    multi_label: bool = False

    @classmethod
    def of(cls, dataset: Manifest) -> ServingSpec:
        """Returns the spec of a dataset."""
        return cls(
            pixels=PixelOptions(**dataset.options["pixels"]),
            limits=ImageLimits(**dataset.options["limits"]),
            multi_label=dataset.label_kind == "multi",
        )

    @classmethod
    def read(cls, model: str) -> ServingSpec:
        """Returns the spec of an exported model.

        Args:
          model: directory of the SavedModel.

        Raises:
          OptionError: the model has no spec.
        """
        values = read_json(model, SPEC_NAME)
        return cls(
            pixels=PixelOptions(**values["pixels"]),
            limits=ImageLimits(**values["limits"]),
            multi_label=values["multi_label"],
        )

    def write(self, model: str) -> None:
        """Writes the spec to the directory of an exported model."""
        write_json(model, SPEC_NAME, dataclasses.asdict(self))


def write_json(model: str, name: str, values: Any) -> None:
    """Writes a JSON file to the directory of an exported model, on any file system of TensorFlow."""
    target = os.path.join(model, name)
    tf.io.gfile.makedirs(os.path.dirname(target))
    with tf.io.gfile.GFile(target, "w") as stream:
        stream.write(json.dumps(values, indent=2, ensure_ascii=False))


def read_json(model: str, name: str) -> Any:
    """Returns the content of a JSON file in the directory of an exported model.

    Raises:
      OptionError: the model has no such file.
    """
    try:
        with tf.io.gfile.GFile(os.path.join(model, name)) as stream:
            return json.loads(stream.read())
    except tf.errors.NotFoundError as error:
        raise OptionError(
            f"{model} has no {name}: an earlier release or another program exported it; run the pipeline again"
        ) from error


_BATCH_FILES = 64
THRESHOLD = 0.5  # probability above which a multi-label image has a label, also in the metrics: `losses.PerClass`


@dataclass(frozen=True, kw_only=True)
class PredictedLabel:
    """One label of an image.

    Attributes:
      label: index of the class in the labels of the model, from 0.
      text: class name.
      probability: probability of the class, 0-1.
    """

    label: int
    text: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The classification of one file.

    Examples:
      >>> from trainer import Prediction
      >>> prediction = Prediction(path="photos/cat/000.jpg", label=0, text="cat", probability=0.93)
      >>> f"{prediction.text} {prediction.probability:.0%}"
      'cat 93%'

    Attributes:
      path: path of the file.
      label: index of the most probable class in the labels of the model, from 0.
      text: name of that class.
      probability: probability of that class, 0-1.
      labels: for a model with one label per image, only the most probable class; for several labels per image, every
        class with a probability above 0.5, the most probable first; may then be empty.
    """

    path: str
    label: int
    text: str
    probability: float
    labels: tuple[PredictedLabel, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A SavedModel that `trainer.serving.export` exported.

    Attributes:
      labels: class names by index.
      probabilities: function from serialised records to float32[records, classes].
    """

    labels: tuple[str, ...]
    probabilities: Callable[[Sequence[bytes]], np.ndarray]


def predict(
    model: str, paths: Sequence[str], refuse: Callable[[str, SourceError], object] | None = None
) -> list[Prediction]:
    """Classifies files with the same processing as in the ingest and evaluation of the training dataset.

    Examples:
      >>> from trainer import predict_files
      >>> [prediction.path for prediction in predict_files("model", ["photos/cat/000.jpg", "photos/dog/002.png"])]
      ['photos/cat/000.jpg', 'photos/dog/002.png']

    Args:
      model: directory of a SavedModel of `trainer.serving.export`, or of numbered versions of one.
      paths: image files of any format that the ingest supports.
      refuse: function of the path and error of a file that cannot be read or that the ingest would reject; the file is
        then skipped. Without this function, the first such file raises the error.

    Returns:
      one prediction per usable file, in the order of `paths`.

    Raises:
      OptionError: the model does not exist, or this release did not export it.
      SourceError: a file cannot be read, or the ingest would reject it, and there is no `refuse`.
    """
    path = newest_version(model)  # raises before any file is read
    spec = ServingSpec.read(path)
    loaded: ExportedModel | None = None
    predictions: list[Prediction] = []
    images = _normalise_files(paths, spec, refuse)
    while batch := list(islice(images, _BATCH_FILES)):
        loaded = loaded or load_model(path)
        rows = loaded.probabilities([_make_example(data) for _, data in batch])
        for (name, _), row in zip(batch, rows, strict=True):
            predictions.append(_make_prediction(name, row, loaded.labels, spec.multi_label))
    return predictions


def newest_version(model: str) -> str:
    """Returns the directory of the SavedModel: `model` itself, or its highest numbered sub-directory.

    Raises:
      OptionError: neither contains a SavedModel.
    """
    if os.path.isfile(os.path.join(model, "saved_model.pb")):
        return model
    names = [name for name in os.listdir(model) if name.isdigit()] if os.path.isdir(model) else []
    # The directory of a running or interrupted push has no `saved_model.pb` yet.
    versions = [name for name in names if os.path.isfile(os.path.join(model, name, "saved_model.pb"))]
    if not versions:
        pushed = os.path.join(model, "serving")
        advice = f"give {pushed}" if os.path.isdir(pushed) else "give the folder that `feedline run` pushed to"
        raise OptionError(f"{model} holds no model; {advice}")
    return os.path.join(model, max(versions, key=int))


def load_model(path: str) -> ExportedModel:
    """Loads class names and the signature `evaluate` of an exported model.

    Args:
      path: directory of the SavedModel.

    Raises:
      OptionError: Feedline did not export the model.
    """
    loaded = tf.saved_model.load(path)
    if EVALUATE_SIGNATURE not in loaded.signatures:
        raise OptionError(f"{path} was not exported by feedline: it has no signature {EVALUATE_SIGNATURE}")

    def probabilities(records: Sequence[bytes]) -> np.ndarray:
        # A reference to `loaded` keeps the variables of the model in memory.
        return loaded.signatures[EVALUATE_SIGNATURE](examples=tf.constant(list(records)))[PROBABILITIES].numpy()

    return ExportedModel(labels=tuple(read_json(path, DESCRIPTION_NAME)["labels"]), probabilities=probabilities)


def _make_prediction(path: str, probabilities: np.ndarray, labels: Sequence[str], multi_label: bool) -> Prediction:
    count = int((probabilities > THRESHOLD).sum()) if multi_label else 1
    order = np.argsort(-probabilities, kind="stable")[: max(1, count)]
    predicted = [
        PredictedLabel(label=int(index), text=labels[index], probability=float(probabilities[index])) for index in order
    ]
    best, labels_above = predicted[0], tuple(predicted[:count])
    return Prediction(path=path, label=best.label, text=best.text, probability=best.probability, labels=labels_above)


def _make_example(encoded: bytes) -> bytes:
    """Returns a serialised record with the feature that evaluation reads."""
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    return tf.train.Example(features=tf.train.Features(feature={record.ENCODED: value})).SerializeToString()


def _normalise_files(
    paths: Sequence[str], spec: ServingSpec, refuse: Callable[[str, SourceError], object] | None
) -> Iterator[tuple[str, bytes]]:
    """Yields (path, bytes that the ingest would store for the file)."""
    for path in paths:
        try:
            data = _normalise_file(path, spec)
        except SourceError as error:
            if not refuse:
                raise
            refuse(path, error)
            continue
        yield path, data


def _normalise_file(path: str, spec: ServingSpec) -> bytes:
    try:
        data = storage.read_range(path, 0, spec.limits.max_bytes + 1)  # one byte more, to detect a larger file
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    (result,) = sandbox.examine([data], spec.limits, spec.pixels, "basic", processes=1)
    if isinstance(result, Exception):
        raise SourceError(f"{path} is not a usable image: {result}") from result
    return result.stored or data  # `stored` is None if the ingest stores the file unchanged

"""Classify image files with a pushed model, through the same gate and normalisation as the ingest of its dataset.

Beside the graph of an exported model stand its classes, and what serving has to know of its dataset: `ServingSpec`.
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
from beam_jobs.errors import BadImage, OptionError, SourceError
from beam_jobs.images import sandbox
from beam_jobs.options import ImageLimits, PixelOptions

EVALUATE_SIGNATURE = "evaluate"  # serialised records in, for TFMA
PROBABILITIES = "probabilities"
# In the place where SavedModel keeps what is not its own. Models with equal descriptions take the same records and
# answer with the same classes, so that one can be measured against the other.
DESCRIPTION_NAME = "assets.extra/feedline.json"
SPEC_NAME = "assets.extra/serving.json"


@dataclass(frozen=True, kw_only=True)
class ServingSpec:
    """What serving has to know of the dataset that a model was trained on.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import ServingSpec
      >>> ServingSpec.of(load("dataset")).pixels.policy
      'copy'

    Attributes:
      pixels: what the ingest did to the pixels; a file to classify goes through the same.
      limits: what an image may be.
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
        """Reads the spec of an exported model.

        Args:
          model: directory of the SavedModel.

        Raises:
          OptionError: the model has none.
        """
        values = read_json(model, SPEC_NAME)
        return cls(
            pixels=PixelOptions(**values["pixels"]),
            limits=ImageLimits(**values["limits"]),
            multi_label=values["multi_label"],
        )

    def write(self, model: str) -> None:
        """Writes the spec beside the graph of an exported model."""
        write_json(model, SPEC_NAME, dataclasses.asdict(self))


def write_json(model: str, name: str, values: Any) -> None:
    """Writes a file of JSON beside the graph of an exported model, on any file system that TensorFlow writes."""
    import tensorflow as tf

    target = os.path.join(model, name)
    tf.io.gfile.makedirs(os.path.dirname(target))
    with tf.io.gfile.GFile(target, "w") as stream:
        stream.write(json.dumps(values, indent=2, ensure_ascii=False))


def read_json(model: str, name: str) -> Any:
    """Reads a file of JSON beside the graph of an exported model.

    Raises:
      OptionError: the model has none.
    """
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(os.path.join(model, name)) as stream:
            return json.loads(stream.read())
    except tf.errors.NotFoundError as error:
        raise OptionError(
            f"{model} has no {name}: an earlier release or another program exported it; run the pipeline again"
        ) from error


_BATCH = 64
THRESHOLD = 0.5  # over which an image has a label, as the metrics of several labels count it; see `losses.PerClass`


@dataclass(frozen=True, kw_only=True)
class PredictedLabel:
    """One label of an image.

    Attributes:
      label: 0-based index of the class among the labels of the model.
      text: class name.
      probability: of that class, 0-1.
    """

    label: int
    text: str
    probability: float


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
      label: 0-based index of the likeliest class among the labels of the model.
      text: its name.
      probability: of that class, 0-1.
      labels: of a model of one label an image, that class; of several labels an image, every class with a probability
        over 0.5, the most probable first, perhaps none.
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
      probabilities: serialised records -> float32[records, classes].
    """

    labels: tuple[str, ...]
    probabilities: Callable[[Sequence[bytes]], np.ndarray]


def predict(
    model: str, paths: Sequence[str], refuse: Callable[[str, SourceError], object] | None = None
) -> list[Prediction]:
    """Classifies files, in order, as images of the dataset that the model was trained on are evaluated.

    Examples:
      >>> from trainer import predict_files
      >>> [prediction.path for prediction in predict_files("model", ["photos/cat/000.jpg", "photos/dog/002.png"])]
      ['photos/cat/000.jpg', 'photos/dog/002.png']

    Args:
      model: directory of a SavedModel exported by `trainer.serving.export`, or of numbered versions of one.
      paths: image files of any format the ingest takes.
      refuse: takes the path and the error of a file that the ingest would reject, which is then left out; without it,
        the first such file raises.

    Returns:
      one prediction per file that can be used, in the order of `paths`.

    Raises:
      OptionError: there is no such model, or it was not exported by this release.
      SourceError: a file cannot be read, or the ingest would reject it.
    """
    path = newest_version(model)  # or a long list of files would be read for nothing
    spec = ServingSpec.read(path)
    loaded: ExportedModel | None = None
    predictions: list[Prediction] = []
    stored = _stored(paths, spec, refuse)
    while batch := list(islice(stored, _BATCH)):
        loaded = loaded or load_model(path)
        rows = loaded.probabilities([_example(data) for _, data in batch])
        predictions += [
            _prediction(name, row, loaded.labels, spec.multi_label) for (name, _), row in zip(batch, rows, strict=True)
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


def load_model(path: str) -> ExportedModel:
    """Loads the signature that evaluates records.

    Args:
      path: directory of the SavedModel.

    Raises:
      OptionError: it was not exported by feedline.
    """
    loaded = tf.saved_model.load(path)
    if EVALUATE_SIGNATURE not in loaded.signatures:
        raise OptionError(f"{path} was not exported by feedline: it has no signature {EVALUATE_SIGNATURE}")

    def probabilities(records: Sequence[bytes]) -> np.ndarray:
        # `loaded` must live as long as the signature: its variables die with it.
        return loaded.signatures[EVALUATE_SIGNATURE](examples=tf.constant(list(records)))[PROBABILITIES].numpy()

    return ExportedModel(labels=tuple(read_json(path, DESCRIPTION_NAME)["labels"]), probabilities=probabilities)


def _prediction(path: str, probabilities: np.ndarray, labels: Sequence[str], multi_label: bool) -> Prediction:
    order = np.argsort(-probabilities, kind="stable")
    predicted = [index for index in order if probabilities[index] > THRESHOLD] if multi_label else order[:1]
    best = int(order[0])
    return Prediction(
        path=path,
        label=best,
        text=labels[best],
        probability=float(probabilities[best]),
        labels=tuple(
            PredictedLabel(label=int(index), text=labels[index], probability=float(probabilities[index]))
            for index in predicted
        ),
    )


def _example(encoded: bytes) -> bytes:
    """Returns a record with what evaluation reads of one."""
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    return tf.train.Example(features=tf.train.Features(feature={record.ENCODED: value})).SerializeToString()


def _stored(
    paths: Sequence[str], spec: ServingSpec, refuse: Callable[[str, SourceError], object] | None
) -> Iterator[tuple[str, bytes]]:
    """Yields paths with what the ingest would store for their files."""
    for path in paths:
        data = _stored_bytes(path, spec) if not refuse else _stored_or_refused(path, spec, refuse)
        if data is not None:
            yield path, data


def _stored_or_refused(path: str, spec: ServingSpec, refuse: Callable[[str, SourceError], object]) -> bytes | None:
    try:
        return _stored_bytes(path, spec)
    except SourceError as error:
        refuse(path, error)
        return None


def _stored_bytes(path: str, spec: ServingSpec) -> bytes:
    try:
        data = storage.read_range(path, 0, spec.limits.max_bytes + 1)  # one more, so that the gate sees a larger file
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    (examined,) = sandbox.examine([data], spec.limits, spec.pixels, "basic", processes=1)
    if isinstance(examined, BadImage):
        raise SourceError(f"{path} is not a usable image: {examined}") from examined
    return examined[0]

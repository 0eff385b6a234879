"""What a model says of the held-back images, and where it is most sure of a wrong class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from beam_jobs import storage
from beam_jobs.dataset import tfrecord
from beam_jobs.errors import OptionError
from beam_jobs.types import LABEL_KINDS
from components.dataset_report import shown
from components.dataset_report.images import Facts, Images
from components.dataset_report.pictures import Album, Picture, Room

if TYPE_CHECKING:
    from trainer.serving.predict import ExportedModel

MOST_IMAGES = 2000  # shown to the model
_BATCH = 32
_MOST_MISTAKES = 24
_SIDE_PX = 200
_ROOM_BYTES = 600_000


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of the first images of a split, in stored order, which is that of a hash.

    Attributes:
      split: name.
      images: in the split; those asked about are the first.
      rows: of `images.parquet`, int64[asked].
      true: class indices, int64[asked].
      predicted: class indices, int64[asked].
      probabilities: float32[asked, classes].
    """

    split: str
    images: int
    rows: np.ndarray
    true: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray

    @property
    def certainty(self) -> np.ndarray:
        """Probability of the predicted class, float32[asked]."""
        return self.probabilities[np.arange(len(self.predicted)), self.predicted]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One image of which the model is wrong.

    Attributes:
      key: identity, as it is shown.
      predicted: class that the model predicts.
      true: class of the image.
      probability: of the predicted class, 0-1.
      true_probability: of the class of the image.
      picture: of it; None when the section is full.
      facts: about it.
    """

    key: str
    predicted: str
    true: str
    probability: float
    true_probability: float
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """The worst mistakes.

    Attributes:
      rows: most certain first.
      wrong: how many images the model is wrong about.
      asked: how many it was asked about.
      images: in the split.
      split: name.
    """

    rows: Sequence[Mistake]
    wrong: int
    asked: int
    images: int
    split: str


def predict(images: Images, directory: str, model: str, most: int = MOST_IMAGES) -> Predictions:
    """Asks a model about the held-back split, the second one if there are several.

    Args:
      images: of the dataset.
      directory: of the dataset.
      model: directory of the SavedModel.
      most: images at most.

    Raises:
      OptionError: the model, or the dataset, cannot be used for that.
      CorruptDataset: a record is damaged.
    """
    dataset = images.dataset
    if dataset.label_kind != "single":
        raise OptionError(f"the images have {LABEL_KINDS[dataset.label_kind]}; a model is judged on one label each")
    split = list(dataset.splits)[min(1, len(dataset.splits) - 1)]
    is_asked = images.is_written & (images.splits == split)
    order = np.lexsort((images.numbers("offset"), images.numbers("shard")))
    rows = order[is_asked[order]][:most]
    loaded = load_model(model)
    _check_labels(loaded.labels, dataset.labels)
    probabilities = np.concatenate(
        [_probabilities(loaded, batch) for batch in _batches(images, directory, split, len(rows))]
    )
    return Predictions(
        split=split,
        images=int(is_asked.sum()),
        rows=rows,
        true=images.numbers("label_index")[rows],
        predicted=probabilities.argmax(1),
        probabilities=probabilities,
    )


def load_model(model: str) -> ExportedModel:
    """Loads a model that takes records.

    Raises:
      OptionError: there is no such model, or it was exported by something else.
    """
    import tensorflow as tf

    from trainer.serving import predict as predicting

    if not tf.io.gfile.exists(storage.join(model, "saved_model.pb")):
        raise OptionError(f"{shown.place(model)} holds no model; give the folder that `feedline run` pushed to")
    return predicting.load_model(model)


def _check_labels(labels: Sequence[str], wanted: Sequence[str]) -> None:
    if len(labels) != len(wanted):
        raise OptionError(
            f"the model knows {len(labels)} classes, the dataset {len(wanted)}; give the model that was trained on it"
        )
    for index, (text, right) in enumerate(zip(labels, wanted, strict=True)):
        if text != right:
            raise OptionError(
                f"class {index} of the model is {text!r}, of the dataset {right!r}; "
                "give the model that was trained on it"
            )


def _probabilities(model: ExportedModel, records: Sequence[bytes]) -> np.ndarray:
    import tensorflow as tf

    try:
        return model.probabilities(records)
    except tf.errors.InvalidArgumentError as error:
        raise OptionError(
            "the model does not take the records of the dataset, which may be of another pixel policy; "
            "give the model that was trained on it"
        ) from error


def worst(images: Images, album: Album, predictions: Predictions) -> Mistakes:
    """Returns the images with the highest probability for a wrong class.

    Raises:
      CorruptDataset: a record is damaged.
    """
    wrong = np.flatnonzero(predictions.predicted != predictions.true)
    certain = predictions.certainty
    order = wrong[np.argsort(-certain[wrong], kind="stable")][:_MOST_MISTAKES]
    room = Room(_ROOM_BYTES)
    labels = images.dataset.labels
    rows = []
    for place in order:
        row = images.row(int(predictions.rows[place]))
        true, predicted = int(predictions.true[place]), int(predictions.predicted[place])
        rows.append(
            Mistake(
                key=shown.place(row["key"]),
                predicted=shown.text(labels[predicted], 60),
                true=shown.text(labels[true], 60),
                probability=float(certain[place]),
                true_probability=float(predictions.probabilities[place, true]),
                picture=album.draw(row, _SIDE_PX, room),
                facts=images.facts(row),
            )
        )
    return Mistakes(
        rows=rows,
        wrong=len(wrong),
        asked=len(predictions.predicted),
        images=predictions.images,
        split=predictions.split,
    )


def _batches(images: Images, directory: str, split: str, most: int) -> Iterator[list[bytes]]:
    """Yields lists of serialised records, the first `most` of a split in stored order."""
    batch: list[bytes] = []
    left = most
    for path in images.dataset.shard_paths(directory, split):
        with storage.open_read(path) as stream:
            for _, payload in tfrecord.read_records(stream, path):
                if not left:
                    break
                left -= 1
                batch.append(payload)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
    if batch:
        yield batch

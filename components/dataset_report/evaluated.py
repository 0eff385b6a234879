"""The model: what it says of the held-back images, where it is most sure of a wrong class, and its measurements.

The measurements are those of Evaluator, or those that the page makes itself by asking the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from beam_jobs import storage
from beam_jobs.common.strings import plural
from beam_jobs.dataset import tfrecord
from beam_jobs.errors import OptionError
from beam_jobs.types import LABEL_KINDS
from components.dataset_report import shown
from components.dataset_report.shown import Album, Facts, Images, Picture, Room
from components.evaluation import Accuracy, Bin, Calibration, Evaluation
from components.evaluation import Confusion as Counts

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


_MOST_ROWS = 300
_MOST_CONFUSED = 20
_MOST_PAIRS = 12
_LEVELS = 8  # shades of the heat map
_MOST_SLICES = 60
_MOST_COLUMNS = 8  # user columns that were measured by value
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the confusion matrix.

    Attributes:
      images: of the class of the row for which the model predicted the class of the column.
      share: of the images of the row, 0-1.
      level: shade, 0 for none up to `_LEVELS`.
    """

    images: int
    share: float
    level: int


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The confusion matrix, of the classes that are most confused.

    Attributes:
      labels: of rows and columns.
      rows: true class -> cells, one a predicted class.
      pairs: true class, predicted class, images and share of the true class; most images first.
      left_out: further classes.
    """

    labels: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    pairs: Sequence[tuple[str, str, int, float]]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """One bin of the calibration.

    Attributes:
      predicted: mean probability that the model gave, 0-1.
      right: share of right answers.
      images: in the bin.
      radius: of the dot, 2-8.
    """

    predicted: float
    right: float
    images: int
    radius: float


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What the page shows of a model.

    Attributes:
      overall: accuracy over all images.
      classes: class name -> accuracy; of very many, the worst.
      classes_left_out: further classes.
      precision: class name -> share of right answers among the images taken for it; empty when it was not measured.
      slices: user column -> value -> accuracy; of very many values, the worst.
      top: share of images whose class is among the five most likely; None when it was not measured.
      baseline: accuracy of the model blessed before; None when there was none.
      confusion: None when the pairs were not counted.
      calibration: one point a bin; empty when it was not measured.
      ece: expected calibration error, 0-1; None when it was not measured.
      note: what was measured on, when it was measured for this page.
      refused: a sentence for each limit that the model missed.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]
    classes_left_out: int = 0
    precision: Mapping[str, Accuracy]
    slices: Mapping[str, Mapping[str, Accuracy]]
    top: Accuracy | None
    baseline: Accuracy | None
    confusion: Confusion | None
    calibration: Sequence[Point]
    ece: float | None
    note: str = ""
    refused: Sequence[str] = ()


def evaluated(
    evaluation: Evaluation | None, predictions: Predictions | None, labels: Sequence[str]
) -> Evaluated | None:
    """Returns what is known of a model; None when nothing is.

    Args:
      evaluation: what Evaluator measured.
      predictions: what the model predicted for this page; fills in what the evaluation lacks.
      labels: class names by index.
    """
    measured_here = None if predictions is None else measure(predictions, labels)
    measured = evaluation or measured_here
    if measured is None:
        return None
    worst = sorted(measured.classes.items(), key=lambda item: (item[1].value, item[0]))[:_MOST_ROWS]
    counts = measured.confusion or (measured_here.confusion if measured_here else None)
    calibration = measured.calibration or (measured_here.calibration if measured_here else None)
    return Evaluated(
        overall=measured.overall,
        classes=dict(sorted(worst)),
        classes_left_out=len(measured.classes) - len(worst),
        precision=measured.precision,
        slices=_slices(measured.slices),
        top=measured.top_k,
        baseline=measured.baseline,
        confusion=confusion(counts["labels"], np.asarray(counts["counts"], np.int64)) if counts else None,
        calibration=_points(calibration["bins"]) if calibration else (),
        ece=calibration["ece"] if calibration else None,
        refused=measured.refused,
        note="" if evaluation or predictions is None else _note(predictions),
    )


def measure(predictions: Predictions, labels: Sequence[str]) -> Evaluation:
    """Returns what Evaluator would measure of these images.

    Args:
      predictions: of the model.
      labels: class names by index.
    """
    right = predictions.predicted == predictions.true
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (predictions.true, predictions.predicted), 1)
    diagonal, predicted, true = counts.diagonal(), counts.sum(0), counts.sum(1)
    return Evaluation(
        overall=_accuracy(right.sum(), len(right)),
        classes={labels[index]: _accuracy(diagonal[index], true[index]) for index in np.flatnonzero(true).tolist()},
        precision={label: _accuracy(diagonal[index], predicted[index]) for index, label in enumerate(labels)},
        confusion=Counts(labels=list(labels), counts=counts.tolist()),
        calibration=_calibration(predictions.certainty, right),
    )


def confusion(labels: Sequence[str], counts: np.ndarray) -> Confusion:
    """Returns the confusion matrix of the classes that are most confused.

    Args:
      labels: class names.
      counts: int64[classes, classes]; row: true class, column: predicted class.
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    trouble = wrong.sum(0) + wrong.sum(1)
    confused = np.sort(np.argsort(-trouble, kind="stable")[:_MOST_CONFUSED])
    totals = counts.sum(1)
    rows, columns = np.nonzero(wrong)
    order = np.lexsort((columns, rows, -wrong[rows, columns]))[:_MOST_PAIRS]
    pairs = [
        (labels[row], labels[column], int(wrong[row, column]), float(wrong[row, column] / totals[row]))
        for row, column in zip(rows[order], columns[order], strict=True)
    ]
    cells = [[_cell(int(counts[row, column]), int(totals[row])) for column in confused] for row in confused]
    return Confusion(
        labels=[labels[place] for place in confused], rows=cells, pairs=pairs, left_out=len(labels) - len(confused)
    )


def _accuracy(right: int, images: int) -> Accuracy:
    return Accuracy.from_share(float(right) / int(images) if images else 0.0, int(images))


def _calibration(certainty: np.ndarray, right: np.ndarray) -> Calibration:
    places = np.minimum((certainty * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for place in range(_BINS):
        found = places == place
        bins.append(
            Bin(
                low=place / _BINS,
                high=(place + 1) / _BINS,
                mean_predicted=float(certainty[found].mean()) if found.any() else 0.0,
                share_right=float(right[found].mean()) if found.any() else 0.0,
                images=int(found.sum()),
            )
        )
    error = sum(item["images"] * abs(item["mean_predicted"] - item["share_right"]) for item in bins)
    return Calibration(bins=bins, ece=error / max(1, len(right)))


def _cell(images: int, total: int) -> Cell:
    share = images / total if total else 0.0
    # Never no shade for a single mistake, which is what one looks for.
    return Cell(images=images, share=share, level=max(1, round(_LEVELS * share)) if images else 0)


def _points(bins: Sequence[Bin]) -> list[Point]:
    filled = [item for item in bins if item["images"]]
    most = max((item["images"] for item in filled), default=1)
    return [
        Point(
            predicted=float(item["mean_predicted"]),
            right=float(item["share_right"]),
            images=int(item["images"]),
            radius=round(2 + 6 * (item["images"] / most) ** 0.5, 1),
        )
        for item in filled
    ]


def _slices(slices: Mapping[str, Mapping[str, Accuracy]]) -> dict[str, dict[str, Accuracy]]:
    return {
        feature: dict(sorted(values.items(), key=lambda item: (item[1].value, item[0]))[:_MOST_SLICES])
        for feature, values in list(slices.items())[:_MOST_COLUMNS]
    }


def _note(predictions: Predictions) -> str:
    count = len(predictions.predicted)
    if count == predictions.images:
        return f"Measured for this page on all {plural(count, 'image')} of {predictions.split}."
    return f"Measured for this page on {count:,} of the {predictions.images:,} images of {predictions.split}."

"""Sections about the model: predictions on the evaluation split, the worst mistakes, and the figures.

The figures are those of Evaluator, or computed for the page from the predictions.
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
from components.dataset_report.shown import ByteBudget, Facts, Images, Picture, Renderer
from components.evaluation import Accuracy, Bin, Calibration, Evaluation
from components.evaluation import Confusion as Counts

if TYPE_CHECKING:
    from trainer.serving.predict import ExportedModel


MOST_IMAGES = 2000  # in predictions
_BATCH = 32
_MOST_MISTAKES = 24
_SIDE_PX = 200
_BUDGET_BYTES = 600_000


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of a model for the first n images of a split in stored order, which is that of a hash.

    Attributes:
      split: name of the split.
      images: number of images in the split, at least n.
      rows: rows of the image table, int64[n].
      true: true class indices, int64[n].
      predicted: predicted class indices, int64[n].
      probabilities: float32[n, classes].
    """

    split: str
    images: int
    rows: np.ndarray
    true: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray

    @property
    def certainty(self) -> np.ndarray:
        """Probability of the predicted class, float32[n]."""
        return self.probabilities[np.arange(len(self.predicted)), self.predicted]

    def fact(self, index: int, labels: Sequence[str]) -> tuple[str, str]:
        """Returns the predicted class of an image and its probability, to display with the large picture."""
        label = int(self.predicted[index])
        return "Predicted", f"{shown.text(labels[label], 60)}, {shown.percent(float(self.probabilities[index, label]))}"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An image with a wrong prediction.

    Attributes:
      key: key of the image, as display text.
      predicted: predicted class.
      true: true class.
      probability: probability of the predicted class, 0-1.
      true_class_probability: probability of the true class, 0-1.
      picture: picture of the image; None if the section is full.
      facts: names and values about the image.
    """

    key: str
    predicted: str
    true: str
    probability: float
    true_class_probability: float
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """The worst mistakes.

    Attributes:
      rows: mistakes by descending probability.
      wrong: number of wrong predictions.
      predicted: number of predictions.
      images: number of images in the split.
      split: name of the split.
    """

    rows: Sequence[Mistake]
    wrong: int
    predicted: int
    images: int
    split: str


_FIRST_RECORDS = """
    SELECT row, label_index FROM images WHERE place = $split ORDER BY shard, "offset" LIMIT $most"""


def predict(images: Images, directory: str, model: str, most: int = MOST_IMAGES) -> Predictions:
    """Returns predictions for the evaluation split, the second one if there are several.

    Args:
      images: images of the dataset.
      directory: directory of the dataset.
      model: directory of the SavedModel.
      most: largest number of images.

    Raises:
      OptionError: the model does not fit the dataset, or the images do not have one label each.
      CorruptDataset: a record is damaged.
    """
    dataset = images.dataset
    if dataset.label_kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[dataset.label_kind]}; a report with a model needs one label per image"
        )
    split = list(dataset.splits)[min(1, len(dataset.splits) - 1)]
    first = images.database.query(_FIRST_RECORDS, split=split, most=most)
    rows = first["row"].to_numpy()
    loaded = load_model(model)
    _check_labels(loaded.labels, dataset.labels)
    probabilities = np.concatenate(
        [_probabilities(loaded, batch) for batch in _batches(images, directory, split, len(rows))]
    )
    return Predictions(
        split=split,
        images=images.database.number("SELECT count(*) FROM images WHERE place = $split", split=split),
        rows=rows,
        true=first["label_index"].to_numpy(),
        predicted=probabilities.argmax(1),
        probabilities=probabilities,
    )


def load_model(model: str) -> ExportedModel:
    """Loads a model that takes records.

    Raises:
      OptionError: the model does not exist, or was not exported by Feedline.
    """
    import tensorflow as tf

    from trainer.serving import predict as predicting

    if not tf.io.gfile.exists(storage.join(model, "saved_model.pb")):
        raise OptionError(f"{shown.short_path(model)} holds no model; give the folder that `feedline run` pushed to")
    return predicting.load_model(model)


def _check_labels(labels: Sequence[str], expected: Sequence[str]) -> None:
    if len(labels) != len(expected):
        raise OptionError(
            f"the model has {len(labels)} classes, the dataset {len(expected)}; give the model that was trained on it"
        )
    for index, (label, expected_label) in enumerate(zip(labels, expected, strict=True)):
        if label != expected_label:
            raise OptionError(
                f"class {index} of the model is {label!r}, of the dataset {expected_label!r}; "
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


def worst_mistakes(images: Images, renderer: Renderer, predictions: Predictions) -> Mistakes:
    """Returns the images with the highest probability for a wrong class.

    Raises:
      CorruptDataset: a record is damaged.
    """
    wrong = np.flatnonzero(predictions.predicted != predictions.true)
    certainty = predictions.certainty
    order = wrong[np.argsort(-certainty[wrong], kind="stable")][:_MOST_MISTAKES]
    budget = ByteBudget(_BUDGET_BYTES)
    labels = images.dataset.labels
    rows = []
    for index in order:
        row = images.row(int(predictions.rows[index]))
        true, predicted = int(predictions.true[index]), int(predictions.predicted[index])
        rows.append(
            Mistake(
                key=shown.short_path(row["key"]),
                predicted=shown.text(labels[predicted], 60),
                true=shown.text(labels[true], 60),
                probability=float(certainty[index]),
                true_class_probability=float(predictions.probabilities[index, true]),
                picture=renderer.render(row, _SIDE_PX, budget),
                facts=(
                    predictions.fact(index, labels),
                    ("Probability of the true class", shown.percent(float(predictions.probabilities[index, true]))),
                    *images.facts(row),
                ),
            )
        )
    return Mistakes(
        rows=rows,
        wrong=len(wrong),
        predicted=len(predictions.predicted),
        images=predictions.images,
        split=predictions.split,
    )


def _batches(images: Images, directory: str, split: str, count: int) -> Iterator[list[bytes]]:
    """Yields batches of the first `count` serialised records of a split in stored order."""
    batch: list[bytes] = []
    for path in images.dataset.shard_paths(directory, split):
        with storage.open_read(path) as stream:
            for _, payload in tfrecord.read_records(stream, path):
                if not count:
                    break
                count -= 1
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
_MOST_COLUMNS = 8  # user columns with figures by value
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of the confusion matrix.

    Attributes:
      images: number of images.
      share: share of the images of the row, 0-1.
      level: shade, from 0 for no image to `_LEVELS`.
    """

    images: int
    share: float
    level: int


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The confusion matrix of the most confused classes.

    Attributes:
      labels: class names of rows and columns.
      rows: cells by true class (row) and predicted class (column).
      pairs: true class, predicted class, images and share of the true class, by descending images.
      left_out: number of omitted classes.
    """

    labels: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    pairs: Sequence[tuple[str, str, int, float]]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """A bin in the calibration chart.

    Attributes:
      predicted: mean predicted probability, 0-1.
      right: share of correct predictions, 0-1.
      images: number of images.
      radius: radius of the dot, 2-8.
    """

    predicted: float
    right: float
    images: int
    radius: float


@dataclass(frozen=True, kw_only=True)
class EvaluationView:
    """The section of the evaluation.

    Attributes:
      overall: accuracy over all images.
      classes: class name -> recall of the worst classes.
      classes_left_out: number of omitted classes.
      precision: class name -> precision; empty if not measured.
      f1: class name -> harmonic mean of recall and precision by image, 0-1; empty if not measured.
      averages: name, recall, precision and F1 of the average over all classes, and of that weighted by their images.
      slices: user column -> value -> accuracy of the worst values.
      slice_largest: user column -> value -> accuracy of always answering with the largest class of these images, 0-1.
      top: share of images whose class is among the five most likely; None if not measured.
      baseline: accuracy of the previous blessed model; None without one.
      largest_class_share: accuracy of always answering with the largest class, 0-1; None if not measured.
      confusion: confusion matrix; None if not measured.
      calibration: a point for each bin; empty if not measured.
      ece: expected calibration error, 0-1; None if not measured.
      note: images of the figures, if they were computed for this page.
      refused: a sentence for each threshold that the model missed.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]
    classes_left_out: int = 0
    precision: Mapping[str, Accuracy]
    f1: Mapping[str, float]
    averages: Sequence[tuple[str, float, float, float]]
    slices: Mapping[str, Mapping[str, Accuracy]]
    slice_largest: Mapping[str, Mapping[str, float]]
    top: Accuracy | None
    baseline: Accuracy | None
    largest_class_share: float | None
    confusion: Confusion | None
    calibration: Sequence[Point]
    ece: float | None
    note: str = ""
    refused: Sequence[str] = ()


def evaluation_view(
    evaluation: Evaluation | None, predictions: Predictions | None, labels: Sequence[str]
) -> EvaluationView | None:
    """Returns the section of the evaluation; None without evaluation and predictions.

    Args:
      evaluation: figures of Evaluator.
      predictions: predictions for this page, for figures that the evaluation lacks.
      labels: class names by index.
    """
    computed = None if predictions is None else measure(predictions, labels)
    figures = evaluation or computed
    if figures is None:
        return None
    worst = sorted(figures.classes.items(), key=lambda item: (item[1].value, item[0]))[:_MOST_ROWS]
    counts = figures.confusion or (computed.confusion if computed else None)
    calibration = figures.calibration or (computed.calibration if computed else None)
    own = figures.confusion
    f1, averages = _f1(own["labels"], np.asarray(own["counts"], np.float64)) if own else ({}, [])
    return EvaluationView(
        overall=figures.overall,
        classes=dict(sorted(worst)),
        classes_left_out=len(figures.classes) - len(worst),
        precision=figures.precision,
        f1=f1,
        averages=averages,
        slices=_slices(figures.slices),
        slice_largest=figures.slice_largest,
        top=figures.top_k,
        baseline=figures.baseline,
        largest_class_share=figures.largest_class_share,
        confusion=confusion(counts["labels"], np.asarray(counts["counts"], np.int64)) if counts else None,
        calibration=_points(calibration["bins"]) if calibration else (),
        ece=calibration["ece"] if calibration else None,
        refused=figures.refused,
        note="" if evaluation or predictions is None else _note(predictions),
    )


def _f1(labels: Sequence[str], counts: np.ndarray) -> tuple[dict[str, float], list[tuple[str, float, float, float]]]:
    """Returns F1 by class, and the averages, of the images of a confusion matrix: weights do not count."""
    true, predicted, right = counts.sum(1), counts.sum(0), counts.diagonal()
    recall, precision = right / np.maximum(true, 1), right / np.maximum(predicted, 1)
    f1 = 2 * right / np.maximum(true + predicted, 1)
    used = true > 0
    if not used.any():
        return {}, []
    values = np.stack([recall, precision, f1], 1)[used]
    macro, weighted = values.mean(0).tolist(), np.average(values, 0, true[used]).tolist()
    averages = [("Macro average", *macro), ("Weighted average", *weighted)]
    return dict(zip(labels, f1.tolist(), strict=True)), averages


def measure(predictions: Predictions, labels: Sequence[str]) -> Evaluation:
    """Returns the figures of Evaluator for these images.

    Args:
      predictions: predictions of the model.
      labels: class names by index.
    """
    is_correct = predictions.predicted == predictions.true
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (predictions.true, predictions.predicted), 1)
    diagonal, predicted, true = counts.diagonal(), counts.sum(0), counts.sum(1)
    return Evaluation(
        overall=_accuracy(is_correct.sum(), len(is_correct)),
        classes={labels[index]: _accuracy(diagonal[index], true[index]) for index in np.flatnonzero(true).tolist()},
        precision={label: _accuracy(diagonal[index], predicted[index]) for index, label in enumerate(labels)},
        confusion=Counts(labels=list(labels), counts=counts.tolist()),
        calibration=_calibration(predictions.certainty, is_correct),
        largest_class_share=float(true.max() / len(is_correct)) if len(is_correct) else None,
    )


def confusion(labels: Sequence[str], counts: np.ndarray) -> Confusion:
    """Returns the confusion matrix of the most confused classes.

    Args:
      labels: class names by index.
      counts: images by true class (row) and predicted class (column), int64[classes, classes].
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    mistakes = wrong.sum(0) + wrong.sum(1)
    confused = np.sort(np.argsort(-mistakes, kind="stable")[:_MOST_CONFUSED])
    totals = counts.sum(1)
    rows, columns = np.nonzero(wrong)
    order = np.lexsort((columns, rows, -wrong[rows, columns]))[:_MOST_PAIRS]
    pairs = [
        (labels[row], labels[column], int(wrong[row, column]), float(wrong[row, column] / totals[row]))
        for row, column in zip(rows[order], columns[order], strict=True)
    ]
    cells = [[_cell(int(counts[row, column]), int(totals[row])) for column in confused] for row in confused]
    return Confusion(
        labels=[labels[index] for index in confused], rows=cells, pairs=pairs, left_out=len(labels) - len(confused)
    )


def _accuracy(correct: int, images: int) -> Accuracy:
    return Accuracy.from_share(float(correct) / int(images) if images else 0.0, int(images))


def _calibration(certainty: np.ndarray, is_correct: np.ndarray) -> Calibration:
    indices = np.minimum((certainty * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for index in range(_BINS):
        mask = indices == index
        bins.append(
            Bin(
                low=index / _BINS,
                high=(index + 1) / _BINS,
                mean_predicted=float(certainty[mask].mean()) if mask.any() else 0.0,
                share_right=float(is_correct[mask].mean()) if mask.any() else 0.0,
                images=int(mask.sum()),
            )
        )
    error = sum(item["images"] * abs(item["mean_predicted"] - item["share_right"]) for item in bins)
    return Calibration(bins=bins, ece=error / max(1, len(is_correct)))


def _cell(images: int, total: int) -> Cell:
    share = images / total if total else 0.0
    # At least the first shade, so that a single mistake is visible.
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

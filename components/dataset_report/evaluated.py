"""Sections of the report about the model: accuracies and other metrics, and the worst mistakes on the evaluation split.

The metrics are those of Evaluator, or are computed from the predictions of the model for this page.
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


MOST_IMAGES = 2000  # maximum number of predictions
_BATCH = 32
_MAX_MISTAKES = 24
_SIDE_PX = 200
_BUDGET_BYTES = 600_000


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of a model for the first n images of a split in stored order, a random sample.

    Attributes:
      split: name of the split.
      images: number of all images in the split, at least n.
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
        """Returns the predicted class of an image and its probability, to display with the enlarged picture."""
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
      picture: picture of the image; None if the size limit of the section is reached.
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
      predicted: number of images with a prediction.
      images: number of all images in the split.
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
    """Returns predictions for the evaluation split: the second split, or the only one.

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
    first_records = images.database.query(_FIRST_RECORDS, split=split, most=most)
    rows = first_records["row"].to_numpy()
    loaded = load_model(model)
    _check_labels(loaded.labels, dataset.labels)
    probabilities = np.concatenate(
        [_probabilities(loaded, batch) for batch in _batches(images, directory, split, len(rows))]
    )
    return Predictions(
        split=split,
        images=images.database.number("SELECT count(*) FROM images WHERE place = $split", split=split),
        rows=rows,
        true=first_records["label_index"].to_numpy(),
        predicted=probabilities.argmax(1),
        probabilities=probabilities,
    )


def load_model(model: str) -> ExportedModel:
    """Loads a model, whose input is records.

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
            "the model cannot read the records of the dataset, which may have another pixel policy; "
            "give the model that was trained on it"
        ) from error


def worst_mistakes(images: Images, renderer: Renderer, predictions: Predictions) -> Mistakes:
    """Returns the wrong predictions with the highest probability.

    Raises:
      CorruptDataset: a record is damaged.
    """
    wrong_images = np.flatnonzero(predictions.predicted != predictions.true)
    certainty = predictions.certainty
    order = wrong_images[np.argsort(-certainty[wrong_images], kind="stable")][:_MAX_MISTAKES]
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
        wrong=len(wrong_images),
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


_MAX_ROWS = 300
_MAX_CONFUSED = 20
_MAX_PAIRS = 12
_LEVELS = 8  # number of shades of the confusion matrix
_MAX_SLICES = 60
_MAX_COLUMNS = 8  # maximum number of user columns with accuracies for each value
_BINS = 10  # of the calibration


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
    """The confusion matrix of the classes with the most mistakes.

    Attributes:
      labels: class names of rows and columns.
      rows: cells by true class (row) and predicted class (column).
      pairs: true class, predicted class, number of images and share of the true class, by descending number.
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
      radius: radius of the dot, 2-8, in units of the chart.
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
      classes: class name -> recall, of the classes with the lowest recall.
      classes_left_out: number of omitted classes.
      precision: class name -> precision; empty if not measured.
      f1: class name -> harmonic mean of recall and precision by image, 0-1; empty if not measured.
      averages: name, recall, precision and F1 of the average over all classes, and of the average weighted by images.
      slices: user column -> value -> accuracy, of the values with the lowest accuracy.
      slice_largest: user column -> value -> accuracy of always answering with the largest class of these images, 0-1.
      top: share of images whose class is among the five most likely; None if not measured.
      baseline: accuracy of the previous blessed model; None if there is none.
      largest_class_share: accuracy of always answering with the largest class, 0-1; None if not measured.
      confusion: confusion matrix; None if not measured.
      calibration: a point for each bin; empty if not measured.
      ece: expected calibration error, 0-1; None if not measured.
      note: sentence with the number of images, for results that were computed for this page; otherwise empty.
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
    """Returns the section of the evaluation; None if there are neither results of Evaluator nor predictions.

    Args:
      evaluation: results of Evaluator, or None.
      predictions: predictions for this page, for results that are missing in the evaluation; or None.
      labels: class names by index.
    """
    computed = None if predictions is None else measure(predictions, labels)
    results = evaluation or computed
    if results is None:
        return None
    worst_classes = sorted(results.classes.items(), key=lambda item: (item[1].value, item[0]))[:_MAX_ROWS]
    counts = results.confusion or (computed.confusion if computed else None)
    calibration = results.calibration or (computed.calibration if computed else None)
    matrix = results.confusion  # not `counts`: F1 must have the same images as recall and precision
    f1, averages = _f1(matrix["labels"], np.asarray(matrix["counts"], np.float64)) if matrix else ({}, [])
    return EvaluationView(
        overall=results.overall,
        classes=dict(sorted(worst_classes)),
        classes_left_out=len(results.classes) - len(worst_classes),
        precision=results.precision,
        f1=f1,
        averages=averages,
        slices=_worst_slices(results.slices),
        slice_largest=results.slice_largest,
        top=results.top_k,
        baseline=results.baseline,
        largest_class_share=results.largest_class_share,
        confusion=confusion(counts["labels"], np.asarray(counts["counts"], np.int64)) if counts else None,
        calibration=_points(calibration["bins"]) if calibration else (),
        ece=calibration["ece"] if calibration else None,
        refused=results.refused,
        note="" if evaluation or predictions is None else _sample_note(predictions),
    )


def _f1(labels: Sequence[str], counts: np.ndarray) -> tuple[dict[str, float], list[tuple[str, float, float, float]]]:
    """Returns F1 by class, and the averages, from the counts of a confusion matrix, which ignore weights."""
    true, predicted, right = counts.sum(1), counts.sum(0), counts.diagonal()
    recall, precision = right / np.maximum(true, 1), right / np.maximum(predicted, 1)
    f1 = 2 * right / np.maximum(true + predicted, 1)
    has_images = true > 0
    if not has_images.any():
        return {}, []
    values = np.stack([recall, precision, f1], 1)[has_images]
    macro, weighted = values.mean(0).tolist(), np.average(values, 0, true[has_images]).tolist()
    averages = [("Macro average", *macro), ("Weighted average", *weighted)]
    return dict(zip(labels, f1.tolist(), strict=True)), averages


def measure(predictions: Predictions, labels: Sequence[str]) -> Evaluation:
    """Returns the same metrics as Evaluator, for the images of the predictions.

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
    """Returns the confusion matrix of the classes with the most mistakes.

    Args:
      labels: class names by index.
      counts: number of images by true class (row) and predicted class (column), int64[classes, classes].
    """
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    mistakes = errors.sum(0) + errors.sum(1)
    indices = np.sort(np.argsort(-mistakes, kind="stable")[:_MAX_CONFUSED])
    totals = counts.sum(1)
    rows, columns = np.nonzero(errors)
    order = np.lexsort((columns, rows, -errors[rows, columns]))[:_MAX_PAIRS]
    pairs = [
        (labels[row], labels[column], int(errors[row, column]), float(errors[row, column] / totals[row]))
        for row, column in zip(rows[order], columns[order], strict=True)
    ]
    cells = [[_cell(int(counts[row, column]), int(totals[row])) for column in indices] for row in indices]
    return Confusion(
        labels=[labels[index] for index in indices], rows=cells, pairs=pairs, left_out=len(labels) - len(indices)
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
    # At least shade 1, so that a single mistake is visible.
    return Cell(images=images, share=share, level=max(1, round(_LEVELS * share)) if images else 0)


def _points(bins: Sequence[Bin]) -> list[Point]:
    nonempty_bins = [item for item in bins if item["images"]]
    most = max((item["images"] for item in nonempty_bins), default=1)
    return [
        Point(
            predicted=float(item["mean_predicted"]),
            right=float(item["share_right"]),
            images=int(item["images"]),
            radius=round(2 + 6 * (item["images"] / most) ** 0.5, 1),
        )
        for item in nonempty_bins
    ]


def _worst_slices(slices: Mapping[str, Mapping[str, Accuracy]]) -> dict[str, dict[str, Accuracy]]:
    return {
        feature: dict(sorted(values.items(), key=lambda item: (item[1].value, item[0]))[:_MAX_SLICES])
        for feature, values in list(slices.items())[:_MAX_COLUMNS]
    }


def _sample_note(predictions: Predictions) -> str:
    count = len(predictions.predicted)
    if count == predictions.images:
        return f"Measured for this page on all {plural(count, 'image')} of {predictions.split}."
    return f"Measured for this page on {count:,} of the {predictions.images:,} images of {predictions.split}."

"""Sections of the report about the training: examples of augmented images, and the metrics by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_jobs.common import strings
from beam_jobs.dataset import record
from beam_jobs.errors import UsageError
from components.dataset_report import shown
from components.dataset_report.shown import ByteBudget, Facts, Images, Picture, Renderer, render_pixels

if TYPE_CHECKING:
    from trainer.ops import Op

_MAX_IMAGES = 8
TRAINING_INPUTS = 6  # inputs of each image, one for each of the first epochs
_SIDE_PX = 160
# The ops run in this process, after a decoder process has decoded the image: 24 Mpx are 72 MB, and 288 MB as floats.
_MAX_PIXELS = 24_000_000
_BUDGET_BYTES = 700_000


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image as input of the model.

    Attributes:
      key: key of the image, as display text.
      label: class of the image.
      stored: the stored image.
      training: pictures of the inputs of the model in the first epochs.
      evaluation: picture of the input of the model in evaluation and serving.
      facts: names and values about the image.
    """

    key: str
    label: str
    stored: Picture
    training: Sequence[Picture]
    evaluation: Picture
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The preview of the op chains of training and evaluation.

    Attributes:
      train_ops: op chain of training, as text.
      eval_ops: op chain of evaluation, as text.
      side_px: height and width of the inputs of the model, pixels.
      examples: a few images of the first split, from as many classes as possible.
      problem: error because of which there are no examples, or not all; empty if there is none.
    """

    train_ops: str
    eval_ops: str
    side_px: int
    examples: Sequence[Example]
    problem: str = ""


def augmentation(images: Images, renderer: Renderer, input_options: Mapping[str, Any]) -> Augmentation:
    """Returns the preview of a few images as inputs of training and evaluation.

    The random numbers depend only on the key of the image, the seed and the epoch, so that the first epochs of a
    training with these options have exactly these inputs.

    Args:
      images: images of the dataset.
      renderer: reads the records and renders the pictures.
      input_options: `InputOptions` as JSON values.

    Raises:
      OptionError: an option is out of range.
      CorruptDataset: a record is damaged.
    """
    import tensorflow as tf

    from trainer.input.parse import adapt_ops_to_records
    from trainer.input_fn import evaluation_ops
    from trainer.ops import parse_ops
    from trainer.options import InputOptions

    options = InputOptions.from_json(input_options)
    examples: list[Example] = []
    problem = ""
    try:
        train_ops = _picture_ops(adapt_ops_to_records(parse_ops(options.train_spec), images.dataset))
        eval_ops = _picture_ops(adapt_ops_to_records(evaluation_ops(options), images.dataset))
        budget = ByteBudget(_BUDGET_BYTES)
        for _, row in _sample(images):
            example = _example(images, renderer, row, (train_ops, eval_ops, options.seed), budget)
            examples += [example] if example else []
    except UsageError as error:
        problem = str(error)
    except tf.errors.InvalidArgumentError as error:
        problem = f"the ops fail on an image: {shown.text(error.message.splitlines()[0], 240)}"
    return Augmentation(
        train_ops=options.train_spec,
        eval_ops=options.eval_spec,
        side_px=options.image_side_px,
        examples=examples,
        problem=problem,
    )


def apply_chain(ops: Sequence[Op], values: Mapping[str, list], seed: int, epoch: int) -> np.ndarray:
    """Returns the result of an op chain for a record, uint8[height, width, 3].

    Args:
      ops: ops of the chain, adapted to the stored form of the images.
      values: feature name -> values of the record.
      seed: seed of the input options.
      epoch: epoch, from 0.
    """
    import tensorflow as tf

    from trainer.input.parse import derive_image_seeds
    from trainer.ops import IMAGE, apply_ops

    image_seed = derive_image_seeds(tf.constant(values[record.FILENAME][0]), tf.constant(epoch, tf.int64), seed)
    features = {
        IMAGE: tf.constant(values[record.ENCODED][0]),
        record.HEIGHT: tf.constant(values[record.HEIGHT][0], tf.int64),
        record.WIDTH: tf.constant(values[record.WIDTH][0], tf.int64),
    }
    with tf.device("cpu"):
        return apply_ops(ops, features, image_seed)[IMAGE].numpy()


def _picture_ops(ops: Sequence[Op]) -> list[Op]:
    """Returns the ops whose result is a picture: all except conversions to floats and ops that mix images."""
    from trainer.ops import MixingOp, Normalize

    return [op for op in ops if not isinstance(op, (MixingOp, Normalize))]


# The first image of each class, then the second image of each class, and so on.
_SAMPLE = """
    SELECT row FROM (
        SELECT row, row_number() OVER (PARTITION BY labels ORDER BY row) AS nth,
            min(row) OVER (PARTITION BY labels) AS first
        FROM images WHERE place = $split)
    ORDER BY nth, first LIMIT $most"""


def _sample(images: Images) -> list[tuple[int, dict[str, Any]]]:
    """Returns row numbers and rows of a few images of the first split, from as many classes as possible."""
    split = next(iter(images.dataset.splits))
    numbers = images.database.column(_SAMPLE, split=split, most=_MAX_IMAGES).tolist()
    rows = [(number, images.row(number)) for number in numbers]
    return sorted(rows, key=lambda item: (images.labels(item[1]), item[0]))


def _example(
    images: Images, renderer: Renderer, row: dict[str, Any], chains: tuple[list[Op], list[Op], int], budget: ByteBudget
) -> Example | None:
    train_ops, eval_ops, seed = chains
    values = renderer.values(row)
    stored_picture = budget.spend(renderer.picture(row, values, _SIDE_PX, _MAX_PIXELS))
    if stored_picture is None or stored_picture.problem:
        return None
    inputs = [apply_chain(train_ops, values, seed, epoch) for epoch in range(TRAINING_INPUTS)]
    training_pictures = [budget.spend(render_pixels(pixels, _SIDE_PX)) for pixels in inputs]
    eval_picture = budget.spend(render_pixels(apply_chain(eval_ops, values, seed, 0), _SIDE_PX))
    if eval_picture is None:
        return None
    return Example(
        key=shown.short_path(row["key"]),
        label=shown.text(", ".join(images.labels(row)), 60),
        stored=stored_picture,
        training=[picture for picture in training_pictures if picture],
        evaluation=eval_picture,
        facts=images.facts(row),
    )


_MAX_EPOCHS, _CHART_WIDTH, _CHART_HEIGHT = 500, 400.0, 120.0  # width and height in pixels


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A chart of a metric, such as `loss`, in training and validation by epoch.

    Attributes:
      name: name of the metric.
      low: value at the lower edge.
      high: value at the upper edge.
      lines: name of the metric in training, or in validation (`val_...`) -> points of its SVG line.
      best: x and y, pixels, and text of the best value of the validation, or of the training if there is none.
    """

    name: str
    low: float
    high: float
    lines: Mapping[str, str]
    best: tuple[float, float, str]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The section of the training of the model.

    Attributes:
      properties: names and values of properties of the training.
      curves: charts of loss, accuracy and AUC by epoch.
      best_x: x of the exported epoch, pixels; None if the last epoch is exported.
      columns: names of the columns of the table.
      epochs: values of each epoch, as text; of a long training, only every n-th epoch.
    """

    properties: Sequence[tuple[str, str]]
    curves: Sequence[Curves]
    best_x: float | None
    columns: Sequence[str]
    epochs: Sequence[Sequence[str]]


_COLUMNS = {
    "loss": "Loss",
    "val_loss": "Loss of validation",
    "accuracy": "Accuracy",
    "val_accuracy": "Accuracy of validation",
    "learning_rate": "Learning rate",
    "images_per_second": "Images/s",
    "input_wait": "Waited for input",
}


def training(values: Mapping[str, Any]) -> Training:
    """Returns the section for the content of a `training.json`; missing keys result in empty fields."""
    history = {name: list(map(float, series)) for name, series in values.get("history", {}).items()}
    options, best = dict(values.get("config", {}).get("train", {})), dict(values.get("best", {}))
    best = best if best.get("value") is not None else {}
    epoch_count = max(map(len, history.values()), default=0)
    seconds, is_best_exported = sum(history.get("train_seconds", ())), values.get("exported") == "best"
    properties = [
        ("Model", shown.text(options.get("model", ""), 200)),
        ("Parameters", f"{values['parameters']:,}" if "parameters" in values else ""),
        ("Optimizer", shown.text(options.get("optimizer", ""))),
        ("Learning rate", f"{options['learning_rate']:g}, {options['schedule']}" if "schedule" in options else ""),
        ("Epochs", f"{epoch_count} of {options.get('epochs', epoch_count)}"),
        ("Best epoch", f"{best['epoch'] + 1}, by {best['monitor']}" if best else ""),
        ("Exported", "the best epoch" if is_best_exported else "the last epoch"),
        ("Duration of the steps", strings.clock_time(seconds) if seconds else ""),
        ("Waited for input", shown.percent(values.get("input_wait", 0.0))),
    ]
    columns = [name for name in _COLUMNS if name in history]
    return Training(
        properties=[(name, value) for name, value in properties if value],
        curves=[curves for name in ("loss", "accuracy", "auc") if (curves := _curves(name, history))],
        best_x=_epoch_x(best["epoch"], epoch_count) if is_best_exported and best else None,
        columns=[_COLUMNS[name] for name in columns],
        epochs=[
            [str(epoch + 1), *(_metric_text(name, history[name], epoch - epoch_count) for name in columns)]
            for epoch in range(0, epoch_count, _epoch_stride(epoch_count))
        ],
    )


def _epoch_stride(epoch_count: int) -> int:
    return max(1, -(-epoch_count // _MAX_EPOCHS))


def _metric_text(name: str, series: Sequence[float], index: int) -> str:
    """Returns the value at a negative index as text; "-" for epochs before an update of Feedline added the metric."""
    if -index > len(series):
        return "-"
    return shown.percent(series[index]) if name == "input_wait" else f"{series[index]:.4g}"


def _epoch_x(epoch: int, epoch_count: int) -> float:
    return _CHART_WIDTH * epoch / max(1, epoch_count - 1)


def _curves(name: str, history: Mapping[str, Sequence[float]]) -> Curves | None:
    lines = {key: history[key] for key in (name, f"val_{name}") if history.get(key)}
    values = [value for line in lines.values() for value in line if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    points = {
        key: [
            (_epoch_x(epoch, len(line)), _CHART_HEIGHT * (1 - (value - low) / ((high - low) or 1)), epoch, value)
            for epoch, value in list(enumerate(line))[:: _epoch_stride(len(line))]
            if math.isfinite(value)
        ]
        for key, line in lines.items()
    }
    candidates = points.get(f"val_{name}") or points[name]
    x, y, epoch, value = (min if name == "loss" else max)(candidates, key=lambda point: point[3])
    return Curves(
        name=name,
        low=low,
        high=high,
        # A single point is written twice, because an SVG line of one point is not drawn.
        lines={
            key: " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in (line * 2 if len(line) == 1 else line))
            for key, line in points.items()
        },
        best=(x, y, f"best: {value:.4g} in epoch {epoch + 1}"),
    )

"""Sections about the training: what augmentation does with stored images, and the figures by epoch."""

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

_MOST_IMAGES = 8
TRAINING_INPUTS = 6  # of each image, in as many epochs
_SIDE_PX = 160
# The ops run in this process, after a decoder process has decoded the image: 24 Mpx are 72 MB, and 288 MB as floats.
_MOST_PIXELS = 24_000_000
_BUDGET_BYTES = 700_000


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image as input of the model.

    Attributes:
      key: key of the image, as display text.
      label: class of the image.
      stored: the stored image.
      training: inputs of the model in the first epochs.
      evaluation: input of the model in evaluation and serving.
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
    """The preview of the two op chains.

    Attributes:
      train_ops: ops of training, as a chain.
      eval_ops: ops of evaluation, as a chain.
      side_px: height and width of the inputs of the model, pixels.
      examples: a few images of the first split, from as many classes as possible.
      problem: reason for the absence of examples; empty without one.
    """

    train_ops: str
    eval_ops: str
    side_px: int
    examples: Sequence[Example]
    problem: str = ""


def augmentation(images: Images, renderer: Renderer, input_options: Mapping[str, Any]) -> Augmentation:
    """Renders a few images as inputs of training and evaluation.

    The random numbers are those of the first epochs: they depend only on the key of the image, the seed and the epoch,
    so that a training with these options has exactly these inputs.

    Args:
      images: images of the dataset.
      renderer: reader of the images.
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
        train = _picture_ops(adapt_ops_to_records(parse_ops(options.train_spec), images.dataset))
        evaluation = _picture_ops(adapt_ops_to_records(evaluation_ops(options), images.dataset))
        budget = ByteBudget(_BUDGET_BYTES)
        for _, row in _sample(images):
            example = _example(images, renderer, row, (train, evaluation, options.seed), budget)
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
    """Returns the result of a chain for a record, uint8[height, width, 3].

    Args:
      ops: ops of the chain, for the content of the records.
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
    """Returns the ops whose result is a picture: without conversions to floats and ops that mix images."""
    from trainer.ops import MixingOp, Normalize

    return [op for op in ops if not isinstance(op, (MixingOp, Normalize))]


# The first images of each class, from each class in turn.
_SAMPLE = """
    SELECT row FROM (
        SELECT row, row_number() OVER (PARTITION BY labels ORDER BY row) AS nth,
            min(row) OVER (PARTITION BY labels) AS first
        FROM images WHERE place = $split)
    ORDER BY nth, first LIMIT $most"""


def _sample(images: Images) -> list[tuple[int, dict[str, Any]]]:
    """Returns numbers and rows of images of the first split, from each class in turn."""
    split = next(iter(images.dataset.splits))
    numbers = images.database.column(_SAMPLE, split=split, most=_MOST_IMAGES).tolist()
    rows = [(number, images.row(number)) for number in numbers]
    return sorted(rows, key=lambda item: (images.labels(item[1]), item[0]))


def _example(
    images: Images, renderer: Renderer, row: dict[str, Any], chains: tuple[list[Op], list[Op], int], budget: ByteBudget
) -> Example | None:
    train, evaluation, seed = chains
    values = renderer.values(row)
    stored = budget.spend(renderer.picture(row, values, _SIDE_PX, _MOST_PIXELS))
    if stored is None or stored.problem:
        return None
    inputs = [apply_chain(train, values, seed, epoch) for epoch in range(TRAINING_INPUTS)]
    training = [budget.spend(render_pixels(pixels, _SIDE_PX)) for pixels in inputs]
    evaluated = budget.spend(render_pixels(apply_chain(evaluation, values, seed, 0), _SIDE_PX))
    if evaluated is None:
        return None
    return Example(
        key=shown.short_path(row["key"]),
        label=shown.text(", ".join(images.labels(row)), 60),
        stored=stored,
        training=[picture for picture in training if picture],
        evaluation=evaluated,
        facts=images.facts(row),
    )


_MOST_EPOCHS, _CHART_WIDTH, _CHART_HEIGHT = 500, 400.0, 120.0  # the latter in pixels


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A figure of training and validation by epoch, drawn.

    Attributes:
      name: name of the figure.
      low: value at the lower edge.
      high: value at the upper edge.
      lines: name of a figure -> points of its line.
      best: place of the best value of the validation, or of the training without one, pixels; and its text.
    """

    name: str
    low: float
    high: float
    lines: Mapping[str, str]
    best: tuple[float, float, str]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training of the model.

    Attributes:
      facts: names and values.
      curves: loss and accuracy by epoch.
      best_x: place of the epoch that was exported, pixels; None if it is the last by choice.
      columns: names of the columns of the table.
      epochs: values of each epoch, as text; of a long training, of some.
    """

    facts: Sequence[tuple[str, str]]
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
    """Returns the content of a `training.json`; missing keys result in empty fields."""
    history = {name: list(map(float, series)) for name, series in values.get("history", {}).items()}
    options, best = dict(values.get("config", {}).get("train", {})), dict(values.get("best", {}))
    best = best if best.get("value") is not None else {}
    count = max(map(len, history.values()), default=0)
    seconds, is_best = sum(history.get("train_seconds", ())), values.get("exported") == "best"
    facts = [
        ("Model", shown.text(options.get("model", ""), 200)),
        ("Parameters", f"{values['parameters']:,}" if "parameters" in values else ""),
        ("Optimizer", shown.text(options.get("optimizer", ""))),
        ("Learning rate", f"{options['learning_rate']:g}, {options['schedule']}" if "schedule" in options else ""),
        ("Epochs", f"{count} of {options.get('epochs', count)}"),
        ("Best epoch", f"{best['epoch'] + 1}, by {best['monitor']}" if best else ""),
        ("Exported", "the best epoch" if is_best else "the last epoch"),
        ("Duration of the steps", strings.clock_time(seconds) if seconds else ""),
        ("Waited for input", shown.percent(values.get("input_wait", 0.0))),
    ]
    columns = [name for name in _COLUMNS if name in history]
    return Training(
        facts=[(name, value) for name, value in facts if value],
        curves=[curves for name in ("loss", "accuracy", "auc") if (curves := _curves(name, history))],
        best_x=_place(best["epoch"], count) if is_best and best else None,
        columns=[_COLUMNS[name] for name in columns],
        epochs=[
            [str(epoch + 1), *(_figure(name, history[name], epoch - count) for name in columns)]
            for epoch in range(0, count, _stride(count))
        ],
    )


def _stride(count: int) -> int:
    return max(1, -(-count // _MOST_EPOCHS))


def _figure(name: str, series: Sequence[float], place: int) -> str:
    """Returns a value as text; a figure that a release added in the middle of a training has none at its beginning."""
    if -place > len(series):
        return "-"
    return shown.percent(series[place]) if name == "input_wait" else f"{series[place]:.4g}"


def _place(epoch: int, count: int) -> float:
    return _CHART_WIDTH * epoch / max(1, count - 1)


def _curves(name: str, history: Mapping[str, Sequence[float]]) -> Curves | None:
    lines = {key: history[key] for key in (name, f"val_{name}") if history.get(key)}
    values = [value for line in lines.values() for value in line if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    points = {
        key: [
            (_place(epoch, len(line)), _CHART_HEIGHT * (1 - (value - low) / ((high - low) or 1)), epoch, value)
            for epoch, value in list(enumerate(line))[:: _stride(len(line))]
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
        # Twice, because a line of one point is not drawn.
        lines={
            key: " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in (line * 2 if len(line) == 1 else line))
            for key, line in points.items()
        },
        best=(x, y, f"best: {value:.4g} in epoch {epoch + 1}"),
    )

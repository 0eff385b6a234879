"""What the model really sees: stored images, and what the trainer's own ops make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_jobs.dataset import record
from beam_jobs.errors import UsageError
from components.dataset_report import shown
from components.dataset_report.shown import Album, Facts, Images, Picture, Room, draw_pixels

if TYPE_CHECKING:
    from trainer.ops import Op

_MOST_IMAGES = 8
DRAWS = 6
_SIDE_PX = 160
# The ops run in this process, on what a decoder process has decoded before: 24 Mpx are 72 MB, and 288 MB as floats.
_MOST_PIXELS = 24_000_000
_ROOM_BYTES = 700_000


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image on its way into the model.

    Attributes:
      key: identity, as it is shown.
      label: its class.
      stored: as it lies in the dataset.
      training: what the first epochs see of it.
      evaluation: what evaluation and serving see.
      facts: about it.
    """

    key: str
    label: str
    stored: Picture
    training: Sequence[Picture]
    evaluation: Picture
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The two chains and what they do.

    Attributes:
      train_ops: chain of training, spelled out.
      eval_ops: chain of evaluation.
      side_px: height and width of what the model sees.
      examples: a few images of the first split, of as many classes as there are.
      problem: why there are no examples, or nothing.
    """

    train_ops: str
    eval_ops: str
    side_px: int
    examples: Sequence[Example]
    problem: str = ""


def augmentation(images: Images, album: Album, input_options: Mapping[str, Any]) -> Augmentation:
    """Draws a few images as training and evaluation see them.

    The draws are those of the first epochs: they depend on the key of the image, the seed and the epoch alone, so a
    training with these options sees exactly these pixels.

    Args:
      images: of the dataset.
      album: reads them.
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
        chains = parse_ops(options.train_spec), evaluation_ops(options)
        train, evaluation = (_pictured(adapt_ops_to_records(chain, images.dataset)) for chain in chains)
        room = Room(_ROOM_BYTES)
        for index in _sample(images):
            example = _example(images, album, index, (train, evaluation, options.seed), room)
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


def seen(ops: Sequence[Op], values: Mapping[str, list], seed: int, epoch: int) -> np.ndarray:
    """Returns what a chain makes of a record: uint8[height, width, 3].

    Args:
      ops: the chain, which begins at what the records hold.
      values: the record.
      seed: of the input options.
      epoch: number of the pass over the data.
    """
    import tensorflow as tf

    from trainer.input.parse import derive_draws
    from trainer.ops import IMAGE, apply_ops

    draw = derive_draws(tf.constant(values[record.FILENAME][0]), tf.constant(epoch, tf.int64), seed)
    features = {
        IMAGE: tf.constant(values[record.ENCODED][0]),
        record.HEIGHT: tf.constant(values[record.HEIGHT][0], tf.int64),
        record.WIDTH: tf.constant(values[record.WIDTH][0], tf.int64),
    }
    with tf.device("cpu"):
        return apply_ops(ops, features, draw)[IMAGE].numpy()


def _pictured(ops: Sequence[Op]) -> list[Op]:
    """Leaves out what one picture cannot show: floats, and what takes a second image."""
    from trainer.ops import MixingOp, Normalize

    return [op for op in ops if not isinstance(op, (MixingOp, Normalize))]


def _sample(images: Images) -> list[int]:
    """Returns rows of the first split, of a class each as long as there are classes."""
    first = next(iter(images.dataset.splits))
    rows = [int(index) for index in np.flatnonzero(images.splits == first)]
    by_class: dict[tuple[str, ...], list[int]] = {}
    for index in rows:
        by_class.setdefault(images.labels[index], []).append(index)
    turns = max((len(found) for found in by_class.values()), default=0)
    ordered = [
        found[turn] for turn in range(min(turns, _MOST_IMAGES)) for found in by_class.values() if turn < len(found)
    ]
    return sorted(ordered[:_MOST_IMAGES], key=lambda index: (images.labels[index], index))


def _example(
    images: Images, album: Album, index: int, chains: tuple[Sequence[Op], Sequence[Op], int], room: Room
) -> Example | None:
    train, evaluation, seed = chains
    row = images.row(index)
    values = album.values(row)
    stored = room.take(album.picture(row, values, _SIDE_PX, _MOST_PIXELS))
    if stored is None or stored.remark:
        return None
    draws = [room.take(_picture(seen(train, values, seed, epoch))) for epoch in range(DRAWS)]
    last = room.take(_picture(seen(evaluation, values, seed, 0)))
    if last is None:
        return None
    return Example(
        key=shown.place(row["key"]),
        label=shown.text(", ".join(images.labels[index]), 60),
        stored=stored,
        training=[draw for draw in draws if draw],
        evaluation=last,
        facts=images.facts(row),
    )


def _picture(pixels: np.ndarray) -> Picture:
    return draw_pixels(pixels, _SIDE_PX)

"""How many batches an input pipeline has: as many on every host, and known before the first is read."""

from __future__ import annotations

import tensorflow as tf

from trainer.input.padding import padded
from trainer.input.plan import Choices
from trainer.input.position import Position
from trainer.input.windowed_reader import FOREVER


def images_left(choices: Choices, start: Position, epochs: int) -> int:
    """Returns the images of all hosts from a position to the end of some epochs, its own included."""
    return max(0, epochs * choices.epoch_images - start.records)


def batch_count(choices: Choices, start: Position, epochs: int) -> int | None:
    """Returns how many batches every host has; None for `FOREVER` and where a tf.data service deals them out.

    Args:
      choices: what the pipeline decided.
      start: where it starts.
      epochs: passes over the split, or `FOREVER`.
    """
    if epochs == FOREVER or choices.served:  # each worker of a service drops what is too little for a batch of its own
        return None
    if choices.training:
        return images_left(choices, start, epochs) // choices.options.batch_size
    images = images_left(choices, start, epochs)
    if choices.host.count > 1:  # the host that has the most records
        images = -(-choices.total // choices.host.count) * choices.crops * epochs
    return -(-images // choices.batch)


def filled(stream: tf.data.Dataset, choices: Choices, count: int | None) -> tf.data.Dataset:
    """Fills up the batches of evaluation where all must have one shape: `pad_batches`, or several hosts."""
    is_padded = not choices.training and (choices.host.count > 1 or choices.options.pad_batches)
    return padded(stream, choices.batch, FOREVER if count is None else count) if is_padded else stream


def counted(stream: tf.data.Dataset, count: int | None) -> tf.data.Dataset:
    """Lets a pipeline say how many batches it has, by `len` and `cardinality()`.

    Keras begins one step more where it has to find the end. A number that is not true is an error at that end.
    """
    return stream if count is None else stream.apply(tf.data.experimental.assert_cardinality(count))

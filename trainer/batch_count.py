"""How many batches an input pipeline has: as many on every host, and known before the first is read."""

from __future__ import annotations

import tensorflow as tf

from trainer.choices import Choices
from trainer.padding import padded
from trainer.position import Position
from trainer.windows import FOREVER


def even(stream: tf.data.Dataset, choices: Choices, start: Position, epochs: int) -> tf.data.Dataset:
    """Gives every host the same number of batches.

    Args:
      stream: batches of one host.
      choices: what the pipeline decided.
      start: where it starts.
      epochs: passes over the split, or `FOREVER`.

    Returns:
      the batches, without what other hosts have no batch for; of evaluation, filled up instead.
    """
    if choices.training:
        if choices.host.count == 1 or epochs == FOREVER:
            return stream
        return stream.take(_whole_batches(choices, start, epochs))
    return padded(stream, choices.batch, _padded_batches(choices, epochs)) if _is_padded(choices) else stream


def counted(stream: tf.data.Dataset, choices: Choices, start: Position, epochs: int) -> tf.data.Dataset:
    """Lets a pipeline say how many batches it has, by `len` and `cardinality()`.

    Keras begins one step more where it has to find the end. A number that is not true is an error at that end.

    Args:
      stream: batches of one host, as `even` returns them.
      choices: what the pipeline decided.
      start: where it starts.
      epochs: passes over the split, or `FOREVER`.
    """
    if epochs == FOREVER or choices.served:  # each worker of a service drops what is too little for a batch of its own
        return stream
    if start.records > choices.epoch_images:  # a position of another dataset
        return stream
    if choices.training:
        count = _whole_batches(choices, start, epochs)
    elif _is_padded(choices):
        count = _padded_batches(choices, epochs)
    else:
        count = -(-_images(choices, start, epochs) // choices.batch)
    return stream.apply(tf.data.experimental.assert_cardinality(count))


def _images(choices: Choices, start: Position, epochs: int) -> int:
    """Returns the images from a position to the end, over all hosts."""
    first, end = (epoch * choices.epoch_images for epoch in (start.epoch, start.epoch + epochs))
    # What the last records lack to one for each host would be whole sets of crops.
    if choices.training and choices.crops > 1:
        end -= end // choices.crops % choices.host.count * choices.crops
    return max(0, end - first - start.records)


def _whole_batches(choices: Choices, start: Position, epochs: int) -> int:
    return _images(choices, start, epochs) // choices.options.batch_size


def _is_padded(choices: Choices) -> bool:
    return choices.host.count > 1 or choices.options.pad_batches


def _padded_batches(choices: Choices, epochs: int) -> int:
    """Returns the batches of the host that has the most records."""
    largest = -(-choices.total // choices.host.count) * choices.crops * epochs
    return -(-largest // choices.batch)

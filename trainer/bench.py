"""How fast the input pipeline is, beside the one of the tutorials: same shards, same ops, same run, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from beam_jobs import manifest, record
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import IMAGE, Decode, DecodeRandomCrop, Op, RandomCropResize, apply_ops, parse_ops
from trainer.options import InputOptions
from trainer.raw import stored_ops

_ROUNDS = 3  # in turn, and the median of each counts: these are shared machines


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Images per second of two pipelines over the same work.

    Attributes:
      feedline: of `make_dataset`.
      naive: of `naive_dataset`.
    """

    feedline: float
    naive: float

    @property
    def ratio(self) -> float:
        """How many times faster `make_dataset` is."""
        return self.feedline / self.naive


def compare(path: str, split: str, options: InputOptions, seconds: float = 1.5) -> Rates:
    """Measures both pipelines of training, in turn.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      seconds: length of one measurement; each pipeline gets three, after a warm-up of a quarter of it.

    Raises:
      UsageError: there is no such dataset or split.
    """
    ours = make_dataset(path, split, options, training=True, epochs=FOREVER)
    naive = naive_dataset(path, split, options)
    rounds = [(_rate(ours, seconds), _rate(naive, seconds)) for _ in range(_ROUNDS)]
    return Rates(
        feedline=statistics.median(pair[0] for pair in rounds), naive=statistics.median(pair[1] for pair in rounds)
    )


def naive_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the tutorials: one file after the other, one record after the other, floats at the end.

    It decodes the whole image, crops afterwards, and normalises on the host. The ops are otherwise those of training.

    Returns:
      endless dataset of (float32[batch, side, side, 3] in 0-1, int64[batch]).
    """
    dataset = manifest.load(path)
    ops = stored_ops(_unfused(parse_ops(options.train_spec)), dataset)
    files = dataset.shard_paths(path, split)
    spec = record.feature_spec((record.ENCODED, record.LABEL))

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(serialized, spec)
        seed = tf.random.uniform([2], maxval=1 << 30, dtype=tf.int64)
        image = apply_ops(ops, {IMAGE: parsed[record.ENCODED]}, seed)[IMAGE]
        return tf.cast(image, tf.float32) / 255.0, parsed[record.LABEL]

    stream = tf.data.TFRecordDataset(files).map(prepare).repeat().batch(options.batch_size)
    bare = tf.data.Options()
    bare.autotune.enabled = False
    return stream.with_options(bare)


def _unfused(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    plain: list[Op] = []
    for op in ops:
        if isinstance(op, DecodeRandomCrop):
            plain += [Decode(), RandomCropResize(side=op.side, min_area=op.min_area)]
        else:
            plain.append(op)
    return tuple(plain)


def _rate(dataset: tf.data.Dataset, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    batches = iter(dataset)
    warm = clock() + seconds / 4
    while clock() < warm:
        next(batches)
    images = 0
    started = clock()
    while (elapsed := clock() - started) < seconds:
        images += int(next(batches)[1].shape[0])
    return images / elapsed

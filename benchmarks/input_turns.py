"""Pipelines that take turns: images a second of ours, the naive one and a bare decode, in one process and one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.input_sources import SPLIT, Sources

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.bench.meter import Counts, Subject
    from trainer.options import InputOptions

_BARE_IMAGES = 1000  # kept in memory for the bare decode


@dataclass(frozen=True, kw_only=True)
class Feed:
    """One pipeline over one dataset.

    Attributes:
      dataset: name in `input_sources.DATASETS`.
      kind: `ours` is `make_dataset`, `naive` the pipeline of the tutorials, `bare` decodes what the records hold on all
        cores and does nothing else, `ours+device` also runs the device ops, compiled, on the same cores.
      ops: of training.
      device_ops: of `ours+device`.
      side_px: of the images that come out.
      cache: of the input options; `none` reads and decodes every epoch.
    """

    dataset: str
    kind: str = "ours"
    ops: str = ""
    device_ops: str = ""
    side_px: int = 224
    cache: str = "none"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: one feed beside another.

    Attributes:
      name: in the table.
      feed: what is measured.
      base: what stands beside it.
      base_is: what that is, in words.
      goal: ratio that it should reach; 0 for none.
    """

    name: str
    feed: Feed
    base: Feed
    base_is: str
    goal: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure.

    Attributes:
      seconds: of one turn; a warm-up of a quarter of it comes before.
      rounds: turns of each; the median counts.
      batch: images a batch.
    """

    seconds: float = 3.0
    rounds: int = 5
    batch: int = 64


def compare(rows: Sequence[Row], sources: Sources, effort: Effort) -> dict[str, dict[str, Any]]:
    """Measures every feed of the rows in turn, each once a round, however many rows it stands in.

    Returns:
      row -> rate and base (images/s, medians), their ratio, base_is, goal, and the rates of every round.
    """
    from trainer.bench.meter import measure_alternately

    feeds = dict.fromkeys(feed for row in rows for feed in (row.feed, row.base))
    subjects = [subject_of(feed, sources, effort.batch) for feed in feeds]
    rounds = [measure_alternately(subjects, effort.seconds, rounds=1) for _ in range(effort.rounds)]
    rates = {
        feed: [costs[subject.name].rate for costs in rounds] for feed, subject in zip(feeds, subjects, strict=True)
    }
    return {row.name: row_of(row.base_is, rates[row.feed], rates[row.base]) | {"goal": row.goal} for row in rows}


def row_of(base_is: str, rates: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """Returns a line of the results: medians of the rounds, their ratio, what the base is, and every round."""
    middle, beside = statistics.median(rates), statistics.median(base)
    return {
        "rate": middle,
        "base": beside,
        "ratio": middle / beside,
        "base_is": base_is,
        "rounds": {"rate": list(rates), "base": list(base)},
    }


def subject_of(feed: Feed, sources: Sources, batch: int) -> Subject:
    """Returns what measures a feed; its dataset is made when it is not there."""
    from trainer.bench import naive_dataset
    from trainer.bench.baselines import bare_decode
    from trainer.bench.meter import Subject, dataset_subject
    from trainer.input_fn import FOREVER, make_dataset

    path, name = sources.dataset(feed.dataset), repr(feed)
    if feed.kind == "bare":
        return bare_decode(name, encoded(path))
    options = options_of(feed, batch)
    if feed.kind == "naive":
        return dataset_subject(name, naive_dataset(path, SPLIT, options))
    dataset = make_dataset(path, SPLIT, options, training=True, epochs=FOREVER)
    if feed.kind == "ours":
        return dataset_subject(name, dataset)
    return Subject(name=name, start=lambda: on_device(dataset, feed.device_ops))


def options_of(feed: Feed, batch: int) -> InputOptions:
    """Returns the input options of a feed."""
    from trainer.options import InputOptions

    return InputOptions(image_side_px=feed.side_px, batch_size=batch, train_ops=feed.ops, cache=feed.cache)


def encoded(path: str) -> list[bytes]:
    """Returns the images of the first records of a dataset, as they are stored."""
    import tensorflow as tf

    from beam_jobs.dataset import manifest, record

    files = manifest.load(path).shard_paths(path, SPLIT)
    spec = record.feature_spec((record.ENCODED,))
    records = tf.data.TFRecordDataset(files).take(_BARE_IMAGES)
    return [tf.io.parse_single_example(one, spec)[record.ENCODED].numpy() for one in records]


def on_device(dataset: tf.data.Dataset, spec: str) -> Counts:
    """Yields the sizes of batches on which device ops ran, compiled; here the device is the same processor."""
    import tensorflow as tf

    from trainer.ops.device import apply_device_ops, parse_device_ops

    ops = parse_device_ops(spec)
    run = tf.function(lambda images, draw: apply_device_ops(ops, images, draw), jit_compile=True)
    for features, _ in dataset:
        yield float(run(features["image"], features["draw"]).shape[0])

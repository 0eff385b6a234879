"""Alternating measurements of pipelines in one process: images/s of Feedline, a naive pipeline and a bare decode."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.input_sources import SPLIT, Sources

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.bench.meter import Counts, Subject

_BARE_IMAGES = 1000  # images in memory for the bare decode


@dataclass(frozen=True, kw_only=True)
class Feed:
    """One pipeline over one dataset.

    Attributes:
      dataset: name in `input_sources.DATASETS`.
      kind: `ours` is `make_dataset`, `naive` the pipeline of the tutorials, `bare` only decodes the images of the
        records on all cores, `ours+device` also runs the device ops, compiled, on the same cores.
      ops: training ops.
      device_ops: device ops of `ours+device`.
      side_px: side of the resulting images.
      cache: cache of the input options; `none` reads and decodes in every epoch.
    """

    dataset: str
    kind: str = "ours"
    ops: str = ""
    device_ops: str = ""
    side_px: int = 224
    cache: str = "none"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table, which compares two feeds.

    Attributes:
      name: name of the row.
      feed: measured feed.
      base: feed to compare it with.
      base_is: description of the base.
      goal: minimum ratio; 0 for none.
    """

    name: str
    feed: Feed
    base: Feed
    base_is: str
    goal: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Duration of the measurement.

    Attributes:
      seconds: duration of one measurement; a warm-up of a quarter of it precedes.
      rounds: measurements per feed; results are medians.
      batch: images per batch.
    """

    seconds: float = 3.0
    rounds: int = 5
    batch: int = 64


def compare(rows: Sequence[Row], sources: Sources, effort: Effort) -> dict[str, dict[str, Any]]:
    """Measures the feeds of all rows alternately, each feed once per round.

    Returns:
      row -> rate and base (images/s, medians), their ratio, base_is, goal, and the rates of all rounds.
    """
    from trainer.bench.meter import measure_alternately

    feeds = dict.fromkeys(feed for row in rows for feed in (row.feed, row.base))
    subjects = [make_subject(feed, sources, effort.batch) for feed in feeds]
    rounds = [measure_alternately(subjects, effort.seconds, rounds=1) for _ in range(effort.rounds)]
    rates = {
        feed: [costs[subject.name].rate for costs in rounds] for feed, subject in zip(feeds, subjects, strict=True)
    }
    return {row.name: make_row(row.base_is, rates[row.feed], rates[row.base]) | {"goal": row.goal} for row in rows}


def make_row(base_is: str, rates: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """Returns a row of the results: medians of the rounds, their ratio, the description of the base, and all rounds."""
    rate, base_rate = statistics.median(rates), statistics.median(base)
    return {
        "rate": rate,
        "base": base_rate,
        "ratio": rate / base_rate,
        "base_is": base_is,
        "rounds": {"rate": list(rates), "base": list(base)},
    }


def make_subject(feed: Feed, sources: Sources, batch: int) -> Subject:
    """Returns the subject of a feed; creates its dataset if it does not exist."""
    from trainer.bench import naive_dataset
    from trainer.bench.baselines import bare_decode
    from trainer.bench.meter import Subject, dataset_subject
    from trainer.input_fn import FOREVER, make_dataset
    from trainer.options import InputOptions

    path, name = sources.dataset(feed.dataset), repr(feed)
    if feed.kind == "bare":
        return bare_decode(name, encoded(path))
    options = InputOptions(image_side_px=feed.side_px, batch_size=batch, train_ops=feed.ops, cache=feed.cache)
    if feed.kind == "naive":
        return dataset_subject(name, naive_dataset(path, SPLIT, options))
    dataset = make_dataset(path, SPLIT, options, training=True, epochs=FOREVER)
    if feed.kind == "ours":
        return dataset_subject(name, dataset)
    return Subject(name=name, start=lambda: run_device_ops(dataset, feed.device_ops))


def encoded(path: str) -> list[bytes]:
    """Returns the encoded images of the first records of a dataset."""
    import tensorflow as tf

    from beam_jobs.dataset import manifest, record

    files = manifest.load(path).shard_paths(path, SPLIT)
    spec = record.feature_spec((record.ENCODED,))
    records = tf.data.TFRecordDataset(files).take(_BARE_IMAGES)
    return [tf.io.parse_single_example(item, spec)[record.ENCODED].numpy() for item in records]


def run_device_ops(dataset: tf.data.Dataset, spec: str) -> Counts:
    """Yields the sizes of batches after compiled device ops; the device is the same processor."""
    import tensorflow as tf

    from trainer.ops.device import apply_device_ops, parse_device_ops

    ops = parse_device_ops(spec)
    run = tf.function(lambda images, draw: apply_device_ops(ops, images, draw), jit_compile=True)
    for features, _ in dataset:
        yield float(run(features["image"], features["draw"]).shape[0])

"""One optimisation at a time taken out of the pipeline: what each is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from beam_jobs.common.system import free_bytes
from beam_jobs.storage import is_remote
from trainer.bench.chain import Source, spell, unfused
from trainer.bench.figures import Ablated
from trainer.bench.meter import Cost, Subject, of_dataset
from trainer.bench.stages import Variant, assembled
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import parse_ops
from trainer.options import InputOptions

ASSEMBLED = "all stages in a row"
_SHARE_OF_FREE = 0.1  # for a shuffle of decoded images


@dataclass(frozen=True, kw_only=True)
class Removal:
    """One optimisation that can be left out.

    Attributes:
      name: of it.
      without: what is done instead.
      dataset: the pipeline without it.
      of_pipeline: whether that is `make_dataset` with other options; else it is `stages.assembled`.
      note: what else it is worth.
    """

    name: str
    without: str
    dataset: tf.data.Dataset
    of_pipeline: bool = True
    note: str = ""

    @property
    def subject(self) -> Subject:
        """What is measured."""
        return of_dataset(f"without {self.name}", self.dataset)


def removals(source: Source) -> list[Removal]:
    """Returns what can be taken out of the pipeline of these options; what is not in it is left out."""
    found = [
        Removal(name=name, without=without, dataset=pipeline(source, options))
        for name, without, options in _by_option(source)
    ]
    return [*found, *_by_stage(source)]


def pipeline(source: Source, options: InputOptions) -> tf.data.Dataset:
    """Returns `make_dataset` of training, endless."""
    return make_dataset(source.path, source.split, options, training=True, epochs=FOREVER)


def bases(source: Source) -> list[Subject]:
    """Returns what the removals of single stages are compared with."""
    return [] if source.choices.vectorised else [of_dataset(ASSEMBLED, assembled(source, Variant()))]


def results(found: list[Removal], whole: Cost, costs: Mapping[str, Cost]) -> tuple[Ablated, ...]:
    """Returns the rows.

    Args:
      found: of `removals`.
      whole: of `make_dataset`.
      costs: of every subject, by its name.
    """
    return tuple(_row(removal, whole if removal.of_pipeline else costs[ASSEMBLED], costs) for removal in found)


def _row(removal: Removal, base: Cost, costs: Mapping[str, Cost]) -> Ablated:
    without = costs[removal.subject.name]
    return Ablated(
        name=removal.name,
        without=removal.without,
        base=base.rate,
        rate=without.rate,
        base_cpu_us=base.cpu_us,
        cpu_us=without.cpu_us,
        note=removal.note,
    )


def _by_option(source: Source) -> list[tuple[str, str, InputOptions]]:
    options, ops = source.options, parse_ops(source.options.train_spec)
    rows: list[tuple[str, str, dict[str, Any]]] = []
    if not source.is_raw and unfused(ops) != ops:
        chain = "|".join(map(spell, unfused(ops)))
        rows.append(("fused decode and crop", "decode, then crop", {"train_ops": chain}))
    if options.thread_count > 1:
        rows.append(("parallel map", "threads=1", {"threads": 1}))
    if options.parse_batch > 1:
        rows.append(("batched parse", "parse_batch=1", {"parse_batch": 1}))
    if options.readers > 1 and is_remote(source.path):  # local shards are read one after the other anyway
        rows.append(("parallel readers", "readers=1", {"readers": 1}))
    return [(name, without, dataclasses.replace(options, **changed)) for name, without, changed in rows]


def _by_stage(source: Source) -> list[Removal]:
    if source.choices.vectorised:
        one_by_one = assembled(source, Variant())
        return [Removal(name="whole batches at a time", without="image by image", dataset=one_by_one)]
    size, image_bytes = source.options.batch_size, 3 * source.options.image_side_px**2
    window_records = _window_records(source)
    changes = (
        ("uint8 batches", "float32", Variant(floats=True), (size * 4 * image_bytes, size * image_bytes)),
        ("prefetch", "none", Variant(prefetch=False), None),
        (
            *("shuffle before the decode", "after it", Variant(shuffled=window_records)),
            (window_records * image_bytes, window_records * source.record_bytes),
        ),
    )
    return [
        Removal(
            name=name,
            without=without,
            dataset=assembled(source, variant),
            of_pipeline=False,
            note=f"{byte_counts[0] / 1e6:,.0f} MB instead of {byte_counts[1] / 1e6:,.0f}" if byte_counts else "",
        )
        for name, without, variant, byte_counts in changes
    ]


def _window_records(source: Source) -> int:
    """Returns how many records the shuffle of the options holds; fewer where as many decoded images would not fit."""
    records = source.choices.dataset.split(source.split).records
    most = _SHARE_OF_FREE * free_bytes() / (3 * source.options.image_side_px**2)
    return max(1, int(min(records, source.options.shuffle_mb * 1e6 / source.record_bytes, most)))

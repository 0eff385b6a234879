"""The bottleneck finder: puts stages, limit and baselines in one run and measures them in turn.

Behind the input pipeline come two stages: a batch copied to the device, and a training step on it. The ablation takes
one optimisation at a time out of the pipeline: what each is worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from beam_jobs.common import system
from beam_jobs.common.system import free_bytes
from beam_jobs.storage import is_remote
from trainer.bench import baselines, meter, stages
from trainer.bench.baselines import naive_dataset, tutorial_dataset
from trainer.bench.bottleneck import AUGMENT, CALL, DECODE, Ablated, Facts, Figures, Stage
from trainer.bench.meter import Cost, Counts, Subject, of_dataset
from trainer.bench.stages import Source, Variant, assembled, names_of, open_source, spell, unfused
from trainer.input.checks import check_room
from trainer.input_fn import FOREVER, make_dataset
from trainer.models import ModelSpec, build_model, check_model
from trainer.ops import IMAGE, parse_ops
from trainer.ops.device import DEVICE_OPS
from trainer.options import InputOptions

TRANSFER, STEP = "transfer", "step"
_BATCHES = 4  # taken in turn, so that no copy is made from what the processor still holds
_UNKNOWN_MEAN, _UNKNOWN_STD = (127.5,) * 3, (64.0,) * 3  # of a dataset without channel statistics; speed is the same


def device_name() -> str:
    """Returns the first accelerator as TensorFlow names it, such as `GPU:0`, or `CPU:0`."""
    found = [one.device_type for one in tf.config.list_logical_devices() if one.device_type in ("GPU", "TPU")]
    return f"{found[0]}:0" if found else "CPU:0"


def transfer_alone(source: Source, where: str) -> Subject:
    """Returns the subject that copies uint8 batches to the device; where that is the CPU, from memory to memory.

    Args:
      source: what is measured.
      where: the device.
    """
    size, side = source.options.batch_size, source.options.image_side_px
    noise = np.random.default_rng(0)
    with tf.device("CPU:0"):
        batches = [tf.constant(noise.integers(0, 256, [size, side, side, 3], np.uint8)) for _ in range(_BATCHES)]

    def start() -> Counts:
        while True:
            for batch in batches:
                with tf.device(where):
                    # On the same device an identity is no copy.
                    copy = tf.raw_ops.DeepCopy(x=batch) if where == "CPU:0" else tf.identity(batch)
                copy[0, 0, 0, 0].numpy()  # waits until the copy is there
                yield float(size)

    return Subject(name=TRANSFER, start=start)


def training_step(source: Source, name: str) -> Callable[[tf.Tensor], None]:
    """Builds a model and returns its training step: uint8[batch, side, side, 3] in, weights changed, nothing out.

    The classes of the images are all the first one: how long a step takes does not depend on them.

    Args:
      source: what is measured.
      name: of the model.

    Raises:
      OptionError: there is no such model, or it does not fit.
    """
    channels, options = source.choices.dataset.channels, source.options
    spec = ModelSpec(
        side_px=options.image_side_px,
        classes=max(2, len(source.choices.dataset.labels)),
        mean_rgb=channels.mean_rgb if channels else _UNKNOWN_MEAN,
        std_rgb=channels.std_rgb if channels else _UNKNOWN_STD,
    )
    model = build_model(name, spec)
    model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="sparse_categorical_crossentropy")
    labels = np.zeros([options.batch_size], np.int64)
    return lambda images: model.train_on_batch(images, labels)


def step_alone(source: Source, step: Callable[[tf.Tensor], None], where: str) -> Subject:
    """Returns the subject that trains on one batch that already lies on the device, over and over."""
    size, side = source.options.batch_size, source.options.image_side_px

    def start() -> Counts:
        with tf.device(where):
            images = tf.zeros([size, side, side, 3], tf.uint8)
        while True:
            step(images)
            yield float(size)

    return Subject(name=STEP, start=start)


def trained(name: str, dataset: tf.data.Dataset, step: Callable[[tf.Tensor], None]) -> Subject:
    """Returns the subject that trains on what an input pipeline delivers.

    Args:
      name: of the subject.
      dataset: endless, of (features, label).
      step: of `training_step`.
    """

    def start() -> Counts:
        for features, _ in dataset:
            step(features[IMAGE])
            yield float(features[IMAGE].shape[0])

    return Subject(name=name, start=start)


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


def make_removals(source: Source) -> list[Removal]:
    """Returns what can be taken out of the pipeline of these options; what is not in it is left out."""
    found = [
        Removal(name=name, without=without, dataset=whole_pipeline(source, options))
        for name, without, options in _by_option(source)
    ]
    return [*found, *_by_stage(source)]


def whole_pipeline(source: Source, options: InputOptions) -> tf.data.Dataset:
    """Returns `make_dataset` of training, endless."""
    return make_dataset(source.path, source.split, options, training=True, epochs=FOREVER)


def ablation_bases(source: Source) -> list[Subject]:
    """Returns what the removals of single stages are compared with."""
    return [] if source.choices.vectorised else [of_dataset(ASSEMBLED, assembled(source, Variant()))]


def ablation_results(found: list[Removal], whole: Cost, costs: Mapping[str, Cost]) -> tuple[Ablated, ...]:
    """Returns the rows.

    Args:
      found: of `make_removals`.
      whole: of `make_dataset`.
      costs: of every subject, by its name.
    """
    return tuple(_ablated(removal, whole if removal.of_pipeline else costs[ASSEMBLED], costs) for removal in found)


def _ablated(removal: Removal, base: Cost, costs: Mapping[str, Cost]) -> Ablated:
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


_FLOAT_BYTES = 4  # of a number in the baselines, which move floats
PIPELINE, LIMIT, TRAINED, NAIVE, TUTORIAL = "input pipeline", "limit", "with the model", "naive", "tutorial"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything that is ready to be measured.

    Attributes:
      source: what is measured.
      facts: about it.
      limit_is: what the limit is.
      subjects: in the order they take turns.
      removals: of the ablation.
    """

    source: Source
    facts: Facts
    limit_is: str
    subjects: tuple[Subject, ...]
    removals: tuple[Removal, ...]

    def duration(self, seconds: float) -> float:
        """Returns about how many seconds `measure` takes; a slow first batch comes on top."""
        return meter.duration(len(self.subjects), seconds)


def prepare(path: str, split: str, options: InputOptions, model: str = "", ablate: bool = False) -> Bench:
    """Builds all pipelines and reads the shards once.

    A cache of `auto` is none here: it would make the first seconds another measurement than the rest.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      model: whose training step is measured too; empty for none.
      ablate: also without each of the optimisations.

    Raises:
      UsageError: there is no such dataset, split or model, or the options do not fit.
      CorruptDataset: the dataset is damaged.
    """
    if model:
        check_model(model)
    if options.cache == "auto":
        options = dataclasses.replace(options, cache="none")
    source = open_source(path, split, options)
    check_room(options, source.choices.batch, _FLOAT_BYTES)
    whole = whole_pipeline(source, options)
    info = source.choices.dataset.split(split)
    in_memory = baselines.warm_page_cache(source.files, info.bytes)
    pool = stages.load_pool(source)
    parts = stages.Stages(source=source, pool=pool)
    warm = info.records if options.cache != "none" else 1
    crops = source.choices.crops
    subjects = [
        of_dataset(PIPELINE, whole, warm),
        _limit(source, pool),
        of_dataset(TUTORIAL, tutorial_dataset(path, split, options), images=crops),
        of_dataset(NAIVE, naive_dataset(path, split, options), images=crops),
        *parts.alone(),
        *parts.together().values(),
    ]
    where = device_name()
    subjects.append(transfer_alone(source, where))
    if model:
        step = training_step(source, model)
        subjects += [step_alone(source, step, where), trained(TRAINED, whole, step)]
    removals = make_removals(source) if ablate else []
    if ablate:
        subjects += [*ablation_bases(source), *(removal.subject for removal in removals)]
    return Bench(
        source=source,
        facts=_facts(source, pool, where, model, in_memory),
        limit_is="bare read of the same bytes" if source.is_raw else "bare decode of the same bytes",
        subjects=tuple(subjects),
        removals=tuple(removals),
    )


def measure(
    bench: Bench, seconds: float, on_sample: Callable[[str], None] = lambda _: None, rounds: int = meter.ROUNDS
) -> Figures:
    """Measures everything in turn.

    Args:
      bench: of `prepare`.
      seconds: of one measurement.
      on_sample: called with the name of what is measured next.
      rounds: how often; the medians count.
    """
    costs = meter.in_turn(bench.subjects, seconds, rounds, on_sample)
    return Figures(
        facts=bench.facts,
        stages=_stages(bench.source, costs, bench.facts.model),
        prepare=_prepare(costs),
        pipeline=costs[PIPELINE],
        limit=costs[LIMIT],
        limit_is=bench.limit_is,
        baselines={name: costs[name] for name in (TUTORIAL, NAIVE)},
        trained=costs.get(TRAINED),
        ablation=ablation_results(list(bench.removals), costs[PIPELINE], costs),
        device_ops=frozenset(DEVICE_OPS),
    )


def _limit(source: Source, pool: stages.Pool) -> Subject:
    if source.is_raw:
        return baselines.bare_read(LIMIT, source.files, source.record_bytes / source.choices.crops)
    return baselines.bare_decode(LIMIT, pool.encoded, source.choices.crops)


def _stages(source: Source, costs: dict[str, Cost], model: str) -> tuple[Stage, ...]:
    image_ops = names_of(source.choices.image_ops)
    batch_ops = names_of(source.choices.all_ops)[len(image_ops) :]
    kinds = {stages.READ: stages.READ, stages.PARSE: stages.PARSE, stages.CALL: CALL}
    kinds |= {name: AUGMENT if place else DECODE for place, name in enumerate(image_ops)}
    kinds |= {stages.BATCH: stages.BATCH, **dict.fromkeys(batch_ops, AUGMENT)}
    kinds |= {TRANSFER: TRANSFER, STEP: STEP}
    call = costs.get(stages.CALL)
    return tuple(
        Stage(
            name=model if kind == STEP else name,
            kind=kind,
            cost=_net(costs[name], call) if call and name in image_ops else costs[name],
            so_far=_so_far(name, costs),
        )
        for name, kind in kinds.items()
        if name in costs
    )


def _net(cost: Cost, call: Cost) -> Cost:
    """Takes the call of a map off an op: together they are called once."""
    return dataclasses.replace(cost, cpu_us=max(0.0, cost.cpu_us - call.cpu_us))


def _prepare(costs: dict[str, Cost]) -> Cost:
    """Returns what all ops cost: those of images and those of batches share the threads."""
    parts = [costs[name] for name in (stages.IMAGE_OPS, stages.BATCH_OPS) if name in costs]
    return Cost(rate=1 / sum(1 / cost.rate for cost in parts), cpu_us=sum(cost.cpu_us for cost in parts))


def _so_far(name: str, costs: dict[str, Cost]) -> float | None:
    if name == stages.READ:
        return costs[name].rate
    found = costs.get(f"up to {name}")
    return found.rate if found else None


def _facts(source: Source, pool: stages.Pool, where: str, model: str, in_memory: bool) -> Facts:
    options, dataset = source.options, source.choices.dataset
    info = dataset.split(source.split)
    return Facts(
        dataset=source.path,
        split=source.split,
        records=info.records,
        shards=len(info.shards),
        record_bytes=source.record_bytes,
        policy=dataset.options["pixels"]["policy"],
        short_px=pool.short_px,
        side_px=options.image_side_px,
        batch_size=options.batch_size,
        ops=options.train_spec,
        threads=options.thread_count,
        cores=system.cores(),
        readers=options.readers,
        remote=is_remote(source.path),
        parse_batch=options.parse_batch,
        device=where,
        model=model,
        in_memory=in_memory,
    )

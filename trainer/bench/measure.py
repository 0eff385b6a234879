"""Measures stages, limit and baselines alternately in one run, for `bottleneck.find_bottleneck`.

Two more stages follow the input pipeline: the copy of a batch to the device, and a training step with the batch. The
ablation measures the effect of each optimisation: it removes one optimisation at a time from the pipeline.
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
from trainer.bench import baselines, bottleneck, meter, stages
from trainer.bench.baselines import naive_dataset, tutorial_dataset
from trainer.bench.bottleneck import AUGMENT, CALL, DECODE, STEP, TRANSFER, Effect, Facts, Figures, Stage
from trainer.bench.meter import Cost, Counts, Subject, dataset_subject
from trainer.bench.stages import Source, Variant, assemble, op_names, op_text, open_source, unfuse_crop
from trainer.input.checks import check_memory
from trainer.input_fn import FOREVER, make_dataset
from trainer.models import ModelSpec, build_model, check_model
from trainer.ops import IMAGE, parse_ops
from trainer.ops.device import DEVICE_OPS
from trainer.options import InputOptions

_TRANSFER_BATCHES = 4  # number of batches that are copied in turn: one would remain in the cache of the processor
_DEFAULT_MEAN, _DEFAULT_STD = (127.5,) * 3, (64.0,) * 3  # for datasets without channel statistics; no effect on speed


def device_name() -> str:
    """Returns the TensorFlow name of the first accelerator, such as `GPU:0`, or `CPU:0`."""
    types = [device.device_type for device in tf.config.list_logical_devices()]
    return next((f"{kind}:0" for kind in types if kind in ("GPU", "TPU")), "CPU:0")


def transfer_subject(source: Source, device: str) -> Subject:
    """Returns the subject that copies uint8 batches to the device; on the CPU, from memory to memory."""
    size, side = source.options.batch_size, source.options.image_side_px
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        batches = [tf.constant(rng.integers(0, 256, [size, side, side, 3], np.uint8)) for _ in range(_TRANSFER_BATCHES)]

    def start() -> Counts:
        while True:
            for batch in batches:
                with tf.device(device):
                    # On the same device, `tf.identity` does not copy.
                    copy = tf.raw_ops.DeepCopy(x=batch) if device == "CPU:0" else tf.identity(batch)
                copy[0, 0, 0, 0].numpy()  # waits until the copy is complete
                yield float(size)

    return Subject(name=TRANSFER, start=start)


def training_step(source: Source, name: str) -> Callable[[tf.Tensor], None]:
    """Builds a model and returns its training step, a function of uint8[batch, side, side, 3].

    All labels are the first class, because the duration of a step does not depend on the labels.

    Raises:
      OptionError: the model does not exist, or does not accept images of this size.
    """
    channels, options = source.plan.dataset.channels, source.options
    spec = ModelSpec(
        side_px=options.image_side_px,
        classes=max(2, len(source.plan.dataset.labels)),
        mean_rgb=channels.mean_rgb if channels else _DEFAULT_MEAN,
        std_rgb=channels.std_rgb if channels else _DEFAULT_STD,
    )
    model = build_model(name, spec)
    model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="sparse_categorical_crossentropy")
    labels = np.zeros([options.batch_size], np.int64)
    return lambda images: model.train_on_batch(images, labels)


def step_subject(source: Source, step: Callable[[tf.Tensor], None], device: str) -> Subject:
    """Returns the subject that trains repeatedly on one batch in the memory of the device."""
    size, side = source.options.batch_size, source.options.image_side_px

    def start() -> Counts:
        with tf.device(device):
            images = tf.zeros([size, side, side, 3], tf.uint8)
        while True:
            step(images)
            yield float(size)

    return Subject(name=STEP, start=start)


def training_subject(name: str, dataset: tf.data.Dataset, step: Callable[[tf.Tensor], None]) -> Subject:
    """Returns the subject that trains on the batches of an input pipeline.

    Args:
      name: name of the subject.
      dataset: endless dataset of (features, label).
      step: result of `training_step`.
    """

    def start() -> Counts:
        for features, _ in dataset:
            step(features[IMAGE])
            yield float(features[IMAGE].shape[0])

    return Subject(name=name, start=start)


ASSEMBLED = "assembled pipeline"
_SHUFFLE_SHARE = 0.1  # share of the free memory for a shuffle of decoded images


@dataclass(frozen=True, kw_only=True)
class Removal:
    """An optimisation and the pipeline without it.

    Attributes:
      name: name of the optimisation.
      without: what the pipeline does instead.
      dataset: the pipeline without the optimisation.
      is_option: whether `dataset` is `make_dataset` with other options; otherwise `stages.assemble` built it.
      note: other effects of the optimisation, such as on memory; may be empty.
    """

    name: str
    without: str
    dataset: tf.data.Dataset
    is_option: bool = True
    note: str = ""

    @property
    def subject(self) -> Subject:
        """Returns the subject that iterates over `dataset`."""
        return dataset_subject(f"without {self.name}", self.dataset)


def make_removals(source: Source) -> list[Removal]:
    """Returns the removal of each optimisation that the pipeline of a source has."""
    removals = [
        Removal(name=name, without=without, dataset=training_pipeline(source, options))
        for name, without, options in _option_changes(source)
    ]
    return [*removals, *_stage_removals(source)]


def training_pipeline(source: Source, options: InputOptions) -> tf.data.Dataset:
    """Returns the endless result of `make_dataset` for training."""
    return make_dataset(source.path, source.split, options, training=True, epochs=FOREVER)


def _effect(removal: Removal, base: Cost, costs: Mapping[str, Cost]) -> Effect:
    cost = costs[removal.subject.name]
    return Effect(
        name=removal.name,
        without=removal.without,
        base=base.rate,
        rate=cost.rate,
        base_cpu_us=base.cpu_us,
        cpu_us=cost.cpu_us,
        note=removal.note,
    )


def _option_changes(source: Source) -> list[tuple[str, str, InputOptions]]:
    """Returns (optimisation, its replacement, changed options) of each optimisation that an option can disable."""
    options, ops = source.options, parse_ops(source.options.train_spec)
    rows: list[tuple[str, str, dict[str, Any]]] = []
    if not source.is_raw and unfuse_crop(ops) != ops:
        chain = "|".join(map(op_text, unfuse_crop(ops)))
        rows.append(("fused decode and crop", "decode, then crop", {"train_ops": chain}))
    if options.thread_count > 1:
        rows.append(("parallel map", "threads=1", {"threads": 1}))
    if options.parse_batch > 1:
        rows.append(("batched parse", "parse_batch=1", {"parse_batch": 1}))
    if options.readers > 1 and is_remote(source.path):  # local shards are always read sequentially
        rows.append(("parallel readers", "readers=1", {"readers": 1}))
    return [(name, without, dataclasses.replace(options, **changes)) for name, without, changes in rows]


def _stage_removals(source: Source) -> list[Removal]:
    """Returns the removals of the optimisations that no option can disable."""
    if source.plan.vectorised:
        per_image = assemble(source, Variant())
        return [Removal(name="whole batches at a time", without="image by image", dataset=per_image)]
    size, image_bytes = source.options.batch_size, 3 * source.options.image_side_px**2
    window_records = _window_records(source)
    shuffle_bytes = (window_records * image_bytes, window_records * source.record_bytes)  # without and with
    changes = (
        ("uint8 batches", "float32", Variant(floats=True), (4 * size * image_bytes, size * image_bytes)),
        ("prefetch", "none", Variant(prefetch=False), None),
        ("shuffle before the decode", "after it", Variant(shuffle_images=window_records), shuffle_bytes),
    )
    return [
        Removal(
            name=name,
            without=without,
            dataset=assemble(source, variant),
            is_option=False,
            note=f"{buffer_bytes[0] / 1e6:,.0f} MB instead of {buffer_bytes[1] / 1e6:,.0f}" if buffer_bytes else "",
        )
        for name, without, variant, buffer_bytes in changes
    ]


def _window_records(source: Source) -> int:
    """Returns the shuffle window in records; so many decoded images fit into a share of the free memory."""
    records = source.plan.dataset.split(source.split).records
    limit = _SHUFFLE_SHARE * free_bytes() / (3 * source.options.image_side_px**2)
    return max(1, int(min(records, source.options.shuffle_mb * 1e6 / source.record_bytes, limit)))


_FLOAT_BYTES = 4  # per value in the baselines, whose batches are float32
PIPELINE, LIMIT, TRAINED, NAIVE, TUTORIAL = "input pipeline", "limit", "with the model", "naive", "tutorial"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The measurements of a run, ready to start.

    Attributes:
      source: dataset and options.
      facts: dataset, options and machine, as plain values.
      limit_description: text that describes the work of the limit.
      subjects: subjects in the order of their measurement.
      removals: optimisations of the ablation.
    """

    source: Source
    facts: Facts
    limit_description: str
    subjects: tuple[Subject, ...]
    removals: tuple[Removal, ...]

    def duration(self, seconds: float) -> float:
        """Returns the estimated duration of `measure`, seconds; a slow first batch is not included."""
        return meter.duration(len(self.subjects), seconds)


def prepare(path: str, split: str, options: InputOptions, model: str = "", ablate: bool = False) -> Bench:
    """Builds all pipelines and reads the shards once.

    The cache `auto` is replaced by `none`, because the speed would change while a cache is filled.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: options of the input pipeline.
      model: name of a model whose training step is measured too; empty for none.
      ablate: whether to measure also the effect of each optimisation.

    Raises:
      UsageError: the dataset, split or model does not exist, or the options do not fit the dataset.
      CorruptDataset: the dataset is damaged.
    """
    if model:
        check_model(model)
    if options.cache == "auto":
        options = dataclasses.replace(options, cache="none")
    source = open_source(path, split, options)
    check_memory(options, source.plan.batch, _FLOAT_BYTES)
    pipeline = training_pipeline(source, options)
    split_info = source.plan.dataset.split(split)
    in_memory = baselines.warm_page_cache(source.files, split_info.bytes)
    pool = stages.load_pool(source)
    all_stages = stages.Stages(source=source, pool=pool)
    warm_images = split_info.records if options.cache != "none" else 1  # a cache is filled before the measurement
    crops = source.plan.crops
    subjects = [
        dataset_subject(PIPELINE, pipeline, warm_images),
        _limit_subject(source, pool),
        dataset_subject(TUTORIAL, tutorial_dataset(path, split, options), crops=crops),
        dataset_subject(NAIVE, naive_dataset(path, split, options), crops=crops),
        *all_stages.isolated_subjects(),
        *all_stages.cumulative_subjects(),
    ]
    device = device_name()
    subjects.append(transfer_subject(source, device))
    if model:
        step = training_step(source, model)
        subjects += [step_subject(source, step, device), training_subject(TRAINED, pipeline, step)]
    removals = make_removals(source) if ablate else []
    if any(not removal.is_option for removal in removals):
        subjects.append(dataset_subject(ASSEMBLED, assemble(source, Variant())))  # compared with these removals
    subjects += [removal.subject for removal in removals]
    return Bench(
        source=source,
        facts=_make_facts(source, pool, device, model, in_memory),
        limit_description="bare read of the same bytes" if source.is_raw else "bare decode of the same bytes",
        subjects=tuple(subjects),
        removals=tuple(removals),
    )


def measure(
    bench: Bench, seconds: float, on_sample: Callable[[str], None] = lambda _: None, rounds: int = meter.ROUNDS
) -> Figures:
    """Measures all subjects alternately and returns the results.

    Args:
      bench: result of `prepare`.
      seconds: duration of one measurement, seconds.
      on_sample: callback before each measurement, with the name of the subject.
      rounds: number of measurements of each subject; the result is their median.
    """
    costs = meter.measure_alternately(bench.subjects, seconds, rounds, on_sample)
    return Figures(
        facts=bench.facts,
        stages=_make_stages(bench.source, costs, bench.facts.model),
        prepare=_ops_cost(costs),
        pipeline=costs[PIPELINE],
        limit=costs[LIMIT],
        limit_description=bench.limit_description,
        baselines={name: costs[name] for name in (TUTORIAL, NAIVE)},
        trained=costs.get(TRAINED),
        ablation=tuple(
            _effect(removal, costs[PIPELINE if removal.is_option else ASSEMBLED], costs) for removal in bench.removals
        ),
        device_ops=frozenset(DEVICE_OPS),
    )


def _limit_subject(source: Source, pool: stages.Pool) -> Subject:
    if source.is_raw:
        return baselines.bare_read(LIMIT, source.files, source.record_bytes / source.plan.crops)
    return baselines.bare_decode(LIMIT, pool.encoded, source.plan.crops)


def _make_stages(source: Source, costs: dict[str, Cost], model: str) -> tuple[Stage, ...]:
    image_ops = op_names(source.plan.image_ops)
    batch_ops = op_names(source.plan.all_ops)[len(image_ops) :]
    kinds = {kind: kind for kind in (bottleneck.READ, bottleneck.PARSE, CALL)}  # name of a subject -> kind of its stage
    kinds |= {name: AUGMENT if index else DECODE for index, name in enumerate(image_ops)}
    kinds |= {bottleneck.BATCH: bottleneck.BATCH, **dict.fromkeys(batch_ops, AUGMENT)}
    kinds |= {TRANSFER: TRANSFER, STEP: STEP}
    call_cost = costs.get(CALL)
    return tuple(
        Stage(
            name=model if kind == STEP else name,
            kind=kind,
            cost=_subtract_call(costs[name], call_cost) if call_cost and name in image_ops else costs[name],
            cumulative_rate=_cumulative_rate(name, costs),
        )
        for name, kind in kinds.items()
        if name in costs
    )


def _subtract_call(cost: Cost, call: Cost) -> Cost:
    """Subtracts the CPU time of calling a map from the cost of an op, because all ops share one call."""
    return dataclasses.replace(cost, cpu_us=max(0.0, cost.cpu_us - call.cpu_us))


def _ops_cost(costs: dict[str, Cost]) -> Cost:
    """Returns the cost of all ops: of those on images and those on batches, which share the threads."""
    parts = [costs[name] for name in (stages.IMAGE_OPS, stages.BATCH_OPS) if name in costs]
    return Cost(rate=1 / sum(1 / cost.rate for cost in parts), cpu_us=sum(cost.cpu_us for cost in parts))


def _cumulative_rate(name: str, costs: dict[str, Cost]) -> float | None:
    cost = costs.get(name if name == bottleneck.READ else f"up to {name}")  # `read` is the first stage
    return cost.rate if cost else None


def _make_facts(source: Source, pool: stages.Pool, device: str, model: str, in_memory: bool) -> Facts:
    options, dataset = source.options, source.plan.dataset
    split_info = dataset.split(source.split)
    return Facts(
        dataset=source.path,
        split=source.split,
        records=split_info.records,
        shards=len(split_info.shards),
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
        device=device,
        model=model,
        in_memory=in_memory,
    )

"""Measured figures as plain values, and the sentence that names the bottleneck and the option to change.

Text, JSON and HTML page are made from these values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_jobs.common.strings import plural
from trainer.bench.meter import Cost

READ, PARSE, CALL, DECODE, AUGMENT, BATCH = "read", "parse", "call", "decode", "augment", "batch"
TRANSFER, STEP = "transfer", "step"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Dataset, options and machine of a measurement.

    Attributes:
      dataset: directory of the dataset.
      split: name of the split.
      records: number of records in the split.
      shards: number of shards of the split.
      record_bytes: mean size of a record, bytes.
      policy: pixel policy of the ingest: `copy`, `resize` or `raw`.
      short_px: mean short side of the stored images, pixels.
      side_px: height and width of the model's images, pixels.
      batch_size: images per batch.
      ops: training ops, as a chain.
      threads: threads of the input pipeline.
      cores: cores that this process may use.
      readers: largest number of shards that are read in parallel.
      remote: whether the shards are in an object store.
      parse_batch: records per parse op.
      device: device of the training step, such as `GPU:0`.
      model: model of the training step, empty for none.
      in_memory: whether the shards were read into the page cache before the measurement.
    """

    dataset: str
    split: str
    records: int
    shards: int
    record_bytes: float
    policy: str
    short_px: float
    side_px: int
    batch_size: int
    ops: str
    threads: int
    cores: int
    readers: int
    remote: bool
    parse_batch: int
    device: str
    model: str
    in_memory: bool


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Figures of one stage.

    Attributes:
      name: name of the stage, or an op as in the chain.
      kind: one of the constants of this module.
      cost: cost of the stage in isolation. That of an op excludes the CPU time of the call of a map, which the stage
        `call` has.
      cumulative_rate: images/s of the pipeline from the shards to this stage; None if not measured.
    """

    name: str
    kind: str
    cost: Cost
    cumulative_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """Effect of one optimisation, from a measurement of the pipeline without it.

    Attributes:
      name: name of the optimisation.
      without: what the pipeline does instead.
      base: images/s with the optimisation.
      rate: images/s without it.
      base_cpu_us: CPU time per image with it, microseconds.
      cpu_us: CPU time per image without it, microseconds.
      note: other effects, such as on memory; may be empty.
    """

    name: str
    without: str
    base: float
    rate: float
    base_cpu_us: float
    cpu_us: float
    note: str = ""

    @property
    def worth(self) -> float:
        """Speedup by the optimisation: ratio of the rates with and without it."""
        return self.base / self.rate


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All figures of a run.

    Attributes:
      facts: dataset, options and machine.
      stages: stages in the order of the pipeline.
      prepare: cost of all ops together, as the pipeline runs them.
      pipeline: cost of `make_dataset`.
      limit: cost without a pipeline, the limit of this machine.
      limit_description: description of the limit.
      baselines: name -> cost of a common pipeline without Feedline.
      trained: cost of pipeline, transfer and training step together; None without a model.
      ablation: effects of the optimisations; empty without ablation.
      device_ops: names of the ops that can run on the device.
    """

    facts: Facts
    stages: tuple[Stage, ...]
    prepare: Cost
    pipeline: Cost
    limit: Cost
    limit_description: str
    baselines: Mapping[str, Cost]
    trained: Cost | None = None
    ablation: tuple[Ablated, ...] = ()
    device_ops: frozenset[str] = field(default_factory=frozenset)

    @property
    def efficiency(self) -> float:
        """Rate of the pipeline divided by the limit; above 1 where the pipeline omits work that the limit includes."""
        return self.pipeline.rate / self.limit.rate

    @property
    def cpu_efficiency(self) -> float:
        """CPU time of the limit divided by that of the pipeline; other processes on the machine do not change it."""
        return self.limit.cpu_us / self.pipeline.cpu_us

    @property
    def bottleneck(self) -> Stage:
        """The training step if it is slower than the input pipeline, else the slowest stage in isolation.

        The ops share one map and count as one stage, which the op or call with the most CPU time represents.
        """
        step = next((stage for stage in self.stages if stage.kind == STEP), None)
        if step and step.cost.rate <= self.pipeline.rate:
            return step
        slowest = min(
            (stage for stage in self.stages if stage.kind in (READ, PARSE, BATCH, TRANSFER)),
            key=lambda stage: stage.cost.rate,
        )
        if slowest.cost.rate < self.prepare.rate:
            return slowest
        ops = (stage for stage in self.stages if stage.kind in (CALL, DECODE, AUGMENT))
        return max(ops, key=lambda stage: stage.cost.cpu_us)

    @property
    def disturbed(self) -> bool:
        """Whether other processes used part of the machine, because the bare decode did not use all cores."""
        return self.limit.cores < 0.8 * self.facts.cores and self.facts.policy != "raw"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; the keys are those of `docs/bench.md`."""
        return {
            "facts": asdict(self.facts),
            "stages": [
                {
                    "name": stage.name,
                    "kind": stage.kind,
                    **_plain(stage.cost),
                    "up_to_here_images_s": stage.cumulative_rate,
                }
                for stage in self.stages
            ],
            "ops": _plain(self.prepare),
            "pipeline": _plain(self.pipeline),
            "limit": {**_plain(self.limit), "is": self.limit_description},
            "efficiency": self.efficiency,
            "cpu_efficiency": self.cpu_efficiency,
            "baselines": {
                name: {**_plain(cost), "ratio": self.pipeline.rate / cost.rate} for name, cost in self.baselines.items()
            },
            "trained": None if self.trained is None else _plain(self.trained),
            "ablation": [{**asdict(row), "worth": row.worth} for row in self.ablation],
            "disturbed": self.disturbed,
        }


def _plain(cost: Cost) -> dict[str, float]:
    return {"images_s": cost.rate, "cpu_us": cost.cpu_us, "wall_us": cost.wall_us}


_MARGIN = 8 / 7  # side of stored images by the side of crops, the usual 256 : 224
_MIN_PIXEL_RATIO = 1.5  # of stored pixels to resized ones, above which a resize is recommended
_SIDE_TOLERANCE = 0.95
_PARSE_BATCH = 64
# Stage -> remedy that does not depend on the other figures, and its option.
_REMEDIES = {
    BATCH: ("Lower `image_side_px`: batches are copied at the speed of the memory.", "image_side_px"),
    TRANSFER: ("Raise `batch_size`, or lower `image_side_px`.", "batch_size"),
    STEP: ("The input waits for the model, so no option of the input helps.", ""),
}


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The bottleneck of an input pipeline.

    Attributes:
      stage: kind of the stage.
      sentence: bottleneck, figures and remedy, as text.
      option: the option to change, `name` or `name=value`, with the prefix `ingest` for one of the ingest; empty if
        there is none.
    """

    stage: str
    sentence: str
    option: str = ""


def find_bottleneck(figures: Figures) -> Bottleneck:
    """Returns the bottleneck, and the option that makes it faster."""
    stage = figures.bottleneck
    remedy, option = _remedy(stage, figures)
    return Bottleneck(stage=stage.kind, sentence=f"{_finding(stage, figures)} {remedy}", option=option)


def _finding(stage: Stage, figures: Figures) -> str:
    facts, rate = figures.facts, f"{stage.cost.rate:,.0f} images/s"
    delivered = f"{figures.pipeline.rate:,.0f}"
    if stage.kind == STEP:
        return f"The model is the bottleneck: {stage.name} trains on {rate}, the input pipeline delivers {delivered}."
    if stage.kind == DECODE and facts.policy != "raw" and figures.efficiency <= 1:
        limit = f"{figures.limit.rate:,.0f} images/s {plural(facts.cores, 'core')} can decode"
        return f"Decoding is the bottleneck: {delivered} of the {limit}."
    names = {
        READ: "Reading",
        PARSE: "Parsing",
        CALL: "Calling the ops, one image at a time,",
        DECODE: "Taking pixels out of the records" if facts.policy == "raw" else "Decoding",
        BATCH: "Copying images into batches",
        TRANSFER: f"The copy to {facts.device}",
    }
    return f"{names.get(stage.kind, f'`{stage.name}`')} is the bottleneck: {rate} alone, {delivered} all together."


def _remedy(stage: Stage, figures: Figures) -> tuple[str, str]:
    """Returns a sentence and the option that it names."""
    facts = figures.facts
    if stage.kind in (PARSE, CALL, DECODE, AUGMENT) and facts.threads < facts.cores:
        return f"Set `threads` to 0: {facts.threads} of {facts.cores} cores prepare images.", "threads=0"
    if stage.kind in _REMEDIES:
        return _REMEDIES[stage.kind]
    if stage.kind == READ:
        return _faster_reading(facts)
    if stage.kind == AUGMENT:
        return _lighter_op(stage, figures)
    if stage.kind == PARSE and facts.parse_batch < _PARSE_BATCH:
        return f"Set `parse_batch` to {_PARSE_BATCH} instead of {facts.parse_batch}.", f"parse_batch={_PARSE_BATCH}"
    return _other_pixels(stage, facts)


def _faster_reading(facts: Facts) -> tuple[str, str]:
    readers = min(facts.shards, 4 * facts.readers)
    if facts.remote and facts.readers < facts.shards:
        return f"Set `readers` to {readers}; there are {facts.shards} shards.", f"readers={readers}"
    if facts.in_memory:
        return "The bytes come from memory already; only fewer of them help.", ""
    return "Set `cache` to memory, or to disk with `cache_dir` where the split does not fit.", "cache=memory"


def _lighter_op(stage: Stage, figures: Figures) -> tuple[str, str]:
    if stage.name.partition("(")[0] not in figures.device_ops:
        return "It has no form for the device: make it smaller in `train_ops`, or leave it out.", "train_ops"
    remedy = "Move it from `train_ops` to `device_ops`, where it runs inside the compiled step."
    return remedy, f"device_ops={stage.name}"


def _other_pixels(stage: Stage, facts: Facts) -> tuple[str, str]:
    """Returns the pixel policy of the ingest that reduces the work per image."""
    if facts.policy == "raw" and stage.kind == CALL:
        return "Move ops to `device_ops`: without any on the host, whole batches are taken as they are.", "device_ops"
    if facts.policy == "raw":
        return "The records hold pixels already, so no option helps.", ""
    target = round(facts.side_px * _MARGIN)
    pixel_ratio = (facts.short_px / target) ** 2
    if stage.kind == DECODE and pixel_ratio >= _MIN_PIXEL_RATIO:
        option = f"--policy resize --side-px {target}"
        return f"Ingest with `{option}` to decode {pixel_ratio:.2g} times fewer pixels.", f"ingest {option}"
    # Images stored without a margin cannot be stored with one.
    side = target if facts.short_px >= _SIDE_TOLERANCE * target else facts.side_px
    option, size_ratio = f"--policy raw --side-px {side}", 3 * side**2 / facts.record_bytes
    return (
        f"Ingest with `{option}`: nothing to decode, for {size_ratio:.2g} times the bytes on disk.",
        f"ingest {option}",
    )

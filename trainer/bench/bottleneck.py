"""What was measured, as plain values, and the sentence that names the bottleneck, with the option to change.

The values are the only thing that text, JSON and page look at.
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
    """What was measured on what.

    Attributes:
      dataset: directory.
      split: name of the split.
      records: in the split.
      shards: of the split.
      record_bytes: mean size of a record.
      policy: what the ingest made of the pixels: `copy`, `resize` or `raw`.
      short_px: mean short side of the stored images, in pixels.
      side_px: height and width of what the model sees.
      batch_size: images in a batch.
      ops: the chain of training.
      threads: of the input pipeline.
      cores: that this process may use.
      readers: shards read at a time, at most.
      remote: whether the shards lie in an object store.
      parse_batch: records parsed by one op.
      device: of the step, such as `GPU:0`.
      model: of the step, empty for none.
      in_memory: whether the shards were read into the page cache before.
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
    """One stage alone.

    Attributes:
      name: of the stage, or the op as it is spelled in the chain.
      kind: one of the constants of this module.
      cost: alone. The CPU time of an op is without that of the call of a map, which `call` has.
      so_far: images/s of the pipeline from the shards up to this stage; None when it was not measured.
    """

    name: str
    kind: str
    cost: Cost
    so_far: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """The pipeline without one of its optimisations.

    Attributes:
      name: what was removed.
      without: what is done instead.
      base: images/s with it.
      rate: images/s without it.
      base_cpu_us: microseconds of CPU an image with it.
      cpu_us: without it.
      note: what else it is worth, such as memory; empty for nothing.
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
        """How many times faster the pipeline is with it."""
        return self.base / self.rate


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All of it.

    Attributes:
      facts: what was measured on what.
      stages: in order.
      prepare: all ops together, as the pipeline runs them.
      pipeline: `make_dataset`.
      limit: what the machine does without a pipeline.
      limit_is: what that is.
      baselines: name -> what people write without this project.
      trained: pipeline, transfer and step together; None without a model.
      ablation: empty when it was not asked for.
      device_ops: names of the ops that can run on the device.
    """

    facts: Facts
    stages: tuple[Stage, ...]
    prepare: Cost
    pipeline: Cost
    limit: Cost
    limit_is: str
    baselines: Mapping[str, Cost]
    trained: Cost | None = None
    ablation: tuple[Ablated, ...] = ()
    device_ops: frozenset[str] = field(default_factory=frozenset)

    @property
    def efficiency(self) -> float:
        """Rate of the pipeline as a share of the limit; over 1 where it leaves work out that the limit does."""
        return self.pipeline.rate / self.limit.rate

    @property
    def cpu_efficiency(self) -> float:
        """The same in CPU time, which other processes on the machine do not change."""
        return self.limit.cpu_us / self.pipeline.cpu_us

    @property
    def bottleneck(self) -> Stage:
        """The model where it is slower than the input, else the slowest stage alone.

        The ops share one map and count as one stage; of them it is the one with the most CPU time, the call included.
        """
        step = self.of_kind(STEP)
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
    def parts_cpu_us(self) -> float:
        """Microseconds of CPU an image of all stages of the input pipeline, added up."""
        return sum(stage.cost.cpu_us for stage in self.stages if stage.kind not in (TRANSFER, STEP))

    @property
    def disturbed(self) -> bool:
        """Whether other processes took part of the machine: a bare decode keeps every core busy where it can."""
        return self.limit.cores < 0.8 * self.facts.cores and self.facts.policy != "raw"

    def of_kind(self, kind: str) -> Stage | None:
        """Returns the first stage of a kind, or None."""
        return next((stage for stage in self.stages if stage.kind == kind), None)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; the keys are those of `docs/bench.md`."""
        return {
            "facts": asdict(self.facts),
            "stages": [
                {"name": stage.name, "kind": stage.kind, **_plain(stage.cost), "up_to_here_images_s": stage.so_far}
                for stage in self.stages
            ],
            "ops": _plain(self.prepare),
            "pipeline": _plain(self.pipeline),
            "limit": {**_plain(self.limit), "is": self.limit_is},
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


_MARGIN = 8 / 7  # stored for seen pixels, the customary 256 : 224
_WORTH_RESIZING = 1.5  # times fewer pixels
_NEARLY = 0.95
_PARSE_BATCH = 64
# Stage -> what to do about it, whatever else was measured, and the option.
_REMEDIES = {
    BATCH: ("Lower `image_side_px`: batches are copied at the speed of the memory.", "image_side_px"),
    TRANSFER: ("Raise `batch_size`, or lower `image_side_px`.", "batch_size"),
    STEP: ("The input waits for the model, so no option of the input helps.", ""),
}


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """What limits the input pipeline.

    Attributes:
      stage: a kind of stage.
      sentence: that, with figures, and what to do about it.
      option: the option to change, `name` or `name=value`; of the ingest with `ingest` in front; empty when none helps.
    """

    stage: str
    sentence: str
    option: str = ""


def find_bottleneck(figures: Figures) -> Bottleneck:
    """Returns the stage that is slowest alone, and the option that makes it faster."""
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
    """Returns the policy of the ingest that leaves less work to each image."""
    if facts.policy == "raw" and stage.kind == CALL:
        return "Move ops to `device_ops`: without any on the host, whole batches are taken as they are.", "device_ops"
    if facts.policy == "raw":
        return "The records hold pixels already, so no option helps.", ""
    target = round(facts.side_px * _MARGIN)
    fewer = (facts.short_px / target) ** 2
    if stage.kind == DECODE and fewer >= _WORTH_RESIZING:
        option = f"--policy resize --side-px {target}"
        return f"Ingest with `{option}` to decode {fewer:.2g} times fewer pixels.", f"ingest {option}"
    # Images that were stored without a margin cannot get one.
    side = target if facts.short_px >= _NEARLY * target else facts.side_px
    option, more = f"--policy raw --side-px {side}", 3 * side**2 / facts.record_bytes
    return f"Ingest with `{option}`: nothing to decode, for {more:.2g} times the bytes on disk.", f"ingest {option}"

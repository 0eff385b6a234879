"""The results of a measurement, and the sentence that names the bottleneck and the option to change.

The text, the JSON object and the HTML page of `feedline bench input` contain only these results.
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
      readers: option `readers`, the largest number of shards that are read in parallel.
      remote: whether the shards are in an object store.
      parse_batch: records per parse op.
      device: device of the training step, such as `GPU:0`.
      model: name of the model of the training step, empty for none.
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
    """The results of one stage.

    Attributes:
      name: name of the stage, or an op as in the chain.
      kind: one of the constants `READ` to `STEP` of this module.
      cost: cost of the stage in isolation. The cost of an op excludes the CPU time of calling a map, which is the stage
        `call`.
      cumulative_rate: images/s of the pipeline from the shards to this stage; None if not measured.
    """

    name: str
    kind: str
    cost: Cost
    cumulative_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Effect of one optimisation, from a measurement of the pipeline without it.

    Attributes:
      name: name of the optimisation.
      without: what the pipeline does instead.
      base: images/s with the optimisation.
      rate: images/s without the optimisation.
      base_cpu_us: CPU time per image with the optimisation, microseconds.
      cpu_us: CPU time per image without the optimisation, microseconds.
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
    """All results of a run.

    Attributes:
      facts: dataset, options and machine.
      stages: stages in the order of the pipeline.
      prepare: cost of all ops together, fused as in the pipeline.
      pipeline: cost of `make_dataset`.
      limit: cost of decoding, or of reading stored pixels, without a pipeline: the limit of this machine.
      limit_description: text that describes the work of `limit`.
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
    ablation: tuple[Effect, ...] = ()
    device_ops: frozenset[str] = field(default_factory=frozenset)

    @property
    def efficiency(self) -> float:
        """Rate of the pipeline divided by the limit; above 1 if the pipeline omits work that the limit includes."""
        return self.pipeline.rate / self.limit.rate

    @property
    def cpu_efficiency(self) -> float:
        """CPU time of the limit divided by that of the pipeline; independent of other processes on the machine."""
        return self.limit.cpu_us / self.pipeline.cpu_us

    @property
    def bottleneck(self) -> Stage:
        """The training step if it is slower than the input pipeline, else the slowest stage in isolation.

        The ops share one map and count as one stage, represented by the op or `call` with the most CPU time.
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
        """Whether other processes used the cores: decoding for `limit` used less than 80 % of them. False for `raw`."""
        return self.limit.cores < 0.8 * self.facts.cores and self.facts.policy != "raw"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; the keys are those of `docs/bench.md`."""
        return {
            "facts": asdict(self.facts),
            "stages": [
                {
                    "name": stage.name,
                    "kind": stage.kind,
                    **_json(stage.cost),
                    "up_to_here_images_s": stage.cumulative_rate,
                }
                for stage in self.stages
            ],
            "ops": _json(self.prepare),
            "pipeline": _json(self.pipeline),
            "limit": {**_json(self.limit), "is": self.limit_description},
            "efficiency": self.efficiency,
            "cpu_efficiency": self.cpu_efficiency,
            "baselines": {
                name: {**_json(cost), "ratio": self.pipeline.rate / cost.rate} for name, cost in self.baselines.items()
            },
            "trained": None if self.trained is None else _json(self.trained),
            "ablation": [{**asdict(row), "worth": row.worth} for row in self.ablation],
            "disturbed": self.disturbed,
        }


def _json(cost: Cost) -> dict[str, float]:
    return {"images_s": cost.rate, "cpu_us": cost.cpu_us, "wall_us": cost.wall_us}


_SIDE_RATIO = 8 / 7  # recommended side of stored images divided by the side of crops, the usual 256 / 224
_MIN_PIXEL_RATIO = 1.5  # stored pixels divided by resized pixels; from this ratio on, a resize is recommended
_SIDE_TOLERANCE = 0.95  # least short side of stored images, relative to the recommended side
_PARSE_BATCH = 64
# Kind of a stage -> remedy that does not depend on the other results, and its option.
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
      sentence: bottleneck, rates and remedy, as text.
      option: the option to change, `name` or `name=value`, with the prefix `ingest` for an option of the ingest; empty
        if no option helps.
    """

    stage: str
    sentence: str
    option: str = ""


def find_bottleneck(figures: Figures) -> Bottleneck:
    """Returns the bottleneck with the option to change."""
    stage = figures.bottleneck
    remedy, option = _find_remedy(stage, figures)
    return Bottleneck(stage=stage.kind, sentence=f"{_describe_bottleneck(stage, figures)} {remedy}", option=option)


def _describe_bottleneck(stage: Stage, figures: Figures) -> str:
    facts, rate = figures.facts, f"{stage.cost.rate:,.0f} images/s"
    total_rate = f"{figures.pipeline.rate:,.0f}"
    if stage.kind == STEP:
        return f"The model is the bottleneck: {stage.name} trains on {rate}, the input pipeline delivers {total_rate}."
    if stage.kind == DECODE and facts.policy != "raw" and figures.efficiency <= 1:
        limit = f"{figures.limit.rate:,.0f} images/s that {plural(facts.cores, 'core')} can decode"
        return f"Decoding is the bottleneck: {total_rate} of the {limit}."
    names = {
        READ: "Reading",
        PARSE: "Parsing",
        CALL: "Calling the ops, one image at a time,",
        DECODE: "Extracting pixels from the records" if facts.policy == "raw" else "Decoding",
        BATCH: "Copying images into batches",
        TRANSFER: f"The copy to {facts.device}",
    }
    return f"{names.get(stage.kind, f'`{stage.name}`')} is the bottleneck: {rate} alone, {total_rate} all together."


def _find_remedy(stage: Stage, figures: Figures) -> tuple[str, str]:
    """Returns a sentence about the change that makes the stage faster, and the option to change."""
    facts = figures.facts
    if stage.kind in (PARSE, CALL, DECODE, AUGMENT) and facts.threads < facts.cores:
        return f"Set `threads` to 0: {facts.threads} of {facts.cores} cores prepare images.", "threads=0"
    if stage.kind in _REMEDIES:
        return _REMEDIES[stage.kind]
    if stage.kind == READ:
        return _read_remedy(facts)
    if stage.kind == AUGMENT:
        return _op_remedy(stage, figures)
    if stage.kind == PARSE and facts.parse_batch < _PARSE_BATCH:
        return f"Set `parse_batch` to {_PARSE_BATCH} instead of {facts.parse_batch}.", f"parse_batch={_PARSE_BATCH}"
    return _pixels_remedy(stage, facts)


def _read_remedy(facts: Facts) -> tuple[str, str]:
    more_readers = min(facts.shards, 4 * facts.readers)
    if facts.remote and facts.readers < facts.shards:
        return f"Set `readers` to {more_readers}; there are {facts.shards} shards.", f"readers={more_readers}"
    if facts.in_memory:
        return "The shards are in memory already; only smaller records are read faster.", ""
    return "Set `cache` to memory, or to disk with `cache_dir` if the split does not fit into memory.", "cache=memory"


def _op_remedy(stage: Stage, figures: Figures) -> tuple[str, str]:
    if stage.name.partition("(")[0] not in figures.device_ops:
        return "It cannot run on the device: replace it by a cheaper op in `train_ops`, or remove it.", "train_ops"
    remedy = "Move it from `train_ops` to `device_ops`, where it runs inside the compiled step."
    return remedy, f"device_ops={stage.name}"


def _pixels_remedy(stage: Stage, facts: Facts) -> tuple[str, str]:
    """Returns a sentence and option for the pixel policy of the ingest that reduces the work per image."""
    if facts.policy == "raw" and stage.kind == CALL:
        return "Move ops to `device_ops`: without ops, the host processes batches, not single images.", "device_ops"
    if facts.policy == "raw":
        return "The records contain pixels already, so no option helps.", ""
    recommended_px = round(facts.side_px * _SIDE_RATIO)
    pixel_ratio = (facts.short_px / recommended_px) ** 2
    if stage.kind == DECODE and pixel_ratio >= _MIN_PIXEL_RATIO:
        option = f"--policy resize --side-px {recommended_px}"
        return f"Ingest with `{option}` to decode {pixel_ratio:.2g} times fewer pixels.", f"ingest {option}"
    # Stored images may be too small for the recommended side.
    side = recommended_px if facts.short_px >= _SIDE_TOLERANCE * recommended_px else facts.side_px
    option, size_ratio = f"--policy raw --side-px {side}", 3 * side**2 / facts.record_bytes
    return (
        f"Ingest with `{option}`: images need no decoding, but take {size_ratio:.2g} times the bytes on disk.",
        f"ingest {option}",
    )

"""What was measured, as plain values: the only thing that text, JSON and page look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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

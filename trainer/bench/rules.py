"""Figures -> what holds the pipeline up, and which option to change. Each rule is a pure function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.bench.figures import AUGMENT, BATCH, CALL, DECODE, PARSE, READ, STEP, TRANSFER, Figures, Stage

_NEARLY = 0.95
_MARGIN = 8 / 7  # stored for seen pixels, the customary 256 : 224
_WORTH_RESIZING = 1.5  # times fewer pixels
_HEAVY = 0.3  # share of the CPU time of the pipeline
_MOST_CACHE = 0.25  # of the free memory, as `InputOptions.cache_mb` has it

Rule = Callable[[Figures], "Advice | None"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing that holds the pipeline up.

    Attributes:
      stage: what is the bottleneck: a kind of stage.
      sentence: that, with figures.
      remedy: what to do about it, a sentence; empty when there is nothing to gain.
      option: the option to change, `name=value`; of the ingest with `ingest` in front; empty for none.
    """

    stage: str
    sentence: str
    remedy: str = ""
    option: str = ""

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


def advise(figures: Figures) -> list[Advice]:
    """Returns what holds the pipeline up: the bottleneck first, then what else the figures show. Never empty."""
    return [advice for rule in RULES if (advice := rule(figures))] or [_sound(figures)]


def step_bound(figures: Figures) -> Advice | None:
    """The model is slower than its input."""
    step = figures.of_kind(STEP)
    if step is None or step.cost.rate > figures.pipeline.rate:
        return None
    return Advice(
        stage=STEP,
        sentence=f"The model is the bottleneck: {step.name} trains on {_n(step.cost.rate)} images/s, "
        f"the input pipeline delivers {_n(figures.pipeline.rate)}.",
        remedy="The input waits for the model, so there is nothing to gain before it.",
    )


def transfer_bound(figures: Figures) -> Advice | None:
    """The copy to the device is slower than everything before it."""
    copy = figures.of_kind(TRANSFER)
    if copy is None or figures.slowest != TRANSFER:
        return None
    return Advice(
        stage=TRANSFER,
        sentence=f"The copy to {figures.facts.device} is the bottleneck: {_n(copy.cost.rate)} images/s.",
        remedy="Batches are uint8 already; raise `batch_size`, or lower `image_side_px`.",
        option=f"batch_size={2 * figures.facts.batch_size}",
    )


def few_threads(figures: Figures) -> Advice | None:
    """Cores that nobody uses, while the work of threads holds everything up."""
    facts = figures.facts
    if facts.threads >= facts.cores or figures.slowest not in ("prepare", PARSE):
        return None
    return Advice(
        stage=figures.slowest,
        sentence=f"{facts.threads} of {facts.cores} cores prepare images, {_n(figures.pipeline.rate)} a second.",
        remedy="Set `threads` to 0, which is one a core.",
        option="threads=0",
    )


def read_bound(figures: Figures) -> Advice | None:
    """Records come too slowly off the shards."""
    facts, read = figures.facts, figures.of_kind(READ)
    if read is None or figures.slowest != READ:
        return None
    megabytes = read.cost.rate * facts.record_bytes / 1e6
    sentence = f"Reading is the bottleneck: {_n(read.cost.rate)} images/s, {_n(megabytes)} MB/s."
    readers = min(facts.shards, 4 * facts.readers)
    if facts.remote and facts.readers < facts.shards:
        remedy = f"Set `readers` to {readers}; there are {facts.shards} shards."
        return Advice(stage=READ, sentence=sentence, remedy=remedy, option=f"readers={readers}")
    if not facts.in_memory and facts.records * facts.record_bytes < _MOST_CACHE * facts.free_bytes:
        remedy = "Set `cache` to memory: the split fits, and later epochs do not read the shards."
        return Advice(stage=READ, sentence=sentence, remedy=remedy, option="cache=memory")
    if not facts.in_memory:
        remedy = "Set `cache` to disk with `cache_dir` on a faster disk, or store fewer bytes with the policy `resize`."
        return Advice(stage=READ, sentence=sentence, remedy=remedy, option="cache=disk")
    remedy = "The bytes come from memory as fast as it gives them; fewer of them is all that helps."
    return Advice(stage=READ, sentence=sentence, remedy=remedy)


def parse_bound(figures: Figures) -> Advice | None:
    """Small records: taking them apart costs more than decoding them."""
    facts, parse = figures.facts, figures.of_kind(PARSE)
    if parse is None or (figures.slowest != PARSE and parse.cost.cpu_us < _HEAVY * figures.parts_cpu_us):
        return None
    sentence = (
        f"Parsing {'is the bottleneck' if figures.slowest == PARSE else 'is dear'}: "
        f"{_us(parse.cost.cpu_us)} of the {_us(figures.parts_cpu_us)} us of CPU an image."
    )
    if facts.parse_batch < 16:
        remedy = f"Set `parse_batch` to 64 instead of {facts.parse_batch}."
        return Advice(stage=PARSE, sentence=sentence, remedy=remedy, option="parse_batch=64")
    if facts.policy == "raw":
        return Advice(stage=PARSE, sentence=sentence, remedy="It is done by the batch already; nothing is left out.")
    return _raw(PARSE, sentence, figures)


def batch_bound(figures: Figures) -> Advice | None:
    """Finished images are put into batches by one thread."""
    batch = figures.of_kind(BATCH)
    if batch is None or figures.slowest != BATCH:
        return None
    megabytes = batch.cost.rate * 3 * figures.facts.side_px**2 / 1e6
    return Advice(
        stage=BATCH,
        sentence=f"Copying images into batches is the bottleneck: {_n(batch.cost.rate)} images/s, "
        f"{_n(megabytes)} MB/s.",
        remedy="That is the speed of the memory; a smaller `image_side_px` is all that helps.",
    )


def heavy_op(figures: Figures) -> Advice | None:
    """One op behind the decode takes more than the decode."""
    op = figures.heaviest
    if figures.slowest != "prepare" or op.kind != AUGMENT:
        return None
    return _lighter(op, "the bottleneck", figures)


def dear_op(figures: Figures) -> Advice | None:
    """One op behind the decode takes less than the decode, but a good part of everything."""
    ops = [stage for stage in figures.stages if stage.kind == AUGMENT]
    op = max(ops, key=lambda stage: stage.cost.cpu_us, default=None)
    if op is None or figures.slowest != "prepare" or op is figures.heaviest:
        return None
    return _lighter(op, "dear", figures) if op.cost.cpu_us >= _HEAVY * figures.parts_cpu_us else None


def call_bound(figures: Figures) -> Advice | None:
    """Tiny images: asking for an op takes longer than the op."""
    op = figures.heaviest
    if figures.slowest != "prepare" or op.kind != CALL:
        return None
    sentence = (
        f"The images are so small that calling the ops, one image at a time, is the bottleneck: {_us(op.cost.cpu_us)} "
        f"of the {_us(figures.parts_cpu_us)} us of CPU an image."
    )
    return _raw(CALL, sentence, figures)


def decode_bound(figures: Figures) -> Advice | None:
    """Turning files into pixels holds everything up: the usual case."""
    facts, op = figures.facts, figures.heaviest
    if figures.slowest != "prepare" or op.kind != DECODE:
        return None
    cores = "1 core" if facts.cores == 1 else f"{facts.cores} cores"
    sentence = (
        f"Decoding is the bottleneck: {_n(figures.pipeline.rate)} of the {_n(figures.limit.rate)} images/s "
        f"{cores} can decode."
    )
    if figures.efficiency > 1:  # a fused crop leaves out what the limit decodes
        sentence = (
            f"Decoding is the bottleneck: {_n(figures.pipeline.rate)} images/s; whole images, {cores} decode "
            f"{_n(figures.limit.rate)}."
        )
    if facts.policy == "raw":
        sentence = f"Taking pixels out of the records is the bottleneck: {_n(figures.prepare.rate)} images/s."
        return Advice(stage=DECODE, sentence=sentence, remedy="Nothing is decoded; there is nothing to leave out.")
    target = round(facts.side_px * _MARGIN)
    fewer = (facts.short_px / target) ** 2
    if fewer >= _WORTH_RESIZING:
        remedy = f"Ingest with `--policy resize --side-px {target}` to decode {fewer:.2g} times fewer pixels."
        return Advice(
            stage=DECODE, sentence=sentence, remedy=remedy, option=f"ingest --policy resize --side-px {target}"
        )
    return _cached(DECODE, sentence, figures) or _raw(DECODE, sentence, figures)


RULES: tuple[Rule, ...] = (
    step_bound,
    transfer_bound,
    few_threads,
    read_bound,
    batch_bound,
    heavy_op,
    call_bound,
    decode_bound,
    dear_op,
    parse_bound,
)


def _sound(figures: Figures) -> Advice:
    return Advice(
        stage="",
        sentence=f"No stage stands out: the pipeline delivers {_n(figures.pipeline.rate)} images/s, "
        f"{figures.efficiency:.0%} of the limit.",
    )


def _lighter(op: Stage, what: str, figures: Figures) -> Advice:
    sentence = f"`{op.name}` is {what}: {_us(op.cost.cpu_us)} of the {_us(figures.parts_cpu_us)} us of CPU an image."
    if op.name.partition("(")[0] in figures.device_ops:
        remedy = "Move it from `train_ops` to `device_ops`, where it runs inside the compiled step."
        return Advice(stage=AUGMENT, sentence=sentence, remedy=remedy, option=f"device_ops={op.name}")
    return _cached(AUGMENT, sentence, figures) or Advice(
        stage=AUGMENT, sentence=sentence, remedy="It has no form for the device; leave it out, or make it smaller."
    )


def _cached(stage: str, sentence: str, figures: Figures) -> Advice | None:
    """Advises the cache where ops before the first random one leave images of one size, and these fit."""
    facts = figures.facts
    size = facts.records * 3 * facts.side_px**2
    if facts.steady_ops < 2 or size > _MOST_CACHE * facts.free_bytes:
        return None
    remedy = f"Set `cache` to memory: what the first {facts.steady_ops} ops make takes {size / 1e6:,.0f} MB."
    return Advice(stage=stage, sentence=sentence, remedy=remedy, option="cache=memory")


def _raw(stage: str, sentence: str, figures: Figures) -> Advice:
    facts = figures.facts
    if facts.policy == "raw":
        remedy = "Leave ops to `device_ops`: without any on the host, whole batches are taken as they are."
        return Advice(stage=stage, sentence=sentence, remedy=remedy, option="device_ops")
    target = round(facts.side_px * _MARGIN)
    side = target if facts.short_px >= _NEARLY * target else facts.side_px  # a margin that is not there is not stored
    more = 3 * side**2 / facts.record_bytes
    remedy = f"Ingest with `--policy raw --side-px {side}`: nothing to decode, for {more:.2g} times the bytes on disk."
    return Advice(stage=stage, sentence=sentence, remedy=remedy, option=f"ingest --policy raw --side-px {side}")


def _n(value: float) -> str:
    return f"{value:,.0f}"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"

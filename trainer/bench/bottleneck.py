"""The sentence that names the bottleneck of the input pipeline, and the option to change."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.bench.figures import AUGMENT, BATCH, CALL, DECODE, PARSE, READ, STEP, TRANSFER, Facts, Figures, Stage

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
        cores = "1 core" if facts.cores == 1 else f"{facts.cores} cores"
        limit = f"{figures.limit.rate:,.0f} images/s {cores} can decode"
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

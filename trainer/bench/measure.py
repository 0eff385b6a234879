"""The bottleneck finder: puts stages, limit and baselines in one run and measures them in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from beam_jobs.common import system
from beam_jobs.storage import is_remote
from trainer.bench import ablation, device, limit, meter, stages
from trainer.bench.baselines import naive_dataset, tutorial_dataset
from trainer.bench.chain import Source, names_of, open_source
from trainer.bench.figures import AUGMENT, CALL, DECODE, Facts, Figures, Stage
from trainer.bench.meter import Cost, Subject, of_dataset
from trainer.input.checks import check_room
from trainer.models import check_model
from trainer.ops.device import DEVICE_OPS
from trainer.options import InputOptions

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
    removals: tuple[ablation.Removal, ...]

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
    whole = ablation.pipeline(source, options)
    info = source.choices.dataset.split(split)
    in_memory = limit.warm_page_cache(source.files, info.bytes)
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
    where = device.device()
    subjects.append(device.transfer(source, where))
    if model:
        step = device.training_step(source, model)
        subjects += [device.step_alone(source, step, where), device.trained(TRAINED, whole, step)]
    removals = ablation.removals(source) if ablate else []
    if ablate:
        subjects += [*ablation.bases(source), *(removal.subject for removal in removals)]
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
        ablation=ablation.results(list(bench.removals), costs[PIPELINE], costs),
        device_ops=frozenset(DEVICE_OPS),
    )


def _limit(source: Source, pool: stages.Pool) -> Subject:
    if source.is_raw:
        return limit.bare_read(LIMIT, source.files, source.record_bytes / source.choices.crops)
    return limit.bare_decode(LIMIT, pool.encoded, source.choices.crops)


def _stages(source: Source, costs: dict[str, Cost], model: str) -> tuple[Stage, ...]:
    image_ops = names_of(source.choices.image_ops)
    batch_ops = names_of(source.choices.whole_ops)[len(image_ops) :]
    kinds = {stages.READ: stages.READ, stages.PARSE: stages.PARSE, stages.CALL: CALL}
    kinds |= {name: AUGMENT if place else DECODE for place, name in enumerate(image_ops)}
    kinds |= {stages.BATCH: stages.BATCH, **dict.fromkeys(batch_ops, AUGMENT)}
    kinds |= {device.TRANSFER: device.TRANSFER, device.STEP: device.STEP}
    call = costs.get(stages.CALL)
    return tuple(
        Stage(
            name=model if kind == device.STEP else name,
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

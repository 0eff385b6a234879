"""Tables of figures, as a measurement would give them."""

from __future__ import annotations

from typing import Any

from trainer.bench.bottleneck import (
    AUGMENT,
    BATCH,
    CALL,
    DECODE,
    PARSE,
    READ,
    STEP,
    TRANSFER,
    Effect,
    Facts,
    Figures,
    Stage,
)
from trainer.bench.meter import Cost

_PHOTOGRAPHS = {
    "dataset": "photos",
    "split": "train",
    "records": 1811,
    "shards": 4,
    "record_bytes": 50e3,
    "policy": "copy",
    "short_px": 375.0,
    "side_px": 224,
    "batch_size": 64,
    "ops": "decode_random_crop(224)|flip",
    "threads": 2,
    "cores": 2,
    "readers": 8,
    "remote": False,
    "parse_batch": 64,
    "device": "CPU:0",
    "model": "",
    "in_memory": True,
}


def facts(**changed: Any) -> Facts:
    return Facts(**{**_PHOTOGRAPHS, **changed})


def figures(costs: dict[str, tuple[float, float]] | None = None, **changed: Any) -> Figures:
    """Photographs on two cores, which decoding limits; `costs` replaces (images/s, CPU us) of stages by name.

    Names of stages, and `ops`, `pipeline`, `limit`, `naive`, `tutorial`; what else is given is a fact, or of `Figures`.
    """
    plain = {
        "read": (14_000.0, 60.0),
        "parse": (31_000.0, 35.0),
        "call": (40_000.0, 20.0),
        "decode_random_crop(224)": (1_700.0, 590.0),
        "flip": (60_000.0, 15.0),
        "batch": (30_000.0, 30.0),
        "transfer": (120_000.0, 8.0),
        "ops": (1_650.0, 620.0),
        "pipeline": (1_560.0, 740.0),
        "limit": (1_610.0, 1_230.0),
        "naive": (730.0, 900.0),
        "tutorial": (1_040.0, 905.0),
        **(costs or {}),
    }
    costs_by_name = {name: Cost(rate=rate, cpu_us=cpu) for name, (rate, cpu) in plain.items()}
    kinds = {"read": READ, "parse": PARSE, "call": CALL, "batch": BATCH, "transfer": TRANSFER, "small_cnn": STEP}
    totals = ("ops", "pipeline", "limit", "naive", "tutorial", "trained")
    stages = [
        Stage(
            name=name,
            kind=kinds.get(name, DECODE if name.startswith("decode") else AUGMENT),
            cost=cost,
            cumulative_rate=cost.rate if name == "read" else None,
        )
        for name, cost in costs_by_name.items()
        if name not in totals
    ]
    own = {name: changed.pop(name) for name in ("limit_description", "ablation", "device_ops") if name in changed}
    return Figures(
        **{
            "facts": facts(**changed),
            "stages": tuple(stages),
            "prepare": costs_by_name["ops"],
            "pipeline": costs_by_name["pipeline"],
            "limit": costs_by_name["limit"],
            "limit_description": "bare decode of the same bytes",
            "baselines": {name: costs_by_name[name] for name in ("tutorial", "naive")},
            "trained": costs_by_name.get("trained"),
            "device_ops": frozenset({"flip", "cutout"}),
            **own,
        }
    )


def ablated(name: str = "batched parse", rate: float = 1_200.0) -> Effect:
    return Effect(name=name, without="parse_batch=1", base=1_560.0, rate=rate, base_cpu_us=740.0, cpu_us=800.0)

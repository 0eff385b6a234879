"""How classes, sizes and options of two datasets differ: facts about many images at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset.manifest import Manifest

_BINS = 10
_EPSILON = 1e-9
_MISSING = "(not set)"


@dataclass(frozen=True, kw_only=True)
class ClassChange:
    """A class that has another number of images in a split.

    Attributes:
      label: its name.
      old: images in the first dataset.
      new: in the second.
      share: change of its share of the split, -1 to 1.
    """

    label: str
    old: int
    new: int
    share: float


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """How the distribution of one number of the images of a split changed.

    Attributes:
      name: `height`, `width`, `bytes` or `brightness`.
      jensen_shannon: divergence with logarithms of base 2, 0 for equal distributions and 1 for disjoint ones.
      old: least, middle and greatest value of the first dataset.
      new: of the second.
    """

    name: str
    jensen_shannon: float
    old: tuple[float, float, float]
    new: tuple[float, float, float]


def options(old: Manifest, new: Manifest) -> dict[str, tuple[Any, Any]]:
    """Returns dotted name -> both values, of the options that differ."""
    sides = [dict(_flat({**one.options, "label_kind": one.label_kind})) for one in (old, new)]
    names = sorted({*sides[0], *sides[1]})
    pairs = {name: (sides[0].get(name, _MISSING), sides[1].get(name, _MISSING)) for name in names}
    return {name: values for name, values in pairs.items() if _text(values[0]) != _text(values[1])}


def labels(old: Manifest, new: Manifest) -> dict[str, tuple[str, ...]]:
    """Returns the class names that are `added` and `removed`, and those of both whose index is `renumbered`."""
    before, after = ({name: place for place, name in enumerate(one.labels)} for one in (old, new))
    found = {
        "added": tuple(name for name in after if name not in before),
        "removed": tuple(name for name in before if name not in after),
        "renumbered": tuple(name for name, place in before.items() if after.get(name, place) != place),
    }
    return {name: names for name, names in found.items() if names}


def classes(old: Manifest, new: Manifest) -> dict[str, list[ClassChange]]:
    """Returns of each split the classes whose number of images changed, the greatest change of their share first."""
    found = {}
    for split in dict.fromkeys([*old.splits, *new.splits]):
        before, after = (dict(one.splits[split].classes) if split in one.splits else {} for one in (old, new))
        sizes = [max(1, sum(side.values())) for side in (before, after)]
        changes = [
            ClassChange(
                label=name,
                old=before.get(name, 0),
                new=after.get(name, 0),
                share=after.get(name, 0) / sizes[1] - before.get(name, 0) / sizes[0],
            )
            for name in dict.fromkeys([*before, *after])
            if before.get(name, 0) != after.get(name, 0)
        ]
        if changes:
            found[split] = sorted(changes, key=lambda one: (-abs(one.share), -abs(one.new - one.old), one.label))
    return found


def facts(old: pa.Table, new: pa.Table, manifests: tuple[Manifest, Manifest]) -> dict[str, list[FactChange]]:
    """Returns of each split that both datasets have how far the numbers of its images lie apart.

    Args:
      old: written rows of `images.parquet` of the first.
      new: of the second.
      manifests: of both; brightness is compared where both measured it.
    """
    moments = all(one.channels is not None for one in manifests)
    found = {}
    for split in manifests[0].splits:
        sides = [side.filter(pc.equal(side["split"], split)) for side in (old, new)]
        if all(len(side) for side in sides):
            found[split] = [
                _fact(name, one, other)
                for (name, one), (_, other) in zip(*(_numbers(side, moments) for side in sides), strict=True)
            ]
    return found


def jensen_shannon(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the Jensen-Shannon divergence of two samples, base 2, over deciles of both together.

    Equal shares and not equal widths, for sizes have long tails: one huge file would put all others into one bin.

    Args:
      one: float64[values], one at least.
      other: likewise.
    """
    edges = _deciles(one, other)
    shares = [np.bincount(np.searchsorted(edges, part), minlength=len(edges) + 1) / len(part) for part in (one, other)]
    middle = (shares[0] + shares[1]) / 2
    return float(np.clip(sum(_entropy_terms(part, middle) for part in shares) / 2, 0, 1))


def _fact(name: str, one: np.ndarray, other: np.ndarray) -> FactChange:
    return FactChange(name=name, jensen_shannon=jensen_shannon(one, other), old=_spread(one), new=_spread(other))


def _numbers(images: pa.Table, moments: bool) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("height", "width", "bytes"):
        yield name, images[name].to_numpy().astype(np.float64)
    if moments:
        flat = np.concatenate([np.empty(0), *(chunk.flatten().to_numpy() for chunk in images["mean_rgb"].chunks)])
        if len(flat) == 3 * len(images):
            yield "brightness", flat.astype(np.float64).reshape(-1, 3).mean(axis=1)


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _deciles(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the inner edges of bins; each sample weighs the same, and a bin includes its upper edge."""
    values = np.concatenate([one, other])
    weights = np.concatenate([np.full(len(part), 0.5 / len(part)) for part in (one, other)])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, reached[-1] * np.arange(1, _BINS) / _BINS - _EPSILON)
    return np.unique(values[order][places])


def _entropy_terms(one: np.ndarray, middle: np.ndarray) -> float:
    ratio = np.divide(one, middle, out=np.ones_like(one), where=one > 0)
    return float((one * np.log2(ratio)).sum())


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def shown(values: Sequence[Any]) -> tuple[str, ...]:
    """Returns values of options as text."""
    return tuple(value if isinstance(value, str) else _text(value) for value in values)

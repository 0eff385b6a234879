"""Drift from the dataset before and skew between splits: measured for every feature, judged by the limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from beam_jobs.dataset.record import EXTRA_PREFIX
from components.dataset_gate.dataset import GateDataset
from components.dataset_gate.features import Feature
from components.dataset_gate.findings import Comparison, Finding
from components.dataset_gate.limits import GateLimits
from components.dataset_gate.measures import (
    JENSEN_SHANNON,
    L_INFINITY,
    MEASURES,
    common_edges,
    effective_size,
    histogram,
    sampling,
    shares,
)
from components.dataset_gate.names import short_name

_REMEDIES = {
    "drift": "look at what changed in the source; if the change is meant, raise {setting}",
    "skew": "mend the split, or leave it to the hash; if the splits are meant to differ, raise {setting}",
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a split of a dataset.

    Attributes:
      dataset: it.
      split: name of one of its splits.
      name: what to call this side.
    """

    dataset: GateDataset
    split: str
    name: str

    def feature(self, name: str) -> Feature:
        """Returns the values of a feature in the split."""
        return self.dataset.features[name].of(self.dataset.rows_of(self.split))


@dataclass(frozen=True)
class Compared:
    """A comparison, and where the two sides differ most, in words."""

    comparison: Comparison
    most: str


def skew(dataset: GateDataset, limits: GateLimits) -> Iterator[Compared]:
    """Compares the first split with every other."""
    first, *others = dataset.splits
    for split in others:
        yield from compare("skew", Side(dataset, first, first), Side(dataset, split, split), limits)


def drift(dataset: GateDataset, baseline: GateDataset, name: str, limits: GateLimits) -> Iterator[Compared]:
    """Compares every split with the split of the same name of the dataset before.

    Args:
      dataset: the dataset.
      baseline: the dataset before.
      name: what to call that one.
      limits: what is allowed.
    """
    for split in dataset.splits:
        if split in baseline.splits:
            yield from compare("drift", Side(baseline, split, name), Side(dataset, split, split), limits)


def compare(kind: str, baseline: Side, side: Side, limits: GateLimits) -> Iterator[Compared]:
    """Compares the features that both sides have; a user column that one of them lacks is missing from all its images.

    What is allowed is the limit of the settings and what sampling alone would give. Two samples of 30 images of one
    population differ by a lot, and two of 100,000 by next to nothing, so one limit serves both.
    """
    for name in _names(baseline.dataset, side.dataset):
        one, other = _feature(baseline, name), _feature(side, name)
        if one.names is not None or other.names is not None:
            one, other = one.as_categories(), other.as_categories()
        measure = JENSEN_SHANNON if one.names is None else L_INFINITY
        first, second, categories = _numbers(one, other) if one.names is None else _categories(one, other)
        value = float(MEASURES[measure](shares(first), shares(second)))
        sizes = (effective_size(one.owners, baseline.dataset.units), effective_size(other.owners, side.dataset.units))
        by_chance = sampling(measure, first, second, sizes)
        limit = limits.limit_of(kind, measure, name)
        most = _medians(one, other) if one.names is None else _category(categories, first, second)
        yield Compared(
            Comparison(
                kind=kind,
                baseline=baseline.name,
                split=side.name,
                feature=name,
                measure=measure,
                value=value,
                limit=min(1.0, limit + by_chance),
                sampling=by_chance,
            ),
            most,
        )


def finding_of(compared: Compared, limits: GateLimits) -> Finding | None:
    """Returns the finding of a comparison over its limit; None for one within it."""
    found = compared.comparison
    if found.value <= found.limit:
        return None
    name = short_name(found.feature)
    own = limits.limit_of(found.kind, found.measure, found.feature)
    setting = f"gate.max_{found.kind}_{found.measure}, or gate.{found.kind}_limits of {name} alone"
    return Finding(
        check=found.kind,
        split=found.split,
        feature=found.feature,
        value=f"{found.value:.3f} away from {found.baseline} by {found.measure} ({compared.most})",
        limit=f"{found.limit:.3f} ({own:g}, and {found.sampling:.3f} that sampling alone would give)",
        remedy=_REMEDIES[found.kind].format(setting=setting),
    )


def _names(one: GateDataset, other: GateDataset) -> list[str]:
    shared = [name for name in other.features if name in one.features]
    columns = sorted({*one.features, *other.features}.difference(shared))
    return shared + [name for name in columns if name.startswith(EXTRA_PREFIX)]


def _feature(side: Side, name: str) -> Feature:
    if name in side.dataset.features:
        return side.feature(name)
    rows = np.flatnonzero(side.dataset.rows_of(side.split))
    return Feature(name=name, values=np.full(len(rows), np.nan), owners=rows)


def _numbers(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    edges = common_edges(one.values[np.isfinite(one.values)], other.values[np.isfinite(other.values)])
    return histogram(one.values, edges), histogram(other.values, edges), ()


def _categories(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    names = tuple(dict.fromkeys([*(one.names or ()), *(other.names or ())]))
    places = {name: place for place, name in enumerate(names)}
    counts = []
    for feature in (one, other):
        codes = np.array([places[name] for name in feature.names or ()], np.int64)
        counts.append(np.bincount(codes[feature.values], minlength=len(names)))
    return counts[0], counts[1], names


def _category(names: tuple[str, ...], first: np.ndarray, second: np.ndarray) -> str:
    before, after = shares(first), shares(second)
    place = int(np.abs(before - after).argmax())
    return f"{names[place]}: {before[place]:.1%} there, {after[place]:.1%} here"


def _medians(one: Feature, other: Feature) -> str:
    before, after = (_median(feature.values) for feature in (one, other))
    return f"median {before} there, {after} here"


def _median(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "none"
    middle = float(np.median(finite))
    return f"{middle:.0f}" if 1000 <= abs(middle) < 1e15 else f"{middle:.4g}"

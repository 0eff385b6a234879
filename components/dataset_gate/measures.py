"""What of a dataset is compared with another, and how far two lie apart: skew between splits, drift over time.

A feature is one value an image, or several, from `images.parquet`. Distances are taken from counts: exact, and what
sampling alone would give.

L-infinity, for categories: the largest difference of the shares of one category, 0-1. Jensen-Shannon, for numbers: see
`beam_jobs.dataset.divergence`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.divergence import common_edges, histogram, jensen_shannon, shares
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.dataset.record import EXTRA_PREFIX
from components.dataset_gate.limits import CLASS, IMAGE_PREFIX, MISSING, Comparison, Finding, GateLimits, short_name


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The values of one feature.

    Attributes:
      name: such as `image/brightness`.
      values: float64[values], NaN where an image has none; or int64[values], places in `names`.
      owners: int64[values], the row of the image that has each value.
      names: the categories; None for numbers.
    """

    name: str
    values: np.ndarray
    owners: np.ndarray
    names: tuple[str, ...] | None = None

    def of(self, rows: np.ndarray) -> Feature:
        """Returns the values of some images.

        Args:
          rows: bool[images].
        """
        kept = rows[self.owners]
        return Feature(name=self.name, values=self.values[kept], owners=self.owners[kept], names=self.names)

    def as_categories(self) -> Feature:
        """Returns the same feature with each number as a category of its own."""
        if self.names is not None:
            return self
        return _categories(
            self.name, [MISSING if np.isnan(value) else f"{value:g}" for value in self.values], self.owners
        )


def features(images: pa.Table, label_kind: str, moments: bool) -> dict[str, Feature]:
    """Returns every feature of the images by name.

    Args:
      images: written rows of `images.parquet`.
      label_kind: one of `types.LABEL_KINDS`.
      moments: whether the mean of each channel was measured.
    """
    rows = np.arange(len(images))
    found = [_categories(IMAGE_PREFIX + "format", images["format"].to_pylist(), rows)]
    if label_kind != "none":
        found.append(_classes(images, label_kind))
    height, width = _floats(images["height"]), _floats(images["width"])
    numbers = {
        "short_side": np.minimum(height, width),
        "aspect_ratio": width / height,
        "bytes": _floats(images["bytes"]),
    }
    if moments:
        mean = schemas.triples(images["mean_rgb"]).astype(np.float64)
        numbers |= {"brightness": mean.mean(axis=1)}
        numbers |= {f"mean_{colour}": mean[:, place] for place, colour in enumerate(("red", "green", "blue"))}
    found += [Feature(name=IMAGE_PREFIX + name, values=values, owners=rows) for name, values in numbers.items()]
    found += _extras(images["extra"].to_pylist())
    return {feature.name: feature for feature in found}


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def _classes(images: pa.Table, label_kind: str) -> Feature:
    if label_kind == "single":
        return _categories(CLASS, images["label"].to_pylist(), np.arange(len(images)))
    labels = [(schemas.cell(text)["labels"] if text else None) or () for text in images["annotations"].to_pylist()]
    return _categories(CLASS, *_spread(labels, MISSING))


def _extras(texts: Sequence[str]) -> Iterator[Feature]:
    """Yields the user columns; one that holds a text anywhere is one of categories."""
    rows: list[Mapping[str, Any]] = [schemas.cell(text) for text in texts]
    for name in sorted({name for row in rows for name in row}):
        column = [_listed(row.get(name)) for row in rows]
        if any(isinstance(value, str) for values in column for value in values):
            texts_of = [[str(value) for value in values] for values in column]
            yield _categories(EXTRA_PREFIX + name, *_spread(texts_of, MISSING))
        else:
            values, owners = _spread(column, np.nan)
            yield Feature(name=EXTRA_PREFIX + name, values=np.array(values, np.float64), owners=owners)


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _spread(column: Sequence[Sequence[Any]], missing: Any) -> tuple[list[Any], np.ndarray]:
    """Returns all values of all images and whose they are; an image without one has `missing`."""
    full = [values or (missing,) for values in column]
    owners = np.repeat(np.arange(len(full)), [len(values) for values in full]) if full else np.zeros(0, np.int64)
    return [value for values in full for value in values], owners


def _categories(name: str, values: Iterable[str], owners: np.ndarray) -> Feature:
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return Feature(name=name, values=codes, owners=owners, names=tuple(encoded.dictionary.to_pylist()))


@dataclass(frozen=True)
class GateDataset:
    """A published dataset and its images.

    Attributes:
      manifest: `dataset.json`.
      images: the rows of `images.parquet` that were written; those of dropped copies are left out.
    """

    manifest: Manifest
    images: pa.Table

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.manifest.splits)

    @property
    def has_moments(self) -> bool:
        """Whether mean and variance of the channels were measured."""
        return self.manifest.channels is not None

    @functools.cached_property
    def split_of(self) -> np.ndarray:
        """Place of the split of each image, int64[images]."""
        places = pc.index_in(self.images["split"], value_set=pa.array(self.splits, pa.string()))
        return places.to_numpy().astype(np.int64)

    @functools.cached_property
    def units(self) -> np.ndarray:
        """A number for each image, int64[images]; equal for images of one group, look or content."""
        named = [pc.if_else(pc.equal(self.images[name], ""), None, self.images[name]) for name in ("near", "cluster")]
        group = pc.if_else(
            pc.equal(self.images["group"], ""), None, pc.binary_join_element_wise("g", self.images["group"], "")
        )
        unit = pc.coalesce(group, *named, pc.binary_join_element_wise("k", self.images["key"], ""))
        return pc.cast(unit, pa.string()).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """What can be compared, by name."""
        return features(self.images, self.manifest.label_kind, self.has_moments)

    def rows_of(self, split: str) -> np.ndarray:
        """Returns which images are in a split, bool[images]."""
        return self.split_of == self.splits.index(split)


def load_dataset(directory: str) -> GateDataset:
    """Reads a published dataset.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: a file of it is damaged.
    """
    described = manifest.load(directory)
    images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME))
    return GateDataset(described, images.filter(pc.greater_equal(images["shard"], 0)))


L_INFINITY = "l_infinity"
JENSEN_SHANNON = "jensen_shannon"

_DRAWS = 199  # the largest of them is exceeded by chance once in 200 times
_DRAWN = 1000  # categories; the largest difference that sampling gives is one of a frequent category


def l_infinity(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the L-infinity distance of shares along the last axis."""
    return np.abs(one - other).max(axis=-1)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    L_INFINITY: l_infinity,
    JENSEN_SHANNON: jensen_shannon,
}


def sampling(measure: str, one: np.ndarray, other: np.ndarray, sizes: tuple[float, float]) -> float:
    """Returns what a measure gives when both samples come from one population: the largest value of 199 draws.

    The population is that of both samples together. Draws are of a fixed seed, so equal counts give equal answers.

    Args:
      measure: one of `MEASURES`.
      one: counts.
      other: counts of the same categories or bins.
      sizes: independent images behind each.
    """
    population = shares(one + other)
    frequent = np.argsort(-population, kind="stable")[:_DRAWN]
    drawn = np.append(population[frequent], max(0.0, 1 - population[frequent].sum()))
    drawn = drawn / drawn.sum()
    random = np.random.default_rng(0)
    first, second = (random.multinomial(max(1, round(size)), drawn, _DRAWS) / max(1, round(size)) for size in sizes)
    return float(MEASURES[measure](first[:, :-1], second[:, :-1]).max())


def effective_size(owners: np.ndarray, units: np.ndarray) -> float:
    """Returns how many independent images the values are worth: (sum of weights)^2 / sum of squared weights.

    Frames of one video, or copies of one image, say little more than one of them. Source: L. Kish, "Survey Sampling"
    (1965).

    Args:
      owners: int64[values], the image of each value.
      units: int64[images], the same for images that belong together.
    """
    weights = np.bincount(units[owners])
    return float(weights.sum()) ** 2 / float((weights.astype(np.float64) ** 2).sum())


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
    for name in _names_of_both(baseline.dataset, side.dataset):
        one, other = _feature_of(baseline, name), _feature_of(side, name)
        if one.names is not None or other.names is not None:
            one, other = one.as_categories(), other.as_categories()
        measure = JENSEN_SHANNON if one.names is None else L_INFINITY
        first, second, categories = _paired_numbers(one, other) if one.names is None else _paired_categories(one, other)
        value = float(MEASURES[measure](shares(first), shares(second)))
        sizes = (effective_size(one.owners, baseline.dataset.units), effective_size(other.owners, side.dataset.units))
        by_chance = sampling(measure, first, second, sizes)
        limit = limits.limit_of(kind, measure, name)
        most = _medians(one, other) if one.names is None else _most_different(categories, first, second)
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


def _names_of_both(one: GateDataset, other: GateDataset) -> list[str]:
    shared = [name for name in other.features if name in one.features]
    columns = sorted({*one.features, *other.features}.difference(shared))
    return shared + [name for name in columns if name.startswith(EXTRA_PREFIX)]


def _feature_of(side: Side, name: str) -> Feature:
    if name in side.dataset.features:
        return side.feature(name)
    rows = np.flatnonzero(side.dataset.rows_of(side.split))
    return Feature(name=name, values=np.full(len(rows), np.nan), owners=rows)


def _paired_numbers(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    edges = common_edges(one.values[np.isfinite(one.values)], other.values[np.isfinite(other.values)])
    return histogram(one.values, edges), histogram(other.values, edges), ()


def _paired_categories(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    names = tuple(dict.fromkeys([*(one.names or ()), *(other.names or ())]))
    places = {name: place for place, name in enumerate(names)}
    counts = []
    for feature in (one, other):
        codes = np.array([places[name] for name in feature.names or ()], np.int64)
        counts.append(np.bincount(codes[feature.values], minlength=len(names)))
    return counts[0], counts[1], names


def _most_different(names: tuple[str, ...], first: np.ndarray, second: np.ndarray) -> str:
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

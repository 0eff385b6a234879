"""Drift from a baseline and skew between splits: features of a dataset, and distances between their distributions.

A feature has one or several values per image, from `images.parquet`. Distances are computed from counts, and compared
with the distance that random sampling can cause.

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
      name: name of the feature, such as `image/brightness`.
      values: float64[values], NaN for an image without a value; for categories int64[values], indices into `names`.
      owners: int64[values], the row of the image of each value.
      names: the categories; None for numbers.
    """

    name: str
    values: np.ndarray
    owners: np.ndarray
    names: tuple[str, ...] | None = None

    def select(self, mask: np.ndarray) -> Feature:
        """Returns the values of the images of a mask, bool[images]."""
        selected = mask[self.owners]
        return Feature(name=self.name, values=self.values[selected], owners=self.owners[selected], names=self.names)

    def as_categories(self) -> Feature:
        """Returns the feature with each distinct number as a category."""
        if self.names is not None:
            return self
        return _categories(
            self.name, [MISSING if np.isnan(value) else f"{value:g}" for value in self.values], self.owners
        )


def features(images: pa.Table, label_kind: str, channel_statistics: bool) -> dict[str, Feature]:
    """Returns the features of the images by name.

    Args:
      images: written rows of `images.parquet`.
      label_kind: one of `types.LABEL_KINDS`.
      channel_statistics: whether the images have channel means.
    """
    rows = np.arange(len(images))
    result = [_categories(IMAGE_PREFIX + "format", images["format"].to_pylist(), rows)]
    if label_kind != "none":
        result.append(_classes(images, label_kind))
    height, width = _floats(images["height"]), _floats(images["width"])
    numbers = {
        "short_side": np.minimum(height, width),
        "aspect_ratio": width / height,
        "bytes": _floats(images["bytes"]),
    }
    if channel_statistics:
        mean = schemas.triples(images["mean_rgb"]).astype(np.float64)
        numbers |= {"brightness": mean.mean(axis=1)}
        numbers |= {f"mean_{colour}": mean[:, index] for index, colour in enumerate(("red", "green", "blue"))}
    result += [Feature(name=IMAGE_PREFIX + name, values=values, owners=rows) for name, values in numbers.items()]
    result += _extras(images["extra"].to_pylist())
    return {feature.name: feature for feature in result}


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def _classes(images: pa.Table, label_kind: str) -> Feature:
    if label_kind == "single":
        return _categories(CLASS, images["label"].to_pylist(), np.arange(len(images)))
    labels = [(schemas.cell(text)["labels"] if text else None) or () for text in images["annotations"].to_pylist()]
    return _categories(CLASS, *_flatten(labels, MISSING))


def _extras(texts: Sequence[str]) -> Iterator[Feature]:
    """Yields the user columns; a column with a text is one of categories."""
    rows: list[Mapping[str, Any]] = [schemas.cell(text) for text in texts]
    for name in sorted({name for row in rows for name in row}):
        column = [_to_sequence(row.get(name)) for row in rows]
        if any(isinstance(value, str) for values in column for value in values):
            names = [[str(value) for value in values] for values in column]
            yield _categories(EXTRA_PREFIX + name, *_flatten(names, MISSING))
        else:
            values, owners = _flatten(column, np.nan)
            yield Feature(name=EXTRA_PREFIX + name, values=np.array(values, np.float64), owners=owners)


def _to_sequence(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _flatten(column: Sequence[Sequence[Any]], missing: Any) -> tuple[list[Any], np.ndarray]:
    """Returns the values of all images and the row of each; an image without values has the value `missing`."""
    filled = [values or (missing,) for values in column]
    owners = np.repeat(np.arange(len(filled)), [len(values) for values in filled]) if filled else np.zeros(0, np.int64)
    return [value for values in filled for value in values], owners


def _categories(name: str, values: Iterable[str], owners: np.ndarray) -> Feature:
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return Feature(name=name, values=codes, owners=owners, names=tuple(encoded.dictionary.to_pylist()))


@dataclass(frozen=True)
class GateDataset:
    """A published dataset and its images.

    Attributes:
      manifest: `dataset.json`.
      images: rows of `images.parquet`, without those of dropped copies.
    """

    manifest: Manifest
    images: pa.Table

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.manifest.splits)

    @property
    def has_channel_statistics(self) -> bool:
        """Whether the images have mean and variance of the channels."""
        return self.manifest.channels is not None

    @functools.cached_property
    def split_indices(self) -> np.ndarray:
        """Index of the split of each image, int64[images]."""
        indices = pc.index_in(self.images["split"], value_set=pa.array(self.splits, pa.string()))
        return indices.to_numpy().astype(np.int64)

    @functools.cached_property
    def units(self) -> np.ndarray:
        """Index of the unit of each image, int64[images]; images of one group, near cluster or content share a unit."""
        clusters = [
            pc.if_else(pc.equal(self.images[name], ""), None, self.images[name]) for name in ("near", "cluster")
        ]
        group = pc.if_else(
            pc.equal(self.images["group"], ""), None, pc.binary_join_element_wise("g", self.images["group"], "")
        )
        unit = pc.coalesce(group, *clusters, pc.binary_join_element_wise("k", self.images["key"], ""))
        return pc.cast(unit, pa.string()).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """The features by name."""
        return features(self.images, self.manifest.label_kind, self.has_channel_statistics)

    def split_mask(self, split: str) -> np.ndarray:
        """Returns whether each image is in a split, bool[images]."""
        return self.split_indices == self.splits.index(split)


def load_dataset(directory: str) -> GateDataset:
    """Reads a published dataset.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: a file of the dataset is damaged.
    """
    dataset = manifest.load(directory)
    images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME))
    return GateDataset(dataset, images.filter(pc.greater_equal(images["shard"], 0)))


L_INFINITY = "l_infinity"
JENSEN_SHANNON = "jensen_shannon"

_DRAWS = 199  # a further draw exceeds their maximum with a probability of 1/200
_MAX_CATEGORIES = 1000  # in a draw; the largest difference by sampling is that of a frequent category


def l_infinity(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the L-infinity distance of shares along the last axis."""
    return np.abs(one - other).max(axis=-1)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    L_INFINITY: l_infinity,
    JENSEN_SHANNON: jensen_shannon,
}


def sampling(measure: str, one: np.ndarray, other: np.ndarray, sizes: tuple[float, float]) -> float:
    """Returns the largest value of a measure in 199 pairs of random samples of one population.

    The population is both samples together. The seed is fixed, so that equal counts give equal results.

    Args:
      measure: one of `MEASURES`.
      one: counts of the first sample.
      other: counts of the second sample, of the same categories or bins.
      sizes: effective number of independent images of each sample.
    """
    population = shares(one + other)
    frequent = np.argsort(-population, kind="stable")[:_MAX_CATEGORIES]
    probabilities = np.append(population[frequent], max(0.0, 1 - population[frequent].sum()))
    probabilities = probabilities / probabilities.sum()
    random = np.random.default_rng(0)
    counts = [max(1, round(size)) for size in sizes]
    first, second = (random.multinomial(count, probabilities, _DRAWS) / count for count in counts)
    return float(MEASURES[measure](first[:, :-1], second[:, :-1]).max())


def effective_size(owners: np.ndarray, units: np.ndarray) -> float:
    """Returns the effective number of independent images: (sum of weights)^2 / sum of squared weights.

    Frames of one video, or copies of one image, add little information. Source: L. Kish, "Survey Sampling" (1965).

    Args:
      owners: int64[values], the row of the image of each value.
      units: int64[images], the index of the unit of each image.
    """
    weights = np.bincount(units[owners])
    return float(weights.sum()) ** 2 / float((weights.astype(np.float64) ** 2).sum())


_REMEDIES = {
    "drift": "check what changed in the source; if the change is intended, raise {setting}",
    "skew": "correct the split, or use the hash split; if the splits are intended to differ, raise {setting}",
}


@dataclass(frozen=True)
class Side:
    """A split of a dataset in a comparison.

    Attributes:
      dataset: the dataset.
      split: name of the split.
      name: name in findings.
    """

    dataset: GateDataset
    split: str
    name: str

    def feature(self, name: str) -> Feature:
        """Returns the values of a feature in the split; all are missing if the dataset lacks the feature."""
        mask = self.dataset.split_mask(self.split)
        if name in self.dataset.features:
            return self.dataset.features[name].select(mask)
        rows = np.flatnonzero(mask)
        return Feature(name=name, values=np.full(len(rows), np.nan), owners=rows)


@dataclass(frozen=True)
class Result:
    """A comparison, and a text about the largest difference."""

    comparison: Comparison
    difference: str


def skew(dataset: GateDataset, limits: GateLimits) -> Iterator[Result]:
    """Compares the first split with each of the others."""
    first, *others = dataset.splits
    for split in others:
        yield from compare("skew", Side(dataset, first, first), Side(dataset, split, split), limits)


def drift(dataset: GateDataset, baseline: GateDataset, name: str, limits: GateLimits) -> Iterator[Result]:
    """Compares every split with the split of the same name of the previous dataset.

    Args:
      dataset: the dataset of this run.
      baseline: the previous dataset.
      name: name of the previous dataset in findings.
      limits: limits of the gate.
    """
    for split in dataset.splits:
        if split in baseline.splits:
            yield from compare("drift", Side(baseline, split, name), Side(dataset, split, split), limits)


def compare(kind: str, baseline: Side, side: Side, limits: GateLimits) -> Iterator[Result]:
    """Compares the features that both sides have, and the user columns that one of them has.

    The limit of a comparison is the sum of that of the settings and the value that random sampling can cause. Random
    samples of 30 images differ much more than samples of 100,000; with the sum, one setting suits both.
    """
    for name in _feature_names(baseline.dataset, side.dataset):
        one, other = baseline.feature(name), side.feature(name)
        if one.names is not None or other.names is not None:
            one, other = one.as_categories(), other.as_categories()
        measure = JENSEN_SHANNON if one.names is None else L_INFINITY
        first, second, categories = _paired_numbers(one, other) if one.names is None else _paired_categories(one, other)
        value = float(MEASURES[measure](shares(first), shares(second)))
        sizes = (effective_size(one.owners, baseline.dataset.units), effective_size(other.owners, side.dataset.units))
        sampling_value = sampling(measure, first, second, sizes)
        limit = limits.limit_of(kind, measure, name)
        sides = (baseline.name, "this dataset" if kind == "drift" else side.name)
        is_number = one.names is None
        yield Result(
            Comparison(
                kind=kind,
                baseline=baseline.name,
                split=side.name,
                feature=name,
                measure=measure,
                value=value,
                limit=min(1.0, limit + sampling_value),
                sampling=sampling_value,
            ),
            _medians(one, other, sides) if is_number else _largest_difference(categories, first, second, sides),
        )


def make_finding(result: Result, limits: GateLimits) -> Finding:
    """Returns the finding of a comparison whose value exceeds its limit."""
    item = result.comparison
    limit = limits.limit_of(item.kind, item.measure, item.feature)
    setting = f"gate.max_{item.kind}_{item.measure}, or only gate.{item.kind}_limits of {short_name(item.feature)}"
    return Finding(
        check=item.kind,
        split=item.split,
        feature=item.feature,
        value=f"{item.value:.3f} away from {item.baseline} by {item.measure} ({result.difference})",
        limit=f"{item.limit:.3f} ({limit:g}, and {item.sampling:.3f} that sampling can cause)",
        remedy=_REMEDIES[item.kind].format(setting=setting),
    )


def _feature_names(one: GateDataset, other: GateDataset) -> list[str]:
    shared = [name for name in other.features if name in one.features]
    columns = sorted({*one.features, *other.features}.difference(shared))
    return shared + [name for name in columns if name.startswith(EXTRA_PREFIX)]


def _paired_numbers(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    edges = common_edges(one.values[np.isfinite(one.values)], other.values[np.isfinite(other.values)])
    return histogram(one.values, edges), histogram(other.values, edges), ()


def _paired_categories(one: Feature, other: Feature) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    names = tuple(dict.fromkeys([*(one.names or ()), *(other.names or ())]))
    indices = {name: index for index, name in enumerate(names)}
    counts = []
    for feature in (one, other):
        codes = np.array([indices[name] for name in feature.names or ()], np.int64)
        counts.append(np.bincount(codes[feature.values], minlength=len(names)))
    return counts[0], counts[1], names


def _largest_difference(
    categories: tuple[str, ...], first: np.ndarray, second: np.ndarray, sides: tuple[str, str]
) -> str:
    before, after = shares(first), shares(second)
    index = int(np.abs(before - after).argmax())
    return f"{categories[index]}: {sides[0]} {before[index]:.1%}, {sides[1]} {after[index]:.1%}"


def _medians(one: Feature, other: Feature, sides: tuple[str, str]) -> str:
    return f"median: {sides[0]} {_median(one.values)}, {sides[1]} {_median(other.values)}"


def _median(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "none"
    median = float(np.median(finite))
    return f"{median:.0f}" if 1000 <= abs(median) < 1e15 else f"{median:.4g}"

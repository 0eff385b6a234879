"""Drift from a baseline and skew between splits: features of a dataset, and distances between their distributions.

A feature has one or several values per image, from the image table: a query of a database, because the values of all
images may not fit in memory. Distances are computed from counts, and compared with the distance that random sampling
can cause.

L-infinity, for categories: the largest difference of the shares of one category, 0-1. Jensen-Shannon, for numbers: see
`beam_jobs.dataset.divergence`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from beam_jobs.dataset import lookup, manifest
from beam_jobs.dataset.divergence import common_edges, finite_part, histogram, jensen_shannon, median, shares
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.dataset.record import EXTRA_PREFIX
from beam_jobs.errors import CorruptDataset
from beam_jobs.planning.near_duplicates import run_starts
from beam_jobs.storage.database import Database
from components.dataset_gate.limits import CLASS, IMAGE_PREFIX, MISSING, Comparison, Finding, GateLimits, short_name


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of the images of a dataset.

    Attributes:
      query: selects `value`, a number (NaN for an image without a value) or a text, of the images of `$split`, and
        their `row` and `unit`.
      is_number: whether the values are numbers.
      column: user column that the query selects as `$column`; None for another feature.
      is_single: whether each image has one value; it may have several otherwise.
    """

    query: str
    is_number: bool
    column: str | None = None
    is_single: bool = True

    def as_categories(self) -> Feature:
        """Returns the feature with each distinct number as a category."""
        if not self.is_number:
            return self
        return replace(self, query=_NUMBERS_AS_TEXTS.format(query=self.query, missing=_MISSING), is_number=False)


_MISSING = f"'{MISSING}'"
_NUMBERS = {
    "short_side": "least(height, width)::DOUBLE",
    "aspect_ratio": "width::DOUBLE / height",
    "bytes": "bytes::DOUBLE",
}
_CHANNEL_NUMBERS = {
    "brightness": "(mean_rgb[1]::DOUBLE + mean_rgb[2] + mean_rgb[3]) / 3",
    **{f"mean_{colour}": f"mean_rgb[{index}]::DOUBLE" for index, colour in enumerate(("red", "green", "blue"), 1)},
}
_IMAGE_VALUE = "SELECT {value} AS value, row, unit FROM images WHERE split = $split"
_NUMBERS_AS_TEXTS = """
    SELECT CASE WHEN isnan(value) THEN {missing} ELSE format('{{:g}}', value) END AS value, row, unit FROM ({query})"""
_ALL_MISSING = Feature(query=_IMAGE_VALUE.format(value="'nan'::DOUBLE"), is_number=True)
_USER_COLUMNS = """
    SELECT name, bool_and(number IS NOT NULL), bool_and(is_first) FROM columns SEMI JOIN images USING (row)
    GROUP BY name ORDER BY name"""
_COLUMN_VALUE = """
    SELECT coalesce(given, {missing}) AS value, row, unit
    FROM images LEFT JOIN (SELECT row, {value} AS given FROM columns WHERE name = $column) USING (row)
    WHERE split = $split"""
_CLASSES = """
    SELECT coalesce(labels.label, {missing}) AS value, row, unit FROM images LEFT JOIN labels USING (row)
    WHERE split = $split"""


_COLUMNS = (
    *("key", "split", "shard", "group", "cluster", "near", "sha256", "label", "annotations", "extra", "format"),
    *("height", "width", "source_height", "source_width", "bytes", "dhash", "mean_rgb", "var_rgb"),
)
# Images of one group, near cluster or content share a unit.
_IMAGES = """
    CREATE TABLE images AS SELECT * EXCLUDE (annotations, extra, shard)
            REPLACE (coalesce(key, '') AS key, coalesce(format, '') AS format, coalesce(label, '') AS label),
        contains(annotations, '"objects": [') AS has_objects,
        hash(CASE WHEN "group" <> '' THEN 'g' || "group" WHEN near <> '' THEN near WHEN cluster <> '' THEN cluster
            ELSE 'k' || key END) AS unit
    FROM rows WHERE shard >= 0"""


_SPLIT_COUNTS = "SELECT split, count(*) FROM images GROUP BY split"


@dataclass(frozen=True)
class GateDataset:
    """A published dataset and its images.

    Attributes:
      manifest: `dataset.json`.
      database: the rows of the image table without those of dropped copies, as the table `images`, and
        the tables `columns` and `labels` of `lookup.open_images`.
    """

    manifest: Manifest
    database: Database

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.manifest.splits)

    @property
    def has_channel_statistics(self) -> bool:
        """Whether the images have mean and variance of the channels."""
        return self.manifest.channels is not None

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """The features by name."""
        result = {IMAGE_PREFIX + "format": Feature(query=_IMAGE_VALUE.format(value="format"), is_number=False)}
        if self.manifest.label_kind != "none":
            is_single = self.manifest.label_kind == "single"
            query = _IMAGE_VALUE.format(value="label") if is_single else _CLASSES.format(missing=_MISSING)
            result[CLASS] = Feature(query=query, is_number=False, is_single=is_single)
        for name, value in {**_NUMBERS, **(_CHANNEL_NUMBERS if self.has_channel_statistics else {})}.items():
            result[IMAGE_PREFIX + name] = Feature(query=_IMAGE_VALUE.format(value=value), is_number=True)
        for name, is_number, is_single in zip(*self.database.query(_USER_COLUMNS).to_pydict().values(), strict=True):
            value, missing = ("number", "'nan'::DOUBLE") if is_number else ("text", _MISSING)
            query = _COLUMN_VALUE.format(value=value, missing=missing)
            result[EXTRA_PREFIX + name] = Feature(query=query, is_number=is_number, column=name, is_single=is_single)
        return result

    @functools.cached_property
    def effective_sizes(self) -> dict[str, float]:
        """The effective number of independent images of each split."""
        query = "SELECT unit FROM images WHERE split = $split"
        return {split: Values(self.database, query, {"split": split}).effective_size() for split in self.splits}


@contextlib.contextmanager
def open_dataset(directory: str) -> Iterator[GateDataset]:
    """Yields a published dataset, whose rows are in a database until the end of the block.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: a file of the dataset is damaged.
    """
    dataset = manifest.load(directory)
    with lookup.open_images(directory, dataset, _COLUMNS, "rows", with_values=True) as database:
        database.run(_IMAGES)
        database.run("DROP TABLE rows")
        counts = dict(zip(*database.query(_SPLIT_COUNTS).to_pydict().values(), strict=True))
        if counts != {name: info.records for name, info in dataset.splits.items()}:
            raise CorruptDataset(f"the rows of {directory} are not those of its splits; write the dataset again")
        yield GateDataset(dataset, database)


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


_CATEGORIES = """
    CREATE OR REPLACE TABLE {table} AS SELECT value, count(*) AS n, min(row) AS row FROM ({values}) GROUP BY value"""
_PAIRED_CATEGORIES = """
    CREATE OR REPLACE TABLE categories AS
    SELECT value AS name, coalesce(one.n, 0) AS first, coalesce(other.n, 0) AS second,
        row_number() OVER (ORDER BY one.row NULLS LAST, other.row, value) AS number
    FROM first_categories AS one FULL JOIN second_categories AS other USING (value)"""


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

    def values(self, feature: Feature) -> Values:
        """Returns the values of a feature in the split."""
        parameters = {"split": self.split} | ({} if feature.column is None else {"column": feature.column})
        return Values(self.dataset.database, feature.query, parameters)

    def effective_size(self, feature: Feature) -> float:
        """Returns the effective number of independent images of a feature."""
        if feature.is_single:
            return self.dataset.effective_sizes[self.split]
        return self.values(feature).effective_size()


# Without their type the parameters would make it a division of 128 bits, which takes 200 times as long.
_UNITS = "SELECT unit FROM ({query}) WHERE unit % $parts::UBIGINT = $part::UBIGINT"
_COUNT = "SELECT count(*) FROM ({query})"
_UNITS_AT_ONCE = 2_000_000  # 8 bytes each, and their order; a query that groups them takes more memory


@dataclass(frozen=True)
class Values:
    """The values of a feature in a split: the query of a database, with its parameters."""

    database: Database
    query: str
    parameters: Mapping[str, object]

    def numbers(self) -> np.ndarray:
        """Returns the numbers, float64[values], in ascending order, NaN last."""
        return self.database.sorted_numbers(f"SELECT value FROM ({self.query})", **self.parameters)  # noqa: S608 - ours

    def effective_size(self) -> float:
        """Returns the effective number of independent images: (sum of weights)^2 / sum of squared weights.

        The weight of a unit is the number of its values: frames of one video, or copies of one image, add little
        information. Source: L. Kish, "Survey Sampling" (1965).
        """
        total = squares = 0.0
        parts = 1 + self.database.number(_COUNT.format(query=self.query), **self.parameters) // _UNITS_AT_ONCE
        for part in range(parts):
            query = _UNITS.format(query=self.query)
            units = np.sort(self.database.column(query, parts=parts, part=part, **self.parameters))
            weights = np.diff(run_starts(units), append=len(units)).astype(np.float64)
            total, squares = total + weights.sum(), squares + (weights**2).sum()
        return float(total**2 / squares)

    def count(self, table: str) -> None:
        """Creates a table of the distinct values: `value`, `n` images, and `row`, the first of them."""
        self.database.run(_CATEGORIES.format(table=table, values=self.query), **self.parameters)


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
        one, other = (dataset.features.get(name, _ALL_MISSING) for dataset in (baseline.dataset, side.dataset))
        is_number = one.is_number and other.is_number
        if not is_number:
            one, other = one.as_categories(), other.as_categories()
        names = (baseline.name, "this dataset" if kind == "drift" else side.name)
        values = (baseline.values(one), side.values(other))
        first, second, difference = (_compare_numbers if is_number else _compare_categories)(*values, names)
        measure = JENSEN_SHANNON if is_number else L_INFINITY
        value = float(MEASURES[measure](shares(first), shares(second)))
        sizes = (baseline.effective_size(one), side.effective_size(other))
        sampling_value = sampling(measure, first, second, sizes)
        limit = limits.limit_of(kind, measure, name)
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
            difference,
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


def _compare_numbers(one: Values, other: Values, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the counts of both sides in common bins, and their medians as text."""
    values = (one.numbers(), other.numbers())
    edges = common_edges(*map(finite_part, values))
    medians = ", ".join(f"{name} {_median(side)}" for name, side in zip(names, values, strict=True))
    return histogram(values[0], edges), histogram(values[1], edges), f"median: {medians}"


def _compare_categories(one: Values, other: Values, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the counts of both sides in all categories, and the largest difference as text."""
    database = one.database
    one.count("first_categories")
    other.count("second_categories")
    if other.database is not database:
        database.run("DROP TABLE IF EXISTS second_categories")
        database.insert_all("second_categories", other.database.tables("SELECT * FROM second_categories"))
    database.run(_PAIRED_CATEGORIES)
    first = database.column("SELECT first FROM categories ORDER BY number")
    second = database.column("SELECT second FROM categories ORDER BY number")
    before, after = shares(first), shares(second)
    index = int(np.abs(before - after).argmax())
    (category,) = database.query("SELECT name FROM categories WHERE number = $n", n=index + 1)["name"].to_pylist()
    return first, second, f"{category}: {names[0]} {before[index]:.1%}, {names[1]} {after[index]:.1%}"


def _median(values: np.ndarray) -> str:
    finite = finite_part(values)
    if not len(finite):
        return "none"
    middle = median(finite)
    return f"{middle:.0f}" if 1000 <= abs(middle) < 1e15 else f"{middle:.4g}"

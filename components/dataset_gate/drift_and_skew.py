"""Drift from a baseline and skew between splits: features of a dataset, and distances between their distributions.

A feature has one or several values per image, which a query selects from the image table in a database: the values of
all images may not fit in memory. Distances are computed from counts, and compared with the distance that random
sampling can cause.

The L-infinity distance, for categories, is the largest difference of the shares of a category, 0-1. For the
Jensen-Shannon distance, for numbers, see `beam_jobs.dataset.divergence`.
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
      query: SQL that selects `row`, `unit` and `value` of the images of `$split`. The value is a number, NaN for an
        image without a value, or a text.
      is_number: whether the values are numbers.
      column: user column, the parameter `$column` of the query; None if the feature is not a user column.
      is_single: whether each image has exactly one value.
    """

    query: str
    is_number: bool
    column: str | None = None
    is_single: bool = True

    def as_categories(self) -> Feature:
        """Returns the feature with its numbers converted to categories; a categorical feature is unchanged."""
        if not self.is_number:
            return self
        return replace(self, query=_NUMBERS_AS_TEXTS.format(query=self.query, missing=_MISSING), is_number=False)


_MISSING = f"'{MISSING}'"
_NUMBERS = {  # name of the feature in the settings -> SQL expression
    "short_side": "least(height, width)::DOUBLE",
    "aspect_ratio": "width::DOUBLE / height",
    "bytes": "bytes::DOUBLE",
}
_CHANNEL_NUMBERS = {  # as above, for datasets with channel statistics
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
# `unit` is the hash of the group, near cluster or exact copies of an image, else of its key.
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
      database: database with the table `images`, the rows of the image table without dropped copies, and with the
        tables `columns` and `labels` of `lookup.open_images`.
    """

    manifest: Manifest
    database: Database

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.manifest.splits)

    @property
    def has_channel_statistics(self) -> bool:
        """Whether the dataset has the means and variances of the channels."""
        return self.manifest.channels is not None

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """The features of the dataset, by full name."""
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
        """Split -> effective number of independent images."""
        query = "SELECT unit FROM images WHERE split = $split"
        return {split: Values(self.database, query, {"split": split}).effective_size() for split in self.splits}


@contextlib.contextmanager
def open_dataset(directory: str) -> Iterator[GateDataset]:
    """Yields a published dataset with its rows in a database, which is closed at the end of the block.

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
            raise CorruptDataset(f"the image table of {directory} does not match its splits; write the dataset again")
        yield GateDataset(dataset, database)


L_INFINITY = "l_infinity"
JENSEN_SHANNON = "jensen_shannon"

_DRAWS = 199  # number of random draws; a further draw exceeds their maximum with a probability of 1/200
_MAX_CATEGORIES = 1000  # number of categories in a draw; sampling causes the largest difference in a frequent one


def l_infinity(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the L-infinity distance between two arrays of shares, along the last axis."""
    return np.abs(one - other).max(axis=-1)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    L_INFINITY: l_infinity,
    JENSEN_SHANNON: jensen_shannon,
}


def sampling_value(measure: str, one: np.ndarray, other: np.ndarray, sizes: tuple[float, float]) -> float:
    """Returns the largest value of a measure in 199 pairs of random samples from one population.

    The population is both samples together. The seed is fixed, so that equal counts give equal results.

    Args:
      measure: one of `MEASURES`.
      one: counts of the first sample.
      other: counts of the second sample, of the same categories or bins.
      sizes: effective number of independent images of each sample.
    """
    population = shares(one + other)
    frequent = np.argsort(-population, kind="stable")[:_MAX_CATEGORIES]
    probabilities = np.append(population[frequent], max(0.0, 1 - population[frequent].sum()))  # last: the others
    probabilities = probabilities / probabilities.sum()
    random = np.random.default_rng(0)
    counts = [max(1, round(size)) for size in sizes]
    one_shares, other_shares = (random.multinomial(count, probabilities, _DRAWS) / count for count in counts)
    return float(MEASURES[measure](one_shares[:, :-1], other_shares[:, :-1]).max())


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
    """One of the two splits in a comparison.

    Attributes:
      dataset: dataset of the split.
      split: name of the split.
      name: name of the split, or of its dataset, in findings.
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


# A parameter without a type would result in a division of 128-bit numbers, which takes 200 times as long.
_UNITS = "SELECT unit FROM ({query}) WHERE unit % $parts::UBIGINT = $part::UBIGINT"
_COUNT = "SELECT count(*) FROM ({query})"
_UNITS_PER_QUERY = 2_000_000  # sorted in memory, 8 bytes each; GROUP BY in the database would take more memory


@dataclass(frozen=True)
class Values:
    """The values of a feature in a split, selected by a database query with parameters."""

    database: Database
    query: str
    parameters: Mapping[str, object]

    def numbers(self) -> np.ndarray:
        """Returns the values of a number, float64[values], in ascending order, NaN last."""
        return self.database.sorted_numbers(f"SELECT value FROM ({self.query})", **self.parameters)  # noqa: S608 - ours

    def effective_size(self) -> float:
        """Returns the effective number of independent images: (sum of weights)^2 / sum of squared weights.

        The weight of a unit is the number of its values, because the frames of a video, or copies of an image, are not
        independent. Source: L. Kish, "Survey Sampling" (1965).
        """
        total = squares = 0.0
        parts = 1 + self.database.number(_COUNT.format(query=self.query), **self.parameters) // _UNITS_PER_QUERY
        for part in range(parts):
            query = _UNITS.format(query=self.query)
            units = np.sort(self.database.column(query, parts=parts, part=part, **self.parameters))
            weights = np.diff(run_starts(units), append=len(units)).astype(np.float64)
            total, squares = total + weights.sum(), squares + (weights**2).sum()
        return float(total**2 / squares)

    def count(self, table: str) -> None:
        """Creates a table of the distinct values: `value`, its number of images `n`, and `row`, the first of them."""
        self.database.run(_CATEGORIES.format(table=table, values=self.query), **self.parameters)


@dataclass(frozen=True)
class Result:
    """A comparison, and the largest difference as text."""

    comparison: Comparison
    difference: str


def skew(dataset: GateDataset, limits: GateLimits) -> Iterator[Result]:
    """Yields the comparisons of the first split with each other split."""
    first_split, *later_splits = dataset.splits
    for split in later_splits:
        yield from compare("skew", Side(dataset, first_split, first_split), Side(dataset, split, split), limits)


def drift(dataset: GateDataset, baseline: GateDataset, name: str, limits: GateLimits) -> Iterator[Result]:
    """Yields the comparisons of every split with the split of the same name of the previous dataset.

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
    """Yields the comparisons of the features of both sides, and of the user columns of at least one side.

    The limit of a comparison is the sum of the limit in the settings and of the value that random sampling can cause.
    Random samples of 30 images differ much more than samples of 100,000; with the sum, one setting suits both.
    """
    for name in _compared_features(baseline.dataset, side.dataset):
        one, other = (dataset.features.get(name, _ALL_MISSING) for dataset in (baseline.dataset, side.dataset))
        is_number = one.is_number and other.is_number
        if not is_number:
            one, other = one.as_categories(), other.as_categories()
        names = (baseline.name, "this dataset" if kind == "drift" else side.name)
        values = (baseline.values(one), side.values(other))
        counts, other_counts, difference = (_compare_numbers if is_number else _compare_categories)(*values, names)
        measure = JENSEN_SHANNON if is_number else L_INFINITY
        value = float(MEASURES[measure](shares(counts), shares(other_counts)))
        sizes = (baseline.effective_size(one), side.effective_size(other))
        by_sampling = sampling_value(measure, counts, other_counts, sizes)
        limit = limits.limit_of(kind, measure, name)
        yield Result(
            Comparison(
                kind=kind,
                baseline=baseline.name,
                split=side.name,
                feature=name,
                measure=measure,
                value=value,
                limit=min(1.0, limit + by_sampling),
                sampling=by_sampling,
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


def _compared_features(one: GateDataset, other: GateDataset) -> list[str]:
    shared_names = [name for name in other.features if name in one.features]
    other_names = sorted({*one.features, *other.features}.difference(shared_names))
    return shared_names + [name for name in other_names if name.startswith(EXTRA_PREFIX)]


def _compare_numbers(one: Values, other: Values, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the counts of both sides in common bins, and their medians as text."""
    values = (one.numbers(), other.numbers())
    edges = common_edges(*map(finite_part, values))
    medians = ", ".join(f"{name} {_median_text(side)}" for name, side in zip(names, values, strict=True))
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
    counts = database.column("SELECT first FROM categories ORDER BY number")
    other_counts = database.column("SELECT second FROM categories ORDER BY number")
    one_shares, other_shares = shares(counts), shares(other_counts)
    index = int(np.abs(one_shares - other_shares).argmax())
    (category,) = database.query("SELECT name FROM categories WHERE number = $n", n=index + 1)["name"].to_pylist()
    return counts, other_counts, f"{category}: {names[0]} {one_shares[index]:.1%}, {names[1]} {other_shares[index]:.1%}"


def _median_text(values: np.ndarray) -> str:
    finite = finite_part(values)
    if not len(finite):
        return "none"
    middle = median(finite)
    return f"{middle:.0f}" if 1000 <= abs(middle) < 1e15 else f"{middle:.4g}"

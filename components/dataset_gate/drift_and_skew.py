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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

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
      query: selects `row`, the row of the image of each value, and `value`, a number (NaN for an image without a value)
        or a text.
      is_number: whether the values are numbers.
      column: user column that the query selects as `$column`; None for another feature.
    """

    query: str
    is_number: bool
    column: str | None = None

    def as_categories(self) -> Feature:
        """Returns the feature with each distinct number as a category."""
        if not self.is_number:
            return self
        return Feature(
            query=_NUMBERS_AS_TEXTS.format(query=self.query, missing=_MISSING), is_number=False, column=self.column
        )


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
_IMAGE_VALUE = "SELECT row, {value} AS value FROM images"
_NUMBERS_AS_TEXTS = """
    SELECT row, CASE WHEN isnan(value) THEN {missing} ELSE format('{{:g}}', value) END AS value FROM ({query})"""
_ALL_MISSING = Feature(query="SELECT row, 'nan'::DOUBLE AS value FROM images", is_number=True)
_USER_COLUMNS = """
    SELECT name, bool_and(number IS NOT NULL) FROM columns SEMI JOIN images USING (row) GROUP BY name ORDER BY name"""
_COLUMN_VALUE = """
    SELECT row, {value} AS value FROM columns WHERE name = $column
    UNION ALL
    SELECT row, {missing} FROM images ANTI JOIN (SELECT row FROM columns WHERE name = $column) AS given USING (row)"""
_CLASSES = """
    SELECT row, label AS value FROM labels UNION ALL SELECT row, {missing} FROM images ANTI JOIN labels USING (row)"""


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
            result[CLASS] = Feature(query=query, is_number=False)
        for name, value in {**_NUMBERS, **(_CHANNEL_NUMBERS if self.has_channel_statistics else {})}.items():
            result[IMAGE_PREFIX + name] = Feature(query=_IMAGE_VALUE.format(value=value), is_number=True)
        for name, is_number in zip(*self.database.query(_USER_COLUMNS).to_pydict().values(), strict=True):
            value, missing = ("number", "'nan'::DOUBLE") if is_number else ("text", _MISSING)
            query = _COLUMN_VALUE.format(value=value, missing=missing)
            result[EXTRA_PREFIX + name] = Feature(query=query, is_number=is_number, column=name)
        return result


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


_UNITS = "SELECT unit FROM {table} WHERE unit % $parts = $part"
_COUNT = "SELECT count(*) FROM {table}"
_UNITS_AT_ONCE = 1_000_000  # 8 bytes each, and their order; a query that groups them takes more memory
_SELECTED = """
    CREATE OR REPLACE TABLE {table} AS
    SELECT value, unit, row FROM ({query}) AS feature JOIN images USING (row) WHERE split = $split"""
_CATEGORIES = """
    CREATE OR REPLACE TABLE {table} AS SELECT value, count(*) AS n, min(row) AS row FROM {values} GROUP BY value"""
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

    @property
    def database(self) -> Database:
        """The rows of the dataset."""
        return self.dataset.database

    def select(self, feature: Feature, table: str) -> None:
        """Creates a table of the values of a feature in the split."""
        parameters = {} if feature.column is None else {"column": feature.column}
        self.database.run(_SELECTED.format(table=table, query=feature.query), split=self.split, **parameters)

    def effective_size(self, table: str) -> float:
        """Returns the effective number of independent images: (sum of weights)^2 / sum of squared weights.

        Frames of one video, or copies of one image, add little information. Source: L. Kish, "Survey Sampling" (1965).

        Args:
          table: values of a feature; the weight of a unit is their number.
        """
        total = squares = 0.0
        parts = 1 + self.database.number(_COUNT.format(table=table)) // _UNITS_AT_ONCE
        for part in range(parts):
            units = np.sort(self.database.column(_UNITS.format(table=table), parts=parts, part=part))
            weights = np.diff(run_starts(units), append=len(units)).astype(np.float64)
            total, squares = total + weights.sum(), squares + (weights**2).sum()
        return float(total**2 / squares)


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
        baseline.select(one, "first")
        side.select(other, "second")
        names = (baseline.name, "this dataset" if kind == "drift" else side.name)
        first, second, difference = (_compare_numbers if is_number else _compare_categories)(baseline, side, names)
        measure = JENSEN_SHANNON if is_number else L_INFINITY
        value = float(MEASURES[measure](shares(first), shares(second)))
        sizes = (baseline.effective_size("first"), side.effective_size("second"))
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


def _compare_numbers(one: Side, other: Side, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the counts of both sides in common bins, and their medians as text."""
    values = [
        one.database.sorted_numbers("SELECT value FROM first"),
        other.database.sorted_numbers("SELECT value FROM second"),
    ]
    edges = common_edges(*map(finite_part, values))
    medians = ", ".join(f"{name} {_median(side)}" for name, side in zip(names, values, strict=True))
    return histogram(values[0], edges), histogram(values[1], edges), f"median: {medians}"


def _compare_categories(one: Side, other: Side, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the counts of both sides in all categories, and the largest difference as text."""
    database = one.database
    database.run(_CATEGORIES.format(table="first_categories", values="first"))
    other.database.run(_CATEGORIES.format(table="second_categories", values="second"))
    if other.database is not database:
        database.run("DROP TABLE IF EXISTS second_categories")
        batches = other.database.batches("SELECT * FROM second_categories")
        database.insert_all("second_categories", (pa.Table.from_batches([batch]) for batch in batches))
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

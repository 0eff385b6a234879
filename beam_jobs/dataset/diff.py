"""Differences between two published datasets: images, labels, splits, classes, sizes and options.

All values come from `dataset.json` and the image table, which is read by column; no shard is opened. Images are
matched by key, and images without a match are matched by content: a file that was moved to the folder of another class
is one image with another label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from beam_jobs.dataset import divergence, lookup, manifest, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.storage.database import Database, open_database

_MISSING = "(not set)"


@dataclass(frozen=True, kw_only=True)
class ClassChange:
    """A class whose number of images in a split changed.

    Attributes:
      label: class name.
      old: number of images in the first dataset.
      new: number of images in the second dataset.
      share: change of the share of the class in the split, -1 to 1.
    """

    label: str
    old: int
    new: int
    share: float


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """Change of the distribution of a fact of the images of a split.

    Attributes:
      name: `height`, `width`, `bytes` or `brightness`.
      jensen_shannon: divergence with logarithms of base 2, 0 for equal distributions and 1 for disjoint ones.
      old: minimum, median and maximum in the first dataset.
      new: minimum, median and maximum in the second dataset.
    """

    name: str
    jensen_shannon: float
    old: tuple[float, float, float]
    new: tuple[float, float, float]


def compare_options(old: Manifest, new: Manifest) -> dict[str, tuple[Any, Any]]:
    """Returns dotted name of an option -> old and new value, for the options that differ."""
    options = [dict(_flatten({**dataset.options, "label_kind": dataset.label_kind})) for dataset in (old, new)]
    names = sorted({*options[0], *options[1]})
    pairs = {name: (options[0].get(name, _MISSING), options[1].get(name, _MISSING)) for name in names}
    return {name: values for name, values in pairs.items() if _json_text(values[0]) != _json_text(values[1])}


def compare_labels(old: Manifest, new: Manifest) -> dict[str, tuple[str, ...]]:
    """Returns `added`, `removed` or `renumbered` -> class names; class names are renumbered if their index changed."""
    old_indices, new_indices = ({name: index for index, name in enumerate(dataset.labels)} for dataset in (old, new))
    changes = {
        "added": tuple(name for name in new_indices if name not in old_indices),
        "removed": tuple(name for name in old_indices if name not in new_indices),
        "renumbered": tuple(name for name, index in old_indices.items() if new_indices.get(name, index) != index),
    }
    return {name: names for name, names in changes.items() if names}


def compare_classes(old: Manifest, new: Manifest) -> dict[str, list[ClassChange]]:
    """Returns split -> classes whose number of images changed, sorted by the change of their share, largest first."""
    changes_by_split = {}
    for split in dict.fromkeys([*old.splits, *new.splits]):
        old_counts, new_counts = (side.splits[split].classes if split in side.splits else {} for side in (old, new))
        totals = [max(1, sum(counts.values())) for counts in (old_counts, new_counts)]  # 1 avoids a division by 0
        changes = [
            ClassChange(
                label=name,
                old=old_counts.get(name, 0),
                new=new_counts.get(name, 0),
                share=new_counts.get(name, 0) / totals[1] - old_counts.get(name, 0) / totals[0],
            )
            for name in dict.fromkeys([*old_counts, *new_counts])
            if old_counts.get(name, 0) != new_counts.get(name, 0)
        ]
        if changes:
            changes_by_split[split] = sorted(changes, key=lambda c: (-abs(c.share), -abs(c.new - c.old), c.label))
    return changes_by_split


def compare_facts(images: Database, manifests: tuple[Manifest, Manifest]) -> dict[str, list[FactChange]]:
    """Returns split -> changes of the distributions of image sizes and brightness, for the splits of both datasets.

    Args:
      images: database with the tables `old` and `new` of the written images.
      manifests: first and second manifest; brightness is compared if both have channel statistics.
    """
    names = ["height", "width", "bytes"]
    if all(dataset.channels is not None for dataset in manifests):
        names.append("brightness")
    changes_by_split = {}
    for split in manifests[0].splits:
        changes = []
        for name in names:
            samples = [images.sorted_numbers(_FACT_VALUES.format(name=name, side=side), split=split) for side in _SIDES]
            if all(len(sample) and np.isfinite(sample[[0, -1]]).all() for sample in samples):
                changes.append(_compare_samples(name, *samples))
        if changes:
            changes_by_split[split] = changes
    return changes_by_split


def _compare_samples(name: str, old: np.ndarray, new: np.ndarray) -> FactChange:
    jensen_shannon = divergence.sample_divergence(old, new)
    return FactChange(name=name, jensen_shannon=jensen_shannon, old=_min_median_max(old), new=_min_median_max(new))


def _min_median_max(sorted_values: np.ndarray) -> tuple[float, float, float]:
    return float(sorted_values[0]), divergence.median(sorted_values), float(sorted_values[-1])


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted name and the value of each leaf of nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def option_texts(values: Sequence[Any]) -> tuple[str, ...]:
    """Returns values of options as text."""
    return tuple(value if isinstance(value, str) else _json_text(value) for value in values)


_SIDES = ("old", "new")
_COLUMNS = (
    *("key", "label", "split", "extra", "annotations", "height", "width", "bytes", "sha256", "source_sha256"),
    *("mean_rgb", "shard"),
)
_PART_IMAGES = 500_000  # approximate number of images that are matched at a time
_WRITTEN_IMAGES = """
    CREATE TABLE {side}_{part} AS
    SELECT row, shard, coalesce(key, '') AS key, coalesce(split, '') AS split, coalesce({label}, '') AS label,
        coalesce(sha256, '') AS sha256, coalesce(source_sha256, '') AS source_sha256, coalesce(extra, '') AS extra,
        coalesce(regexp_replace(annotations, '{label_re}', ''), '') AS annotations, height, width, bytes,
        list_sum(mean_rgb::DOUBLE[]) / 3 AS brightness
    FROM {side}_rows WHERE shard >= 0 AND hash(coalesce(key, '')) % {parts} = {part}"""
_LARGER_ROW_COUNT = "SELECT greatest((SELECT count(*) FROM old_rows), (SELECT count(*) FROM new_rows))"
_FACT_VALUES = "SELECT coalesce({name}::DOUBLE, 'nan') FROM {side} WHERE split = $split"
# Images are matched by key, in parts; images without a match are then matched by these columns, in this order.
_CONTENT_COLUMNS = ("source_sha256, label", "source_sha256", "sha256")
# If several rows are equal, the n-th row of the old table is paired with the n-th row of the new table.
_CREATE_PAIRS = """
    CREATE OR REPLACE TABLE pairs AS SELECT old_rows.row AS old_row, new_rows.row AS new_row FROM
        (SELECT row, {columns}, row_number() OVER (PARTITION BY {columns} ORDER BY row) AS nth FROM {old}) AS old_rows
        JOIN (SELECT row, {columns}, row_number() OVER (PARTITION BY {columns} ORDER BY row) AS nth
            FROM {new}) AS new_rows USING ({columns}, nth)"""
_CREATE_COMPARED = """
    CREATE TABLE compared (
        renamed BOOLEAN, relabelled BOOLEAN, changed BOOLEAN, stored_otherwise BOOLEAN, moved BOOLEAN,
        annotated BOOLEAN, key VARCHAR, split VARCHAR, label VARCHAR, new_key VARCHAR, new_split VARCHAR,
        new_label VARCHAR)"""
_ADD_COMPARED = """
    INSERT INTO compared WITH both_sides AS (
        SELECT NOT {by_key} AS renamed, old.label <> new.label AS relabelled,
            {by_key} AND old.sha256 <> new.sha256 AS changed,
            {by_key} AND old.sha256 <> new.sha256 AND old.source_sha256 = new.source_sha256 AS stored_otherwise,
            old.split <> new.split AS moved,
            old.annotations <> new.annotations OR old.extra <> new.extra AS annotated,
            old.key, old.split, old.label, new.key AS new_key, new.split AS new_split, new.label AS new_label
        FROM pairs JOIN {old} AS old ON old.row = old_row JOIN {new} AS new ON new.row = new_row)
    SELECT * FROM both_sides WHERE renamed OR relabelled OR changed OR moved OR annotated"""
_CREATE_UNMATCHED = "CREATE TABLE {side}_unmatched AS SELECT * FROM {side} LIMIT 0"  # images without a pair
_ADD_UNMATCHED = "INSERT INTO {side}_unmatched SELECT * FROM {side}_{part} ANTI JOIN pairs ON row = {side}_row"
_REMOVE_MATCHED = "DELETE FROM {side}_unmatched WHERE row IN (SELECT {side}_row FROM pairs)"
# Kind of change -> query of its images, sorted by key.
_ONE_SIDE = "SELECT key, split, label FROM {side}_unmatched ORDER BY key, row"
_BOTH_SIDES = "SELECT key, split, label, new_key, new_split, new_label FROM compared WHERE {kind} ORDER BY key, new_key"
_CHANGE_QUERIES = {
    "added": _ONE_SIDE.format(side="new"),
    "removed": _ONE_SIDE.format(side="old"),
    **{kind: _BOTH_SIDES.format(kind=kind) for kind in ("renamed", "relabelled", "changed", "moved", "annotated")},
}
_STORED_OTHERWISE = "SELECT count(*) FROM compared WHERE stored_otherwise"
_ROW_COUNT = "SELECT count(*) FROM ({query})"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The images of one kind of change.

    Attributes:
      count: number of images.
      images: first images by key; the names of values in the second dataset begin with `new_` if both have the image.
    """

    count: int = 0
    images: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences between two datasets.

    Attributes:
      digests: digests of the first and the second dataset.
      written: numbers of written images of the first and the second dataset.
      added: images of the second dataset without a match, by key or content, in the first dataset.
      removed: images of the first dataset without a match in the second dataset.
      renamed: images with the same content under another key.
      relabelled: images whose label differs.
      changed: images with the same key whose stored bytes differ.
      stored_otherwise: number of `changed` images whose source bytes are equal; only the options changed their bytes.
      moved: images whose split differs.
      annotated: images whose boxes, masks, weights or user columns differ.
      classes: split -> classes whose number of images changed.
      facts: split that both datasets have -> changes of height, width, bytes and brightness.
      options: dotted name -> old and new value of the options that differ.
      labels: `added`, `removed` and `renumbered` class names.
    """

    digests: tuple[str, str]
    written: tuple[int, int]
    added: Changes = Changes()
    removed: Changes = Changes()
    renamed: Changes = Changes()
    relabelled: Changes = Changes()
    changed: Changes = Changes()
    stored_otherwise: int = 0
    moved: Changes = Changes()
    annotated: Changes = Changes()
    classes: Mapping[str, Sequence[ClassChange]] = field(default_factory=dict)
    facts: Mapping[str, Sequence[FactChange]] = field(default_factory=dict)
    options: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether both datasets have the same bytes and the same options."""
        return self.digests[0] == self.digests[1] and not self.options

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"equal": self.is_equal, **asdict(self)}


def diff(old: str, new: str, limit: int = 10) -> Difference:
    """Compares two published datasets, local or remote.

    Args:
      old: directory of the first dataset.
      new: directory of the second dataset.
      limit: number of images to list for each kind of change; 0 for all images.

    Raises:
      SourceError: a directory is not a published dataset.
      CorruptDataset: a file of a dataset is damaged.
    """
    manifests = manifest.load(old), manifest.load(new)
    difference = Difference(
        digests=(manifests[0].digest, manifests[1].digest),
        written=(manifests[0].counts.written, manifests[1].counts.written),
        options=compare_options(*manifests),
    )
    if difference.digests[0] == difference.digests[1]:
        return difference  # the shards and labels are identical
    with open_database("the rows of the datasets", lookup.MEMORY_MB) as images:
        for side, directory, dataset in zip(_SIDES, (old, new), manifests, strict=True):
            images.insert_all(f"{side}_rows", lookup.read_rows(directory, dataset, _COLUMNS))
        part_count = -(-images.number(_LARGER_ROW_COUNT) // _PART_IMAGES) or 1
        for side, dataset in zip(_SIDES, manifests, strict=True):
            _divide_images(images, side, dataset.label_kind, part_count)
        return replace(
            difference,
            **_image_changes(images, limit, part_count),
            classes=compare_classes(*manifests),
            labels=compare_labels(*manifests),
            facts=compare_facts(images, manifests),
        )


def _divide_images(images: Database, side: str, label_kind: str, parts: int) -> None:
    """Creates `parts` tables of the written images of a dataset, by the hash of the key, and a view of all images.

    The label of an image with several labels is a JSON list.
    """
    label = f"regexp_extract(annotations, '{schemas.LABELS_RE}', 1)" if label_kind == "multi" else "label"
    for part in range(parts):
        images.run(_WRITTEN_IMAGES.format(side=side, label=label, label_re=schemas.LABELS_RE, parts=parts, part=part))
    images.run(f"DROP TABLE {side}_rows")
    tables = " UNION ALL ".join(f"FROM {side}_{part}" for part in range(parts))
    images.run(f"CREATE VIEW {side} AS {tables}")
    images.run(_CREATE_UNMATCHED.format(side=side))


def _image_changes(images: Database, limit: int, part_count: int) -> dict[str, Any]:
    """Matches the images of both datasets; returns the fields of `Difference` with changes of images."""
    images.run(_CREATE_COMPARED)
    for part in range(part_count):
        _match(images, f"old_{part}", f"new_{part}", "key")
        for side in _SIDES:
            images.run(_ADD_UNMATCHED.format(side=side, part=part))
    for columns in _CONTENT_COLUMNS:
        _match(images, "old_unmatched", "new_unmatched", columns)
        for side in _SIDES:
            images.run(_REMOVE_MATCHED.format(side=side))
    changes = {kind: _list_changes(images, query, limit) for kind, query in _CHANGE_QUERIES.items()}
    return {**changes, "stored_otherwise": images.number(_STORED_OTHERWISE)}


def _match(images: Database, old: str, new: str, columns: str) -> None:
    """Pairs the images of two tables with equal values in some columns, in the table `pairs`, and compares them."""
    images.run(_CREATE_PAIRS.format(old=old, new=new, columns=columns))
    images.run(_ADD_COMPARED.format(old=old, new=new, by_key=columns == "key"))


def _list_changes(images: Database, query: str, limit: int) -> Changes:
    rows = images.query(f"{query} LIMIT {limit}" if limit else query)
    return Changes(count=images.number(_ROW_COUNT.format(query=query)), images=tuple(rows.to_pylist()))

"""Assigns each image a split, a shard and a class index, from its facts; no image is read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.strings import plural
from beam_jobs.dataset import lookup, manifest, schemas, shards
from beam_jobs.dataset.lookup import Leak
from beam_jobs.dataset.schemas import Float32Changes
from beam_jobs.errors import EmptySplit, OptionError, SplitConflict
from beam_jobs.options import IngestOptions
from beam_jobs.planning import duplicates, splits
from beam_jobs.planning.image_tables import RECORD_OVERHEAD_BYTES, ImageTables, open_tables
from beam_jobs.planning.planned_rows import PlannedShard, ShardRows
from beam_jobs.planning.row_sorter import RowSorter
from beam_jobs.rejects import Reject, RejectReason

_REJECTED = -1  # `place` (index of a split, or the number of splits if dropped) of images that are not in the plan
_NO_INDEX = -1  # `label_index` of images without exactly one label
_ROW_GROUP_ROWS = 1 << 16  # rows of dropped images per row group
_MAX_EXAMPLES = 20
_DUPLICATE_KEY = Reject(
    key="",
    uri="",
    stage="plan",
    reason=RejectReason.DUPLICATE_KEY.value,
    detail="another row has this key; name a key column whose values differ",
)


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The new images of one split.

    Attributes:
      name: name of the split.
      images: number of images.
      bytes: estimated size of their records, in bytes.
      shards: rows of its shards, in the order of the records; empty for a split without new images.
    """

    name: str
    images: int
    bytes: int
    shards: tuple[PlannedShard, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The assignment of images to splits and shards. Counts of clusters include new and existing images.

    Attributes:
      labels: class names; the index is the label. Names of an existing dataset come first, new names follow, sorted.
      splits: one plan per split, in the order of the options; new images only.
      dropped: the new images that the policies omit, as a split without a name.
      near_dropped: number of dropped images that resemble another image without being a duplicate.
      existing: path of a file of the `IMAGES` rows of the existing dataset, with clusters that include the new images;
        empty for a new dataset.
      clusters: number of sets of duplicates.
      cluster_images: number of images in these sets.
      label_conflicts: number of these sets whose images have different labels.
      duplicate_sets: keys of the first 20 of these sets, at most 20 per set, sorted.
      near_clusters: number of near clusters.
      near_images: number of images in the near clusters.
      near_largest: number of images in the largest near cluster. A large share of all images means that chains of
        similar images have joined different images.
      near_unsearched: number of images that were not compared with every candidate; see `near_duplicates`.
      leaks: sets of related images that lie in several splits; each contains a new image.
      float32_changes: user column -> counts of the numbers that float32 changes, of all images in shards.
      mask_values: class indices in the masks of the new images in shards.
    """

    labels: tuple[str, ...]
    splits: tuple[SplitPlan, ...]
    dropped: SplitPlan
    near_dropped: int
    existing: str
    clusters: int
    cluster_images: int
    label_conflicts: int
    duplicate_sets: tuple[tuple[str, ...], ...]
    near_clusters: int
    near_images: int
    near_largest: int
    near_unsearched: int
    leaks: tuple[Leak, ...]
    float32_changes: Mapping[str, Float32Changes]
    mask_values: frozenset[int]


class ExistingImages(NamedTuple):
    """Images of the existing dataset, to which new images are added.

    Attributes:
      tables: paths of the files of the image table; empty for a new dataset.
      labels: class names of the dataset; they keep their indices.
    """

    tables: Sequence[str] = ()
    labels: Sequence[str] = ()


NO_IMAGES = ExistingImages()


def make_plan(
    facts: Sequence[str],
    options: IngestOptions,
    directory: str,
    label_kind: str = "single",
    existing: ExistingImages = NO_IMAGES,
    spill: str = "",
    on_rejects: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plans a new dataset or an addition to one. The result depends on images and options, not on the order of images.

    Existing images stay in their shards. New images join the split of images that they are related to, and are dropped
    where a policy retains one image per set.

    Args:
      facts: paths of the Parquet files of the `EXAMINED` rows.
      options: splits, seed, shard size and policies.
      directory: directory for the files of planned rows.
      label_kind: one of `types.LABEL_KINDS`.
      existing: images of the existing dataset, whose keys are not in `facts`.
      spill: local directory for data that exceed the memory of the database; a temporary one when empty.
      on_rejects: called before images are assigned, if keys are repeated, with the path of a file of `REJECTS` rows for
        all but the first image of each key. Its exceptions end the planning.

    Raises:
      EmptySplit: a split of a new dataset would hold no image.
      CorruptDataset: the table of `existing` is damaged.
      SplitConflict: there are `leaks`, and `split_conflicts` is `refuse`.
      OptionError: the options do not fit the images, or the existing dataset.
      ValueError: an examined image exists already, or the labels of `existing` do not match its images.
    """
    with open_tables(facts, existing.tables, options, label_kind, spill) as tables:
        _check_options(existing, options, label_kind)
        if tables.number("SELECT count(*) FROM rejected"):
            on_rejects(_write_rejects(tables, directory))
        duplicates.find_sets(tables, options)
        places = splits.assign(tables, options)
        leaks = _find_leaks(tables, options)
        class_names = vocabulary(tables.query(_CLASSES)["name"].to_pylist(), existing.labels)
        planned_rows = _PlannedRows(tables, existing.tables, options, directory, class_names, places)
        return Plan(
            labels=class_names,
            splits=tuple(planned_rows.splits),
            dropped=planned_rows.dropped,
            existing=_write_existing(tables, existing.tables, directory) if existing.tables else "",
            duplicate_sets=tuple(map(tuple, tables.query(_DUPLICATE_SETS, most=_MAX_EXAMPLES)["keys"].to_pylist())),
            leaks=leaks,
            float32_changes={name: item for name, item in sorted(planned_rows.float32_changes.items()) if item.changed},
            mask_values=frozenset(planned_rows.mask_values),
            **{name: tables.number(statement) for name, statement in _COUNTS.items()},
        )


_CLASSES = "SELECT DISTINCT unnest(labels || annotated) AS name FROM images WHERE is_new"
_SORTED_COLUMNS = [name for name in schemas.EXAMINED.names if name in schemas.PLANNED.names or name == "order_hash"]
_CLUSTERS = """
    SELECT id, cluster, near_cluster AS near FROM named
    WHERE is_new AND (cluster <> '' OR near_cluster <> '') ORDER BY id"""
_NO_CLUSTERS = pa.table(
    {"id": pa.array([], pa.int64()), "cluster": pa.array([], pa.string()), "near": pa.array([], pa.string())}
)
_EXISTING = "SELECT cluster, near_cluster AS near FROM named WHERE NOT is_new ORDER BY id"
_COUNTS = {
    "clusters": "SELECT count(*) FROM copies WHERE position = 1",
    "cluster_images": "SELECT count(*) FROM copies",
    "label_conflicts": """
        SELECT count(DISTINCT content) FROM copies JOIN images USING (id) JOIN images AS firsts ON firsts.id = content
        WHERE images.labels IS DISTINCT FROM firsts.labels""",
    "near_clusters": "SELECT count(*) FROM near_clusters",
    "near_images": "SELECT sum(images) FROM near_clusters",
    "near_largest": "SELECT max(images) FROM near_clusters",
    "near_dropped": """
        SELECT count(*) FROM related
        WHERE content IN (SELECT content FROM near_contents WHERE is_surplus) AND is_new AND is_first""",
    "near_unsearched": """
        SELECT count(*) FROM related WHERE content IN (SELECT content FROM near_contents WHERE is_unsearched)""",
}
_DUPLICATE_SETS = """
    WITH sets AS (SELECT content FROM copies WHERE key_position = 1 ORDER BY key LIMIT $most)
    SELECT list(key ORDER BY key) AS keys FROM copies SEMI JOIN sets USING (content)
    WHERE key_position <= $most GROUP BY content ORDER BY min(key)"""
_COUNT_PLACED = "SELECT count(*) FROM images WHERE written OR (is_new AND split <> '')"
_LEAKS = """
    WITH members AS (
        SELECT id, {column} AS name, assigned.split, is_new FROM named JOIN assigned USING (id) WHERE {column} <> ''),
    leaks AS (SELECT name FROM members GROUP BY name HAVING min(split) < max(split) AND bool_or(is_new))
    SELECT name, $names[split + 1] AS split, arg_min(key, (is_new, key)) AS key
    FROM members JOIN leaks USING (name) JOIN names USING (id)
    GROUP BY ALL ORDER BY name, split"""
_LEAK_COLUMNS = {"cluster": "cluster", "group": "group_name", "near": "near_cluster"}


def vocabulary(names: Iterable[str], existing: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the class names of a dataset; the position of a name is its index.

    Args:
      names: names of the classes of new images and of their objects.
      existing: class names of the existing dataset. They keep their indices; new names follow, sorted.
    """
    old_names = tuple(existing)
    return old_names + tuple(sorted(set(names).difference(old_names)))


def _label_indices(labels: pa.DictionaryArray, label_kind: str, class_names: Sequence[str]) -> pa.Array:
    if label_kind != "single":
        return pa.array(np.full(len(labels), _NO_INDEX))
    indices = pc.index_in(labels.dictionary, value_set=pa.array(class_names, pa.string()))
    return pc.cast(indices, pa.int64()).take(labels.indices)


def _check_options(existing: ExistingImages, options: IngestOptions, label_kind: str) -> None:
    if options.stratify and label_kind == "none":
        raise OptionError("stratify needs labels, and this source has none; leave out --stratify, or name its labels")
    for old_rows in schemas.read_images(existing.tables, ["split", "label", "label_index"]):
        unknown_splits = set(pc.unique(old_rows["split"]).to_pylist()) - {*options.splits, ""}
        if unknown_splits:
            raise OptionError(
                f"the dataset has a split {min(unknown_splits)!r}, which --splits ({', '.join(options.splits)}) lacks; "
                "add images with the --splits it was made with"
            )
        indices = _label_indices(old_rows["label"].combine_chunks().dictionary_encode(), label_kind, existing.labels)
        if not indices.equals(old_rows["label_index"].combine_chunks()):
            raise ValueError("the existing images have other class indices; pass the labels of their dataset")


def _find_leaks(tables: ImageTables, options: IngestOptions) -> tuple[Leak, ...]:
    if not tables.number(_COUNT_PLACED):
        return ()  # every unit is in one split if no image is written and no split is requested
    leaks = []
    for kind in lookup.select_leak_kinds(options.near_duplicates):
        rows = tables.query(_LEAKS.format(column=_LEAK_COLUMNS[kind]), names=list(options.splits)).to_pylist()
        for name, members in itertools.groupby(rows, itemgetter("name")):
            keys = {member["split"]: member["key"] for member in members}
            leaks.append(Leak(kind=lookup.LEAK_KINDS[kind], name=name, keys=keys))
    if leaks and options.split_conflicts == "refuse":
        raise SplitConflict(
            f"{lookup.leak_sentence(leaks)}; correct the split column or the groups, leave such images out, or set "
            "--split-conflicts report"
        )
    return tuple(leaks)


class _PlannedRows:
    """Writes the rows of the new images to files.

    Attributes:
      splits: plan of each split.
      dropped: plan of the images that are in no split.
      float32_changes: see `Plan`.
      mask_values: see `Plan`.
    """

    def __init__(
        self,
        tables: ImageTables,
        existing: Sequence[str],
        options: IngestOptions,
        directory: str,
        labels: tuple[str, ...],
        places: np.ndarray,
    ) -> None:
        self._tables, self._options, self._directory, self._labels = tables, options, directory, labels
        self._places = places  # of each row of the facts, see `splits.assign`
        self.float32_changes: dict[str, Float32Changes] = {}
        self.mask_values: set[int] = set()
        for old_rows in schemas.read_images(existing, ["shard", "extra"]):
            written_rows = old_rows.filter(pc.greater_equal(old_rows["shard"], 0))
            schemas.count_float32_changes(self.float32_changes, written_rows["extra"])
        pool = ThreadPoolExecutor(2, thread_name_prefix="feedline-rows")
        path, memory_bytes = os.path.join(tables.spill, "rows"), options.plan_memory_mb * 10**6 // 2
        sorter = RowSorter(path, tables.new_count, tables.facts_bytes, memory_bytes, pool)
        try:
            *self.splits, self.dropped = self._write(sorter, pool)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error or a signal, tasks may be pending
            sorter.close()

    def _write(self, sorter: RowSorter, pool: ThreadPoolExecutor) -> Iterator[SplitPlan]:
        """Yields the plan of each split, then that of the images in no split."""
        options, splits = self._options, list(self._options.splits)
        for place, name in enumerate(splits):
            if not self._tables.old_count and not (self._places == place).any():
                raise _empty_split_error(name, options, self._tables.number("SELECT count(*) FROM rejected"))
        totals = self._sort(sorter, len(splits) + 1, pool)
        for place, (images, size) in enumerate(totals):
            is_split = place < len(splits)
            name = splits[place] if is_split else ""
            planned_shards: tuple[PlannedShard, ...] = ()
            if images:
                shard_count = options.shards or shards.shard_count(size, images, options.shard_mb * 1e6)
                group_count = shard_count if is_split else -(-images // _ROW_GROUP_ROWS)
                cutter = shards.Cutter(images, size, min(group_count, images))
                shard_rows = ShardRows(self._directory, name or "dropped", cutter, self._labels, pool)
                for part in sorter.read(place):
                    planned = part.select(schemas.PLANNED.names).cast(schemas.PLANNED)
                    if is_split:
                        self._update_statistics(planned)
                    shard_rows.add(planned, part["size"].to_numpy())
                planned_shards = shard_rows.close()
            written = sum(shard.images for shard in planned_shards)
            if written != images:
                raise RuntimeError(f"{name or 'dropped'}: {images} images are planned, {written} rows were written")
            yield SplitPlan(name=name, images=images, bytes=size, shards=planned_shards)

    def _sort(self, sorter: RowSorter, place_count: int, pool: ThreadPoolExecutor) -> list[tuple[int, int]]:
        """Adds all rows to the sorter, and returns images and bytes of each place, as in `RowSorter`."""
        images, sizes = np.zeros(place_count, np.int64), np.zeros(place_count, np.int64)
        for rows in _planned_facts(self._tables, self._places, self._labels, pool):
            place = rows["place"].to_numpy()
            images += np.bincount(place, minlength=place_count)
            np.add.at(sizes, place, rows["size"].to_numpy())
            sorter.add(rows)
        sorter.finish()
        if images.sum() != self._tables.new_count:
            raise RuntimeError(f"{self._tables.new_count} new images are planned, but {images.sum()} have rows")
        return list(zip(images.tolist(), sizes.tolist(), strict=True))

    def _update_statistics(self, rows: pa.Table) -> None:
        schemas.count_float32_changes(self.float32_changes, rows["extra"])
        cells = pc.unique(rows["mask_values"]).to_pylist()
        self.mask_values |= {int(value) for cell in cells for value in cell.split()}


def _planned_facts(
    tables: ImageTables, places: np.ndarray, labels: Sequence[str], pool: ThreadPoolExecutor
) -> Iterator[pa.Table]:
    """Yields the facts of new images that are not rejected, with the other columns of `PLANNED`, `place` and `size`."""
    places[tables.column("SELECT id FROM rejected") - tables.old_count] = _REJECTED
    clusters = _ClusterNames(tables)
    for first_row, facts in tables.read_facts(_SORTED_COLUMNS, ["label"], pool):
        place = places[first_row : first_row + len(facts)].astype(np.int64)
        classes = facts["label"].combine_chunks()
        # In a record, annotations are about as long as in JSON.
        size = pc.add(pc.add(facts["bytes"], pc.binary_length(facts["annotations"])), RECORD_OVERHEAD_BYTES)
        columns = {name: facts[name] for name in facts.column_names}
        columns |= clusters.take(tables.old_count + first_row, len(facts))
        columns |= {
            "label": classes.dictionary_decode(),
            "label_index": _label_indices(classes, tables.label_kind, labels),
        }
        rows = pa.table({**columns, "place": pa.array(place), "size": size})
        yield rows.filter(pa.array(place != _REJECTED)) if (place == _REJECTED).any() else rows


class _ClusterNames:
    """Reads the cluster names of new images in order of id; no other statement may run until the last row is read."""

    def __init__(self, tables: ImageTables) -> None:
        self._batches = tables.tables(_CLUSTERS)
        self._rows = next(self._batches, _NO_CLUSTERS)

    def take(self, first_id: int, count: int) -> dict[str, pa.Array]:
        """Returns the columns `cluster` and `near` of the next images, string[count]."""
        rows, indices = self._rows, np.zeros(count, np.int64)  # index 0: the empty name, for images in no cluster
        while not len(rows) or rows["id"][-1].as_py() < first_id + count - 1:
            next_rows = next(self._batches, None)
            if next_rows is None:
                break
            rows = pa.concat_tables([rows, next_rows])
        ids = rows["id"].to_numpy()
        end = int(np.searchsorted(ids, first_id + count))
        indices[ids[:end] - first_id] = np.arange(1, end + 1)
        self._rows = rows.slice(end)
        names = (pa.concat_arrays([pa.array([""]), *rows[name].slice(0, end).chunks]) for name in ("cluster", "near"))
        return {name: texts.take(pa.array(indices)) for name, texts in zip(("cluster", "near"), names, strict=True)}


def _empty_split_error(name: str, options: IngestOptions, rejected_count: int) -> EmptySplit:
    repeated = "; rejected for a repeated key: " + plural(rejected_count, "image") if rejected_count else ""
    if options.columns.group:
        return EmptySplit(
            f"split {name!r} would hold no image; no group is assigned to it, and groups are never divided: give "
            f"it a larger share in --splits, or add groups{repeated}"
        )
    return EmptySplit(
        f"split {name!r} would hold no image; give it a larger share in --splits, or add images{repeated}"
    )


def _write_rejects(tables: ImageTables, directory: str) -> str:
    path = storage.join(directory, manifest.REJECTS_NAME)
    with schemas.table_writer(path, schemas.REJECTS, durable=False) as write:
        for rows in tables.tables("SELECT key, uri FROM rejected"):
            rejects = [schemas.reject_row(replace(_DUPLICATE_KEY, **row)) for row in rows.to_pylist()]
            write(pa.Table.from_pylist(rejects, schemas.REJECTS))
    return path


def _write_existing(tables: ImageTables, existing: Sequence[str], directory: str) -> str:
    """Writes the existing rows with the names of their new clusters, and returns the path of the file."""
    path = storage.join(directory, "existing.parquet")
    cluster_names = (pa.Table.from_batches([batch]) for batch in tables.batches(_EXISTING))
    with schemas.table_writer(path, schemas.IMAGES, durable=False) as write:
        pending = pa.Table.from_pylist([], pa.schema([(name, pa.string()) for name in ("cluster", "near")]))
        for rows in schemas.read_images(existing, schemas.IMAGES.names):
            while len(pending) < len(rows):
                pending = pa.concat_tables([pending, next(cluster_names)])
            columns = {name: rows[name] for name in rows.column_names}
            columns |= {name: pending[name].slice(0, len(rows)) for name in pending.column_names}
            write(pa.table(columns, schemas.IMAGES))
            pending = pending.slice(len(rows))
    return path

"""Plan: assigns each image a split, a shard and a class index, from facts only; no image is read."""

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

_REJECTED = -1  # place of images that are not in the plan
_NO_INDEX = -1  # `label_index` of images that have not exactly one label
_ROW_GROUP = 1 << 16  # rows that are in no shard, at a time
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
      shards: their rows, in the order in which they are written; none for a split to which nothing is added.
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
      dropped: the new images that the policies leave out, as a split without a name.
      near_dropped: number of dropped images that resemble another image without being a copy.
      existing: path of a file of the `IMAGES` rows of the dataset that is added to, with clusters that include the new
        images; empty for a new dataset.
      clusters: number of sets of images with equal bytes.
      cluster_images: number of images in those sets.
      label_conflicts: number of those sets whose images have different labels.
      duplicate_sets: keys of the first 20 of those sets, at most 20 per set, sorted.
      near_clusters: number of sets of images that look alike.
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
    """Images of the dataset that is added to.

    Attributes:
      tables: paths of the files of its image table; empty for a new dataset.
      labels: its class names; they keep their indices.
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
    """Plans a new dataset or an addition to one. The result depends on the images and options, not on their order.

    Existing images never move. New images join the split of the images that they are related to, and are dropped where
    a policy keeps one image per set.

    Args:
      facts: paths of the Parquet files of the `EXAMINED` rows.
      options: splits, seed, shard size and policies.
      directory: directory of the files of rows.
      label_kind: one of `types.LABEL_KINDS`.
      existing: images of the dataset that is added to, without keys of `facts`.
      spill: local directory for what exceeds the memory of the database; a temporary one when empty.
      on_rejects: called before anything is assigned, with the path of a file of the `REJECTS` rows of all images of a
        key but the first, if there are any. What it raises ends the planning.

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
        leaks = _leaks(tables, options)
        names = vocabulary(tables.query(_CLASSES)["name"].to_pylist(), existing.labels)
        rows = _PlannedRows(tables, existing.tables, options, directory, names, places)
        return Plan(
            labels=names,
            splits=tuple(rows.splits),
            dropped=rows.dropped,
            existing=_write_existing(tables, existing.tables, directory) if existing.tables else "",
            duplicate_sets=tuple(map(tuple, tables.query(_DUPLICATE_SETS, most=_MAX_EXAMPLES)["keys"].to_pylist())),
            leaks=leaks,
            float32_changes={name: item for name, item in sorted(rows.float32_changes.items()) if item.changed},
            mask_values=frozenset(rows.mask_values),
            **{name: tables.number(statement) for name, statement in _COUNTS.items()},
        )


_CLASSES = "SELECT DISTINCT unnest(labels || annotated) AS name FROM images WHERE is_new"
_SORTED_FACTS = [name for name in schemas.EXAMINED.names if name in schemas.PLANNED.names or name == "order_hash"]
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
_HAS_PLACES = "SELECT count(*) FROM images WHERE written OR (is_new AND split <> '')"
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
      existing: class names of the dataset that is added to. They keep their indices; new names follow, sorted.
    """
    first = tuple(existing)
    return first + tuple(sorted(set(names).difference(first)))


def _label_indices(labels: pa.DictionaryArray, label_kind: str, names: Sequence[str]) -> pa.Array:
    if label_kind != "single":
        return pa.array(np.full(len(labels), _NO_INDEX))
    indices = pc.index_in(labels.dictionary, value_set=pa.array(names, pa.string()))
    return pc.cast(indices, pa.int64()).take(labels.indices)


def _check_options(existing: ExistingImages, options: IngestOptions, label_kind: str) -> None:
    if options.stratify and label_kind == "none":
        raise OptionError("stratify needs labels, and this source has none; leave out --stratify, or name its labels")
    for old in schemas.read_images(existing.tables, ["split", "label", "label_index"]):
        unknown = set(pc.unique(old["split"]).to_pylist()) - {*options.splits, ""}
        if unknown:
            raise OptionError(
                f"the dataset has a split {min(unknown)!r}, which --splits ({', '.join(options.splits)}) lacks; "
                "add images with the --splits it was made with"
            )
        indices = _label_indices(old["label"].combine_chunks().dictionary_encode(), label_kind, existing.labels)
        if not indices.equals(old["label_index"].combine_chunks()):
            raise ValueError("the existing images have other class indices; pass the labels of their dataset")


def _leaks(tables: ImageTables, options: IngestOptions) -> tuple[Leak, ...]:
    if not tables.number(_HAS_PLACES):
        return ()  # every unit is in one split
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
    """The rows of the new images, written to files.

    Attributes:
      splits: plan of each split.
      dropped: the images that are in no split.
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
        self._places = places
        self.float32_changes: dict[str, Float32Changes] = {}
        self.mask_values: set[int] = set()
        for old in schemas.read_images(existing, ["shard", "extra"]):
            written = old.filter(pc.greater_equal(old["shard"], 0))
            schemas.count_float32_changes(self.float32_changes, written["extra"])
        pool = ThreadPoolExecutor(2, thread_name_prefix="feedline-rows")
        path, memory = os.path.join(tables.spill, "rows"), options.plan_memory_mb * 10**6 // 2
        sorter = RowSorter(path, tables.new, tables.facts_bytes, memory, pool)
        try:
            *self.splits, self.dropped = self._write(sorter, pool)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error or a signal, rows may wait for it
            sorter.close()

    def _write(self, sorter: RowSorter, pool: ThreadPoolExecutor) -> Iterator[SplitPlan]:
        """Yields the plan of each split, and of the images that are in none, which come last."""
        options, splits = self._options, list(self._options.splits)
        for place, name in enumerate(splits):
            if not self._tables.old and not (self._places == place).any():
                raise _empty_split(name, options, self._tables.number("SELECT count(*) FROM rejected"))
        totals = self._sort(sorter, len(splits) + 1, pool)
        for place, (images, size) in enumerate(totals):
            is_split = place < len(splits)
            name = splits[place] if is_split else ""
            shards_of: tuple[PlannedShard, ...] = ()
            if images:
                wanted = options.shards or shards.shard_count(size, images, options.shard_mb * 1e6)
                count = wanted if is_split else -(-images // _ROW_GROUP)
                cutter = shards.Cutter(images, size, min(count, images))
                rows = ShardRows(self._directory, name or "dropped", cutter, self._labels, pool)
                for part in sorter.read(place):
                    planned = part.select(schemas.PLANNED.names).cast(schemas.PLANNED)
                    if is_split:
                        self._count(planned)
                    rows.add(planned, part["size"].to_numpy())
                shards_of = rows.close()
            written = sum(shard.images for shard in shards_of)
            if written != images:
                raise RuntimeError(f"{name or 'dropped'}: {images} images are planned, {written} rows were written")
            yield SplitPlan(name=name, images=images, bytes=size, shards=shards_of)

    def _sort(self, sorter: RowSorter, places: int, pool: ThreadPoolExecutor) -> list[tuple[int, int]]:
        """Adds all rows to the sorter, and returns the number of images and the bytes of each place."""
        images, sizes = np.zeros(places, np.int64), np.zeros(places, np.int64)
        for rows in _planned_facts(self._tables, self._places, self._labels, pool):
            place = rows["place"].to_numpy()
            images += np.bincount(place, minlength=places)
            np.add.at(sizes, place, rows["size"].to_numpy())
            sorter.add(rows)
        sorter.finish()
        if images.sum() != self._tables.new:
            raise RuntimeError(f"the plan has {self._tables.new} new images, and places for {images.sum()}")
        return list(zip(images.tolist(), sizes.tolist(), strict=True))

    def _count(self, rows: pa.Table) -> None:
        schemas.count_float32_changes(self.float32_changes, rows["extra"])
        cells = pc.unique(rows["mask_values"]).to_pylist()
        self.mask_values |= {int(value) for cell in cells for value in cell.split()}


def _planned_facts(
    tables: ImageTables, places: np.ndarray, labels: Sequence[str], pool: ThreadPoolExecutor
) -> Iterator[pa.Table]:
    """Yields the facts of all new images but rejected ones, with the other columns of `PLANNED`, `place` and `size`."""
    places[tables.column("SELECT id FROM rejected") - tables.old] = _REJECTED
    clusters = _ClusterNames(tables)
    for first, facts in tables.read_facts(_SORTED_FACTS, ["label"], pool):
        place = places[first : first + len(facts)].astype(np.int64)
        classes = facts["label"].combine_chunks()
        # Objects are about as long in a record as their annotations are in JSON.
        size = pc.add(pc.add(facts["bytes"], pc.binary_length(facts["annotations"])), RECORD_OVERHEAD_BYTES)
        columns = {name: facts[name] for name in facts.column_names}
        columns |= clusters.take(tables.old + first, len(facts))
        columns |= {
            "label": classes.dictionary_decode(),
            "label_index": _label_indices(classes, tables.label_kind, labels),
        }
        rows = pa.table({**columns, "place": pa.array(place), "size": size})
        yield rows.filter(pa.array(place != _REJECTED)) if (place == _REJECTED).any() else rows


class _ClusterNames:
    """The names of the sets of new images, in order of id: a stream, during which no statement may run."""

    def __init__(self, tables: ImageTables) -> None:
        self._tables = tables.tables(_CLUSTERS)
        self._rows = next(self._tables, _NO_CLUSTERS)

    def take(self, first: int, count: int) -> dict[str, pa.Array]:
        """Returns the columns `cluster` and `near` of the next images, string[count]."""
        rows, indices = self._rows, np.zeros(count, np.int64)
        while not len(rows) or rows["id"][-1].as_py() < first + count - 1:
            following = next(self._tables, None)
            if following is None:
                break
            rows = pa.concat_tables([rows, following])
        ids = rows["id"].to_numpy()
        found = int(np.searchsorted(ids, first + count))
        indices[ids[:found] - first] = np.arange(1, found + 1)
        self._rows = rows.slice(found)
        names = (pa.concat_arrays([pa.array([""]), *rows[name].slice(0, found).chunks]) for name in ("cluster", "near"))
        return {name: texts.take(pa.array(indices)) for name, texts in zip(("cluster", "near"), names, strict=True)}


def _empty_split(name: str, options: IngestOptions, rejected: int) -> EmptySplit:
    repeated = "; left out for a repeated key: " + plural(rejected, "image") if rejected else ""
    if options.columns.group:
        return EmptySplit(
            f"split {name!r} would hold no image; groups are never cut, and each fell into another one: give it a "
            f"larger share in --splits, or add groups{repeated}"
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
    names = (pa.Table.from_batches([batch]) for batch in tables.batches(_EXISTING))
    with schemas.table_writer(path, schemas.IMAGES, durable=False) as write:
        pending = pa.Table.from_pylist([], pa.schema([(name, pa.string()) for name in ("cluster", "near")]))
        for rows in schemas.read_images(existing, schemas.IMAGES.names):
            while len(pending) < len(rows):
                pending = pa.concat_tables([pending, next(names)])
            columns = {name: rows[name] for name in rows.column_names}
            columns |= {name: pending[name].slice(0, len(rows)) for name in pending.column_names}
            write(pa.table(columns, schemas.IMAGES))
            pending = pending.slice(len(rows))
    return path

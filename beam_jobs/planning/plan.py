"""Plan: assigns each image a split, a shard and a class index, from facts only; no image is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import lookup, schemas, shards
from beam_jobs.dataset.lookup import Leak
from beam_jobs.dataset.manifest import ChannelStatistics
from beam_jobs.errors import EmptySplit, OptionError, SplitConflict
from beam_jobs.options import IngestOptions
from beam_jobs.planning import splits
from beam_jobs.planning.image_tables import ImageTables, find_sets, open_tables
from beam_jobs.planning.labels import label_indices, vocabulary
from beam_jobs.rejects import Reject

_MAX_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """One split.

    Attributes:
      name: name of the split.
      images: `PLANNED` rows, in the order in which they are written.
      edges: first row of each shard, and the number of rows; shard i consists of rows `[edges[i], edges[i + 1])`.
    """

    name: str
    images: pa.Table
    edges: tuple[int, ...]

    @property
    def shard_count(self) -> int:
        """Number of shards; 0 for a split to which nothing is added."""
        return len(self.edges) - 1

    def shard(self, index: int) -> pa.Table:
        """Returns the rows of one shard."""
        return self.images.slice(self.edges[index], self.edges[index + 1] - self.edges[index])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The assignment of images to splits and shards. Counts of clusters include new and existing images.

    Attributes:
      labels: class names; the index is the label. Names of an existing dataset come first, new names follow, sorted.
      splits: one plan per split, in the order of the options; new images only.
      dropped: `PLANNED` rows of the new images that the policies leave out.
      near_dropped: number of dropped images that resemble another image without being a copy.
      rejects: images that have the key of another image.
      existing: `IMAGES` rows of the dataset that is added to, with clusters that include the new images.
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
    """

    labels: tuple[str, ...]
    splits: tuple[SplitPlan, ...]
    dropped: pa.Table
    near_dropped: int
    rejects: tuple[Reject, ...]
    existing: pa.Table
    clusters: int
    cluster_images: int
    label_conflicts: int
    duplicate_sets: tuple[tuple[str, ...], ...]
    near_clusters: int
    near_images: int
    near_largest: int
    near_unsearched: int
    leaks: tuple[Leak, ...]


def make_plan(
    examined: pa.Table,
    options: IngestOptions,
    label_kind: str = "single",
    existing: pa.Table | None = None,
    labels: Sequence[str] = (),
    spill: str = "",
) -> Plan:
    """Plans a new dataset or an addition to one. The result depends on the images and options, not on their order.

    Existing images never move. New images join the split of the images that they are related to, and are dropped where
    a policy keeps one image per set.

    Args:
      examined: `EXAMINED` rows, in any order.
      options: splits, seed, shard size and policies.
      label_kind: one of `types.LABEL_KINDS`.
      existing: `IMAGES` rows of the dataset that is added to, without keys of `examined`; None for a new dataset.
      labels: class names of that dataset; they keep their indices.
      spill: local directory for what exceeds the memory of the database; a temporary one when empty.

    Raises:
      EmptySplit: a split of a new dataset would hold no image.
      SplitConflict: there are `leaks`, and `split_conflicts` is `refuse`.
      OptionError: the options do not fit the images, or the existing dataset.
      ValueError: an examined image exists already, or `labels` do not match the existing images.
    """
    with open_tables(examined, existing, options.seed, label_kind, spill) as (tables, rejects):
        _check_options(tables.old, options, label_kind, labels)
        find_sets(tables, options)
        splits.assign(tables, options)
        rows = [tables.query(_SPLIT, index=index) for index in range(len(options.splits))]
        dropped = tables.query(_DROPPED)
        old = _existing(tables)
        counts = {name: tables.number(statement) for name, statement in _COUNTS.items()}
        duplicate_sets = tables.query(_DUPLICATE_SETS, most=_MAX_EXAMPLES)["keys"].to_pylist()
        leaks = _leaks(tables, options)
        new = tables.column(_NEW) if rejects else None
    # After the block: the images of all splits together are as large as the database.
    labelled = examined if new is None else tables.take_new(("label", "annotations"), new)
    names = vocabulary(labelled, label_kind, labels)
    return Plan(
        labels=names,
        splits=tuple(
            _split_plan(name, tables, split_rows, names, options)
            for name, split_rows in zip(options.splits, rows, strict=True)
        ),
        dropped=_planned(tables, dropped, names),
        rejects=rejects,
        existing=old,
        duplicate_sets=tuple(map(tuple, duplicate_sets)),
        leaks=leaks,
        **counts,
    )


_NEW = "SELECT id FROM images WHERE is_new"
_SPLIT = """
    SELECT id, size, cluster, near_cluster FROM named JOIN assigned USING (id)
    WHERE is_new AND assigned.split = $index ORDER BY order_hash, key"""
_DROPPED = """
    SELECT id, cluster, near_cluster FROM named WHERE is_new AND (is_surplus OR NOT is_first) ORDER BY key"""
_EXISTING = "SELECT cluster, near_cluster FROM named WHERE NOT is_new ORDER BY id"
_COUNTS = {
    "clusters": "SELECT count(DISTINCT content) FROM copies",
    "cluster_images": "SELECT count(*) FROM copies",
    "label_conflicts": """
        SELECT count(*) FROM (
            SELECT content FROM copies JOIN images USING (id) GROUP BY content HAVING count(DISTINCT labels) > 1)""",
    "near_clusters": "SELECT count(*) FROM near_clusters",
    "near_images": "SELECT sum(images) FROM near_clusters",
    "near_largest": "SELECT max(images) FROM near_clusters",
    "near_dropped": "SELECT count(*) FROM related WHERE is_new AND is_first AND is_surplus",
    "near_unsearched": "SELECT count(*) FROM related WHERE is_unsearched",
}
_DUPLICATE_SETS = """
    SELECT list(key ORDER BY key)[:$most] AS keys FROM copies JOIN images USING (id)
    GROUP BY content ORDER BY min(key) LIMIT $most"""
_HAS_PLACES = "SELECT count(*) FROM images WHERE written OR (is_new AND split <> '')"
_PLACES = """
    SELECT key, group_name AS group, coalesce($names[assigned.split + 1], '') AS split, cluster, near_cluster AS near,
        is_new
    FROM named LEFT JOIN assigned USING (id) ORDER BY is_new, key"""


def channel_statistics(split: str, images: pa.Table) -> ChannelStatistics:
    """Pools the moments of each image into those of all pixels, weighted by pixels.

    With n_i pixels, mean m_i and variance v_i: m = sum(n_i m_i) / n and v = sum(n_i (v_i + m_i^2)) / n - m^2.
    """
    pixels = (images["height"].to_numpy() * images["width"].to_numpy()).astype(np.float64)[:, None]
    mean = schemas.triples(images["mean_rgb"]).astype(np.float64)
    second = schemas.triples(images["var_rgb"]).astype(np.float64) + mean**2
    pooled_mean = (pixels * mean).sum(0) / pixels.sum()
    pooled_var = np.maximum((pixels * second).sum(0) / pixels.sum() - pooled_mean**2, 0)
    return ChannelStatistics(
        split=split,
        mean_rgb=tuple(float(value) for value in pooled_mean),
        std_rgb=tuple(float(value) for value in np.sqrt(pooled_var)),
    )


def _check_options(old: pa.Table, options: IngestOptions, label_kind: str, labels: Sequence[str]) -> None:
    if options.stratify and label_kind == "none":
        raise OptionError("stratify needs labels, and this source has none; leave out --stratify, or name its labels")
    unknown = set(pc.unique(old["split"]).to_pylist()) - {*options.splits, ""}
    if unknown:
        raise OptionError(
            f"the dataset has a split {min(unknown)!r}, splits names {', '.join(options.splits)}; "
            "add images with the --splits it was made with"
        )
    if not label_indices(old, label_kind, tuple(labels)).equals(old["label_index"].combine_chunks()):
        raise ValueError("the existing images have other class indices; pass the labels of their dataset")


def _leaks(tables: ImageTables, options: IngestOptions) -> tuple[Leak, ...]:
    if not tables.number(_HAS_PLACES):
        return ()  # every unit is in one split
    places = tables.query(_PLACES, names=list(options.splits))
    is_new = places["is_new"].to_numpy()
    leaks = tuple(lookup.find_leaks(places, lookup.select_leak_kinds(options.near_duplicates), is_new))
    if leaks and options.split_conflicts == "refuse":
        raise SplitConflict(
            f"{lookup.leak_sentence(leaks)}; correct the split column or the groups, leave such images out, or set "
            "--split-conflicts report"
        )
    return leaks


def _empty_split(name: str, options: IngestOptions) -> EmptySplit:
    if options.columns.group:
        return EmptySplit(
            f"split {name!r} would hold no image; groups are never cut, and each fell into another one: give it a "
            "larger share in --splits, or add groups"
        )
    return EmptySplit(f"split {name!r} would hold no image; give it a larger share in --splits, or add images")


def _split_plan(
    name: str, tables: ImageTables, rows: pa.Table, labels: Sequence[str], options: IngestOptions
) -> SplitPlan:
    if not len(rows) and not len(tables.old):
        raise _empty_split(name, options)
    planned = _planned(tables, rows, labels)
    if not len(rows):
        return SplitPlan(name=name, images=planned, edges=(0,))
    sizes = rows["size"].to_numpy()
    count = options.shards or shards.shard_count(int(sizes.sum()), len(sizes), options.shard_mb * 1e6)
    return SplitPlan(name=name, images=planned, edges=tuple(shards.cut(sizes.tolist(), min(count, len(sizes)))))


def _planned(tables: ImageTables, rows: pa.Table, labels: Sequence[str]) -> pa.Table:
    """Returns the `PLANNED` rows of new images, given their `id`, `cluster` and `near_cluster`."""
    planned = tables.take_new(tables.new.column_names, rows["id"].to_numpy())
    derived = [rows["cluster"], rows["near_cluster"], label_indices(planned, tables.label_kind, tuple(labels))]
    return pa.table([*planned.columns, *derived], schema=schemas.PLANNED)


def _existing(tables: ImageTables) -> pa.Table:
    """Returns the existing rows with the names of their new clusters."""
    rows, table = tables.query(_EXISTING), tables.old
    for name, column in (("cluster", rows["cluster"]), ("near", rows["near_cluster"])):
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table

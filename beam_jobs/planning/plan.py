"""Plan: assigns each image a split, a shard and a class index, from facts only; no image is read."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import lookup, schemas, shards
from beam_jobs.dataset.lookup import Leak
from beam_jobs.dataset.manifest import ChannelStatistics
from beam_jobs.errors import EmptySplit, OptionError, SplitConflict
from beam_jobs.options import IngestOptions
from beam_jobs.planning import image_rows, splits
from beam_jobs.planning.image_rows import Clusters, Rows, order_rows, take
from beam_jobs.rejects import Reject

NO_INDEX = -1  # `label_index` of images that have not exactly one label

_CACHED_LABELS = 4096  # multi-label images share few sets of labels; annotations have up to 10 kB

Names = tuple[str, ...]


def vocabulary(images: pa.Table, label_kind: str, existing: Iterable[str] = ()) -> Names:
    """Returns the class names of images and of their objects; the position of a name is its index.

    Args:
      images: `EXAMINED` rows.
      label_kind: one of `types.LABEL_KINDS`.
      existing: class names of the dataset that is added to. They keep their indices; new names follow, sorted.
    """
    first = tuple(existing)
    names: set[str] = set(pc.unique(images["label"]).to_pylist()) if label_kind == "single" else set()
    for labels, objects in _label_pairs(images["annotations"]):
        names.update(labels, objects)
    return first + tuple(sorted(names.difference(first)))


def label_indices(images: pa.Table, label_kind: str, names: Names) -> pa.Array:
    """Returns the class index of each image, int64; `NO_INDEX` unless images have exactly one label."""
    if label_kind != "single":
        return pa.array(np.full(len(images), NO_INDEX))
    labels = images["label"].combine_chunks()
    return pc.cast(pc.index_in(labels, value_set=pa.array(names, pa.string())), pa.int64())


def encode_labels(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns a number for the labels of each image, int64[images]; images with equal labels have equal numbers."""
    if label_kind == "single":
        return images["label"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    numbers: dict[Names, int] = {}
    label_sets = (labels for labels, _ in _label_pairs(images["annotations"]))
    return np.array([numbers.setdefault(labels, len(numbers)) for labels in label_sets], np.int64)


def label_strata(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns the class of each image for stratification, int64[images]: its rarest label, of equals the first by name.

    Rare classes are the ones that a split may miss. Images without a label form a separate class.
    """
    if label_kind == "single":
        labels = images["label"].combine_chunks().dictionary_encode()
        order = pc.sort_indices(pc.sort_indices(labels.dictionary))  # the rank of each name
        return order.take(labels.indices).to_numpy().astype(np.int64)
    label_sets = [labels for labels, _ in _label_pairs(images["annotations"])]
    counts = Counter(name for labels in label_sets for name in labels)
    rank = {name: index for index, name in enumerate(sorted(counts), 1)}
    return np.array(
        [rank[min(labels, key=lambda name: (counts[name], name))] if labels else 0 for labels in label_sets], np.int64
    )


def _label_pairs(annotations: pa.ChunkedArray) -> Iterator[tuple[Names, Names]]:
    """Yields the labels of each image and the labels of its objects."""
    parse = functools.lru_cache(maxsize=_CACHED_LABELS)(_parse_labels)
    for chunk in annotations.chunks:
        yield from map(parse, chunk.to_numpy(zero_copy_only=False))


def _parse_labels(text: str) -> tuple[Names, Names]:
    annotations = schemas.parse_annotations(text)
    if annotations is None:
        return (), ()
    return annotations.labels or (), tuple(item.label for item in annotations.objects or ())


# Keys, names and numbers in a record, without the image. An estimate is enough, because it only balances shards.
RECORD_OVERHEAD_BYTES = 500
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

    Raises:
      EmptySplit: a split of a new dataset would hold no image.
      SplitConflict: there are `leaks`, and `split_conflicts` is `refuse`.
      OptionError: the options do not fit the images, or the existing dataset.
      ValueError: an examined image exists already, or `labels` do not match the existing images.
    """
    rows, rejects = order_rows(examined, existing)
    _check_options(rows, options, label_kind, labels)
    clusters = image_rows.find_clusters(rows, options)
    assigned = _assign_splits(rows, clusters, options, label_kind)
    edge = len(rows.old_order)
    labelled = rows.table(("label", "annotations"), np.flatnonzero(rows.is_new))
    names = vocabulary(labelled, label_kind, labels)
    derived = pa.table({"cluster": clusters.cluster, "near": clusters.near}).slice(edge)
    derived = derived.append_column("label_index", label_indices(labelled, label_kind, names))
    del labelled  # it copies all annotations
    return Plan(
        labels=names,
        splits=tuple(
            _split_plan(name, rows, derived, np.flatnonzero(assigned[edge:] == index), options)
            for index, name in enumerate(options.splits)
        ),
        dropped=_planned(rows, derived, np.flatnonzero(~clusters.retained[edge:])),
        near_dropped=clusters.near_dropped,
        rejects=rejects,
        existing=_existing(rows, clusters),
        clusters=len(clusters.sizes),
        cluster_images=int(clusters.sizes.sum()),
        label_conflicts=_label_conflicts(rows, clusters, label_kind),
        duplicate_sets=_duplicate_sets(rows, clusters),
        near_clusters=len(clusters.near_sizes),
        near_images=int(clusters.near_sizes.sum()),
        near_largest=int(clusters.near_sizes.max(initial=0)),
        near_unsearched=clusters.unsearched,
        leaks=_leaks(rows, clusters, assigned, options),
    )


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


def _check_options(rows: Rows, options: IngestOptions, label_kind: str, labels: Sequence[str]) -> None:
    if options.stratify and label_kind == "none":
        raise OptionError("stratify needs labels, and this source has none; leave out --stratify, or name its labels")
    unknown = set(pc.unique(rows.old["split"]).to_pylist()) - {*options.splits, ""}
    if unknown:
        raise OptionError(
            f"the dataset has a split {min(unknown)!r}, splits names {', '.join(options.splits)}; "
            "add images with the --splits it was made with"
        )
    if not label_indices(rows.old, label_kind, tuple(labels)).equals(rows.old["label_index"].combine_chunks()):
        raise ValueError("the existing images have other class indices; pass the labels of their dataset")


def _assign_splits(rows: Rows, clusters: Clusters, options: IngestOptions, label_kind: str) -> np.ndarray:
    """Returns the split index of each row that is or will be in a shard, int64[rows]; `NO_SPLIT` for other rows."""
    written = rows.is_written
    members = np.flatnonzero(written | (rows.is_new & clusters.retained))
    columns = rows.table(("group", "split"), members)
    split_names = pa.array(list(options.splits), pa.string())
    roots = clusters.roots if options.near_duplicates == "group" else np.arange(len(clusters.roots))
    fixed = written[members]
    assigned = np.full(len(rows), splits.NO_SPLIT)
    assigned[members] = splits.assign(
        splits.make_units(columns["group"].combine_chunks(), clusters.contents[members], clusters.names, roots),
        pc.fill_null(pc.index_in(columns["split"], value_set=split_names), splits.NO_SPLIT).to_numpy(),
        fixed,
        _classes(rows, members, fixed, label_kind) if options.stratify else None,
        options,
    )
    return assigned


def _leaks(rows: Rows, clusters: Clusters, assigned: np.ndarray, options: IngestOptions) -> tuple[Leak, ...]:
    if not (rows.is_written.any() or pc.any(pc.not_equal(rows.new["split"], "")).as_py()):
        return ()  # every unit is in one split
    names = pa.array([*options.splits, ""], pa.string())
    images = rows.table(("key", "group"))
    columns = {"split": names.take(pa.array(assigned % len(names))), "cluster": clusters.cluster, "near": clusters.near}
    for name, column in columns.items():
        images = images.append_column(name, column)
    leaks = tuple(lookup.find_leaks(images, lookup.select_leak_kinds(options.near_duplicates), rows.is_new))
    if leaks and options.split_conflicts == "refuse":
        raise SplitConflict(
            f"{lookup.leak_sentence(leaks)}; correct the split column or the groups, leave such images out, or set "
            "--split-conflicts report"
        )
    return leaks


def _classes(rows: Rows, members: np.ndarray, fixed: np.ndarray, label_kind: str) -> np.ndarray:
    classes = np.zeros(len(members), np.int64)  # the class of an image with a fixed split has no effect
    labelled = rows.table(("label", "annotations"), members[~fixed])
    classes[~fixed] = label_strata(labelled, label_kind)
    return classes


def _empty_split(name: str, options: IngestOptions) -> EmptySplit:
    if options.columns.group:
        return EmptySplit(
            f"split {name!r} would hold no image; groups are never cut, and each fell into another one: give it a "
            "larger share in --splits, or add groups"
        )
    return EmptySplit(f"split {name!r} would hold no image; give it a larger share in --splits, or add images")


def _split_plan(name: str, rows: Rows, derived: pa.Table, indices: np.ndarray, options: IngestOptions) -> SplitPlan:
    if not len(indices) and not len(rows.old):
        raise _empty_split(name, options)
    keys = rows.new["key"].take(pa.array(rows.new_order[indices])).combine_chunks()
    order = shards.hashes64(shards.ORDER, options.seed, shards.texts(keys))
    # Rows are in order of key and the sort is stable, so equal hashes are ordered by key.
    images = _planned(rows, derived, indices[np.argsort(order, kind="stable")])
    # Objects are about as long in a record as their annotations are in JSON.
    sizes = images["bytes"].to_numpy() + pc.binary_length(images["annotations"]).to_numpy() + RECORD_OVERHEAD_BYTES
    if not len(sizes):
        return SplitPlan(name=name, images=images, edges=(0,))
    count = options.shards or shards.shard_count(int(sizes.sum()), len(sizes), options.shard_mb * 1e6)
    return SplitPlan(name=name, images=images, edges=tuple(shards.cut(sizes.tolist(), min(count, len(sizes)))))


def _planned(rows: Rows, derived: pa.Table, indices: np.ndarray) -> pa.Table:
    """Returns the `PLANNED` rows of the new images with these indices; `derived` has one row per new image."""
    images = take(rows.new, rows.new_order[indices])
    columns = [*images.columns, *take(derived, indices).columns]
    return pa.table(columns, names=[*images.column_names, *derived.column_names]).cast(schemas.PLANNED)


def _existing(rows: Rows, clusters: Clusters) -> pa.Table:
    """Returns the existing rows in their original order, with the names of their new clusters."""
    inverse = pa.array(np.argsort(rows.old_order))
    table = rows.old
    for name, column in (("cluster", clusters.cluster), ("near", clusters.near)):
        table = table.set_column(table.schema.get_field_index(name), name, column.take(inverse))
    return table


def _label_conflicts(rows: Rows, clusters: Clusters, label_kind: str) -> int:
    copies = clusters.copies
    if label_kind == "none":
        return 0
    label_codes = encode_labels(rows.table(("label", "annotations"), copies), label_kind)
    pairs = np.unique(np.column_stack([clusters.contents[copies], label_codes]), axis=0)
    return int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())


def _duplicate_sets(rows: Rows, clusters: Clusters) -> tuple[tuple[str, ...], ...]:
    copies = clusters.copies
    keys = rows.table(("key",), copies)["key"].combine_chunks()
    order = pc.sort_indices(keys).to_numpy()
    contents = clusters.contents[copies][order]
    firsts = np.sort(np.unique(contents, return_index=True)[1])[:_MAX_EXAMPLES]
    sets = (order[contents == content][:_MAX_EXAMPLES] for content in contents[firsts])
    return tuple(tuple(keys.take(pa.array(members)).to_pylist()) for members in sets)

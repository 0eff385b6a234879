"""Plan: facts -> which image goes to which split and shard, and which class stands for it. No image is touched."""

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
from beam_jobs.planning.image_rows import Clusters, Rows, line_up, take
from beam_jobs.types import Reject

NO_INDEX = -1  # `label_index` of images that have not exactly one label

_CACHED_LABELS = 4096  # multi-label images share few sets of labels, and polygons of 10 kB must not pile up

Names = tuple[str, ...]


def vocabulary(images: pa.Table, label_kind: str, known: Iterable[str] = ()) -> Names:
    """Returns the class names, of images and of their objects; the place of a name is its index.

    Args:
      images: `EXAMINED` rows.
      label_kind: one of `types.LABEL_KINDS`.
      known: names of the dataset that is added to. They keep their places, and new ones come after them, sorted.
    """
    first = tuple(known)
    names: set[str] = set(pc.unique(images["label"]).to_pylist()) if label_kind == "single" else set()
    for labels, objects in _names_of(images["annotations"]):
        names.update(labels, objects)
    return first + tuple(sorted(names.difference(first)))


def label_indices(images: pa.Table, label_kind: str, names: Names) -> pa.Array:
    """Returns the class index of each image, int64; `NO_INDEX` unless images have exactly one label."""
    if label_kind != "single":
        return pa.array(np.full(len(images), NO_INDEX))
    labels = images["label"].combine_chunks()
    return pc.cast(pc.index_in(labels, value_set=pa.array(names, pa.string())), pa.int64())


def codes_of_labels(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns a number for the label or labels of each image, int64; equal labels have equal numbers."""
    if label_kind == "single":
        return images["label"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    numbers: dict[Names, int] = {}
    return np.array(
        [numbers.setdefault(labels, len(numbers)) for labels, _ in _names_of(images["annotations"])], np.int64
    )


def label_strata(images: pa.Table, label_kind: str) -> np.ndarray:
    """Returns the class of each image to stratify by, int64: its rarest label, or the first of two that are as rare.

    Rare classes are the ones that a split may miss. Images without a label form a class of their own.
    """
    if label_kind == "single":
        labels = images["label"].combine_chunks().dictionary_encode()
        order = pc.sort_indices(pc.sort_indices(labels.dictionary))  # the place of each name among the sorted ones
        return order.take(labels.indices).to_numpy().astype(np.int64)
    label_sets = [labels for labels, _ in _names_of(images["annotations"])]
    counts = Counter(name for labels in label_sets for name in labels)
    rank = {name: place for place, name in enumerate(sorted(counts), 1)}
    return np.array(
        [rank[min(labels, key=lambda name: (counts[name], name))] if labels else 0 for labels in label_sets], np.int64
    )


def _names_of(annotations: pa.ChunkedArray) -> Iterator[tuple[Names, Names]]:
    """Yields the labels of each image and those of its objects."""
    labels_of = functools.lru_cache(maxsize=_CACHED_LABELS)(_labels_of)
    for chunk in annotations.chunks:
        yield from map(labels_of, chunk.to_numpy(zero_copy_only=False))


def _labels_of(text: str) -> tuple[Names, Names]:
    annotations = schemas.parse_annotations(text)
    if annotations is None:
        return (), ()
    return annotations.labels or (), tuple(item.label for item in annotations.objects or ())


# Everything in a record but the image: keys, names and numbers. Only used to balance shards, so near is enough.
RECORD_OVERHEAD_BYTES = 500
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """One split.

    Attributes:
      name: of the split.
      images: `PLANNED` rows in the order they will be written.
      edges: shard i holds the rows `[edges[i], edges[i + 1])`.
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
    """What will be written. What is counted, is counted over new and existing images together.

    Attributes:
      labels: class names; the index is the label. Sorted, but for those of an existing dataset, which come first.
      splits: one entry a split, in the order of the options; new images alone.
      dropped: new images that the policies leave out, as `PLANNED` rows.
      near_dropped: those of them that only look like another image.
      rejects: images that share their key with another.
      existing: the `IMAGES` rows of the dataset that is added to; the clusters are those with the new images.
      clusters: sets of images with equal bytes.
      cluster_images: images in those sets.
      label_conflicts: sets whose images carry different labels.
      duplicate_sets: keys of the first 20 sets, 20 of each at most, sorted.
      near_clusters: sets of images that look alike.
      near_images: images in those sets.
      near_largest: images in the largest of them. A large share of all images means that chains of look-alikes, one
        leading to the next, have made one set of different images.
      near_unsearched: images that were not compared with all that may look like them; see `near`.
      leaks: sets of images that belong together and lie in several splits; each holds a new image.
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
    """Plans a dataset, or what is added to one. The result depends on the images and options, not on their order.

    Existing images never move. New ones join the split of those they belong with, and are dropped where a policy leaves
    one image of a set.

    Args:
      examined: `EXAMINED` rows, in any order.
      options: splits, seed, shard size and policies.
      label_kind: one of `types.LABEL_KINDS`.
      existing: `IMAGES` rows of the dataset that is added to, none of whose keys is examined; None for a new dataset.
      labels: class names of that dataset; they keep their places.

    Raises:
      EmptySplit: a split of a new dataset would hold no image.
      SplitConflict: there are `leaks`, and the options refuse them.
      OptionError: the options do not fit the images, or the existing dataset.
      ValueError: an examined image exists already, or `labels` are not those of the existing images.
    """
    rows, rejects = line_up(examined, existing)
    _check(rows, options, label_kind, labels)
    clusters = image_rows.find_clusters(rows, options)
    splits_of_all = _splits(rows, clusters, options, label_kind)
    edge = len(rows.old_order)
    labelled = rows.table(("label", "annotations"), np.flatnonzero(rows.is_new))
    names = vocabulary(labelled, label_kind, labels)
    marks = pa.table({"cluster": clusters.cluster, "near": clusters.near}).slice(edge)
    marks = marks.append_column("label_index", label_indices(labelled, label_kind, names))
    del labelled  # it copies all annotations
    return Plan(
        labels=names,
        splits=tuple(
            _split_plan(name, rows, marks, np.flatnonzero(splits_of_all[edge:] == place), options)
            for place, name in enumerate(options.splits)
        ),
        dropped=_planned(rows, marks, np.flatnonzero(~clusters.kept[edge:])),
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
        leaks=_leaks(rows, clusters, splits_of_all, options),
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


def _check(rows: Rows, options: IngestOptions, label_kind: str, labels: Sequence[str]) -> None:
    if options.stratify and label_kind == "none":
        raise OptionError("stratify needs labels, and this source has none; leave out --stratify, or name its labels")
    unknown = set(pc.unique(rows.old["split"]).to_pylist()) - {*options.splits, ""}
    if unknown:
        raise OptionError(
            f"the dataset has a split {min(unknown)!r}, splits names {', '.join(options.splits)}; "
            "add images with the --splits it was made with"
        )
    if not label_indices(rows.old, label_kind, tuple(labels)).equals(rows.old["label_index"].combine_chunks()):
        raise ValueError("the existing images have other class indices; hand over the labels of their dataset")


def _splits(rows: Rows, found: Clusters, options: IngestOptions, label_kind: str) -> np.ndarray:
    """Returns the split of every row that is in a shard or will be, as its place in the options; `FREE` elsewhere."""
    written = rows.is_written
    stay = np.flatnonzero(written | (rows.is_new & found.kept))
    asked = rows.table(("group", "split"), stay)
    shares = pa.array(list(options.splits), pa.string())
    grouped = found.roots if options.near_duplicates == "group" else np.arange(len(found.roots))
    settled = written[stay]
    places = np.full(len(rows), splits.FREE)
    places[stay] = splits.assign(
        splits.together(asked["group"].combine_chunks(), found.contents[stay], found.names, grouped),
        pc.fill_null(pc.index_in(asked["split"], value_set=shares), splits.FREE).to_numpy(),
        settled,
        _classes(rows, stay, settled, label_kind) if options.stratify else None,
        options,
    )
    return places


def _leaks(rows: Rows, found: Clusters, places: np.ndarray, options: IngestOptions) -> tuple[Leak, ...]:
    if not (rows.is_written.any() or pc.any(pc.not_equal(rows.new["split"], "")).as_py()):
        return ()  # all splits follow from what belongs together
    names = pa.array([*options.splits, ""], pa.string())
    images = rows.table(("key", "group"))
    columns = {"split": names.take(pa.array(places % len(names))), "cluster": found.cluster, "near": found.near}
    for name, column in columns.items():
        images = images.append_column(name, column)
    crossing = tuple(lookup.find_leaks(images, lookup.select_leak_kinds(options.near_duplicates), rows.is_new))
    if crossing and options.split_conflicts == "refuse":
        raise SplitConflict(
            f"{lookup.leak_sentence(crossing)}; mend the split column or the groups, leave such images out, or give "
            "--split-conflicts report"
        )
    return crossing


def _classes(rows: Rows, stay: np.ndarray, settled: np.ndarray, label_kind: str) -> np.ndarray:
    classes = np.zeros(len(stay), np.int64)  # that of settled images is never asked for
    labelled = rows.table(("label", "annotations"), stay[~settled])
    classes[~settled] = label_strata(labelled, label_kind)
    return classes


def _empty(name: str, options: IngestOptions) -> EmptySplit:
    if options.columns.group:
        return EmptySplit(
            f"split {name!r} would hold no image; groups are never cut, and each fell into another one: give it a "
            "larger share in --splits, or add groups"
        )
    return EmptySplit(f"split {name!r} would hold no image; give it a larger share in --splits, or add images")


def _split_plan(name: str, rows: Rows, marks: pa.Table, places: np.ndarray, options: IngestOptions) -> SplitPlan:
    if not len(places) and not len(rows.old):
        raise _empty(name, options)
    keys = rows.new["key"].take(pa.array(rows.new_order[places])).combine_chunks()
    order = shards.hashes64(shards.ORDER, options.seed, shards.texts(keys))
    # Rows are in order of key and the sort is stable, so equal hashes are ordered by key.
    images = _planned(rows, marks, places[np.argsort(order, kind="stable")])
    # Objects are about as long in a record as their annotations are in JSON.
    sizes = images["bytes"].to_numpy() + pc.binary_length(images["annotations"]).to_numpy() + RECORD_OVERHEAD_BYTES
    if not len(sizes):
        return SplitPlan(name=name, images=images, edges=(0,))
    count = options.shards or shards.shard_count(int(sizes.sum()), len(sizes), options.shard_mb * 1e6)
    return SplitPlan(name=name, images=images, edges=tuple(shards.cut(sizes.tolist(), min(count, len(sizes)))))


def _planned(rows: Rows, marks: pa.Table, places: np.ndarray) -> pa.Table:
    """Returns the `PLANNED` rows of new images, in the order of their places among these."""
    images = take(rows.new, rows.new_order[places])
    columns = [*images.columns, *take(marks, places).columns]
    return pa.table(columns, names=[*images.column_names, *marks.column_names]).cast(schemas.PLANNED)


def _existing(rows: Rows, found: Clusters) -> pa.Table:
    """Returns the existing rows as they are given, but with the clusters they are in now."""
    back = pa.array(np.argsort(rows.old_order))
    table = rows.old
    for name, column in (("cluster", found.cluster), ("near", found.near)):
        table = table.set_column(table.schema.get_field_index(name), name, column.take(back))
    return table


def _label_conflicts(rows: Rows, clusters: Clusters, label_kind: str) -> int:
    places = clusters.copies
    if label_kind == "none":
        return 0
    label_codes = codes_of_labels(rows.table(("label", "annotations"), places), label_kind)
    pairs = np.unique(np.column_stack([clusters.contents[places], label_codes]), axis=0)
    return int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())


def _duplicate_sets(rows: Rows, found: Clusters) -> tuple[tuple[str, ...], ...]:
    places = found.copies
    keys = rows.table(("key",), places)["key"].combine_chunks()
    order = pc.sort_indices(keys).to_numpy()
    contents = found.contents[places][order]
    firsts = np.sort(np.unique(contents, return_index=True)[1])[:_SHOWN]
    sets = (order[contents == content][:_SHOWN] for content in contents[firsts])
    return tuple(tuple(keys.take(pa.array(members)).to_pylist()) for members in sets)

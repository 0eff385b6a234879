"""Plan: facts -> which image goes to which split and shard. Pure; no byte of an image is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import shards, tables
from beam_jobs.errors import EmptySplit, RejectReason
from beam_jobs.manifest import ChannelStatistics
from beam_jobs.options import IngestOptions
from beam_jobs.types import Reject

# Everything in a record but the image: keys, names and numbers. Only used to balance shards, so near is enough.
_RECORD_OVERHEAD_BYTES = 500


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
        """Number of shards, at least 1."""
        return len(self.edges) - 1

    def shard(self, index: int) -> pa.Table:
        """Returns the rows of one shard."""
        return self.images.slice(self.edges[index], self.edges[index + 1] - self.edges[index])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be written.

    Attributes:
      labels: class names, sorted; the index is the label.
      splits: one entry a split, in the order of the options.
      dropped: duplicates that are left out, as `PLANNED` rows.
      rejects: images that share their key with another.
      clusters: sets of images with equal bytes.
      cluster_images: images in those sets.
      label_conflicts: sets whose images carry different labels.
    """

    labels: tuple[str, ...]
    splits: tuple[SplitPlan, ...]
    dropped: pa.Table
    rejects: tuple[Reject, ...]
    clusters: int
    cluster_images: int
    label_conflicts: int


def make_plan(examined: pa.Table, options: IngestOptions) -> Plan:
    """Plans a dataset. The result depends on the images and options alone, never on the order of the rows.

    Args:
      examined: `EXAMINED` rows, in any order.
      options: splits, seed, shard size and duplicate policy.

    Raises:
      EmptySplit: a split would hold no image.
    """
    images, rejects = _unique_keys(examined)
    content = images["sha256"].combine_chunks().dictionary_encode().indices.to_numpy()
    copies = np.bincount(content) if len(content) else np.zeros(0, np.int64)
    duplicated = copies[content] > 1 if len(content) else np.zeros(0, bool)
    labels = tuple(sorted(set(images["label"].to_pylist())))
    planned = _with_columns(images, duplicated, labels)
    kept = _first_of_each(content) if options.duplicates == "drop" else np.ones(len(content), bool)
    chosen = planned.filter(pa.array(kept))
    names = np.array(_split_names(chosen, options), dtype=object)
    return Plan(
        labels=labels,
        splits=tuple(_plan_split(name, chosen.filter(pa.array(names == name)), options) for name in options.splits),
        dropped=planned.filter(pa.array(~kept)),
        rejects=rejects,
        clusters=int((copies > 1).sum()),
        cluster_images=int(duplicated.sum()),
        label_conflicts=_label_conflicts(planned.filter(pa.array(duplicated))),
    )


def channel_statistics(split: str, images: pa.Table) -> ChannelStatistics:
    """Pools the moments of each image into those of all pixels, weighted by pixels.

    With n_i pixels, mean m_i and variance v_i: m = sum(n_i m_i) / n and v = sum(n_i (v_i + m_i^2)) / n - m^2.
    """
    pixels = (images["height"].to_numpy() * images["width"].to_numpy()).astype(np.float64)[:, None]
    mean = _triples(images["mean_rgb"])
    second = _triples(images["var_rgb"]) + mean**2
    pooled_mean = (pixels * mean).sum(0) / pixels.sum()
    pooled_var = np.maximum((pixels * second).sum(0) / pixels.sum() - pooled_mean**2, 0)
    return ChannelStatistics(
        split=split,
        mean_rgb=tuple(float(value) for value in pooled_mean),
        std_rgb=tuple(float(value) for value in np.sqrt(pooled_var)),
    )


def _unique_keys(examined: pa.Table) -> tuple[pa.Table, tuple[Reject, ...]]:
    """Sorts by key and rejects every row but the first of each key."""
    by = ("key", "uri", "sha256", "label", "group", "split", "extra")  # enough to tell any two rows apart
    images = examined.sort_by([(name, "ascending") for name in by])
    if len(images) < 2:
        return images, ()
    keys = images["key"].combine_chunks()
    repeated = np.concatenate([[False], pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)])
    rejects = tuple(
        Reject(
            key=row["key"],
            uri=row["uri"],
            stage="plan",
            reason=RejectReason.DUPLICATE_KEY.value,
            detail="another row has this key; name a key column whose values differ",
        )
        for row in images.filter(pa.array(repeated)).select(["key", "uri"]).to_pylist()
    )
    return images.filter(pa.array(~repeated)), rejects


def _with_columns(images: pa.Table, duplicated: np.ndarray, labels: Sequence[str]) -> pa.Table:
    clusters = pc.if_else(pa.array(duplicated), pc.utf8_slice_codeunits(images["sha256"], 0, 16), "")
    indices = pc.cast(pc.index_in(images["label"], value_set=pa.array(labels, pa.string())), pa.int64())
    return images.append_column("cluster", clusters).append_column("label_index", indices).cast(tables.PLANNED)


def _first_of_each(codes: np.ndarray) -> np.ndarray:
    """Marks the first row of each code; rows are sorted by key, so the first key stays."""
    first = np.zeros(len(codes), bool)
    first[np.unique(codes, return_index=True)[1]] = True
    return first


def _split_names(images: pa.Table, options: IngestOptions) -> list[str]:
    """Returns the split of each row: the one the source demands for it or for what it must stay with, else the hash.

    The content hash stands for an image, not its key: a copy added later then joins the split of the original
    instead of pulling it elsewhere.
    """
    shares = options.shares
    rank = {name: place for place, name in enumerate(shares)}
    demands = images["split"].to_pylist()
    together = _groups(images["group"].to_pylist(), images["sha256"].to_pylist())
    known: dict[str, str] = {}
    for demanded, group in zip(demands, together, strict=True):
        if demanded:
            known[group] = min(demanded, known.get(group, demanded), key=rank.__getitem__)
    for group in together:
        if group not in known:
            known[group] = shards.split_of(options.seed, group, shares)
    return [demanded or known[group] for demanded, group in zip(demands, together, strict=True)]


def _groups(groups: Sequence[str], contents: Sequence[str]) -> list[str]:
    """Returns a name for what each row must stay with: rows of one group, and rows of equal content, joined.

    A joined set is named after its smallest group, so that it keeps its split when members are added. A member that
    ties two sets together moves one of them: they were apart only for want of it.
    """
    if not any(groups):
        return list(contents)
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    # "group:" sorts before "image:", so the smaller root of a union is a group whenever there is one.
    nodes = [("group:" + g if g else "image:" + c, "image:" + c) for g, c in zip(groups, contents, strict=True)]
    for one, other in nodes:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return [root(one).removeprefix("image:") for one, _ in nodes]


def _plan_split(name: str, images: pa.Table, options: IngestOptions) -> SplitPlan:
    if not len(images):
        raise EmptySplit(f"split {name!r} would hold no image; give it a larger share in --splits, or add images")
    keys = images["key"].to_pylist()
    order = np.array([shards.order_of(options.seed, key) for key in keys], dtype=np.uint64)
    # Rows come sorted by key and the sort is stable, so equal hashes are ordered by key.
    images = images.take(pa.array(np.argsort(order, kind="stable")))
    sizes = images["bytes"].to_numpy() + _RECORD_OVERHEAD_BYTES
    count = options.shards or shards.shard_count(int(sizes.sum()), len(sizes), options.shard_mb * 1e6)
    return SplitPlan(name=name, images=images, edges=tuple(shards.cut(sizes.tolist(), min(count, len(sizes)))))


def _label_conflicts(duplicates: pa.Table) -> int:
    pairs = set(zip(duplicates["cluster"].to_pylist(), duplicates["label"].to_pylist(), strict=True))
    seen = Counter(cluster for cluster, _ in pairs)
    return sum(count > 1 for count in seen.values())


def _triples(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().flatten().to_numpy().astype(np.float64).reshape(-1, 3)

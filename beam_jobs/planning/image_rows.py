"""Rows of all images of a plan, and the clusters of images that are equal or look alike. Reads facts only.

Existing images, of the dataset that is added to, come first, then new images; both are in order of key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.near_duplicates import Appearances, NearClusters
from beam_jobs.rejects import Reject, RejectReason

# Slices come last: they depend on the order of the listing, and rows that differ only in slices have equal bytes.
_TIES = ("key", "uri", "sha256", "label", "group", "split", "extra", "annotations", "slice", "mask_slice")
_MAX_STRING_BYTES = 2**31  # bytes of text in one array of Arrow's `string` type
_PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of two tables with one numbering, old rows first; `table` copies columns on demand.

    Attributes:
      old: `IMAGES` rows of the dataset that is added to.
      old_order: row indices of `old` in order of key, int64[old rows].
      new: `EXAMINED` rows.
      new_order: row indices of `new` in order of key, one per key, int64[new rows].
    """

    old: pa.Table
    old_order: np.ndarray
    new: pa.Table
    new_order: np.ndarray

    def __len__(self) -> int:
        return len(self.old_order) + len(self.new_order)

    @property
    def is_new(self) -> np.ndarray:
        """Whether each row is new."""
        return np.arange(len(self)) >= len(self.old_order)

    @property
    def is_written(self) -> np.ndarray:
        """Whether each row is already in a shard; an existing row may have been dropped as a duplicate."""
        written = self.old["shard"].to_numpy()[self.old_order] >= 0
        return np.concatenate([written, np.zeros(len(self.new_order), bool)])

    @property
    def near(self) -> pa.Array:
        """Name of the near cluster of each row when the dataset was written; empty for none."""
        old_names = self.old["near"].take(pa.array(self.old_order)).combine_chunks()
        return pa.concat_arrays([old_names, pa.repeat("", len(self.new_order))])

    def table(self, names: Sequence[str], indices: np.ndarray | None = None) -> pa.Table:
        """Returns columns of the rows with these ascending indices; None for all rows."""
        edge = len(self.old_order)
        old, new = self.old_order, self.new_order
        if indices is not None:
            old, new = old[indices[indices < edge]], new[indices[indices >= edge] - edge]
        return pa.concat_tables([take(self.old.select(names), old), take(self.new.select(names), new)])


def order_rows(examined: pa.Table, existing: pa.Table | None) -> tuple[Rows, tuple[Reject, ...]]:
    """Orders the rows by key, and rejects all new rows of a key except the first.

    Args:
      examined: `EXAMINED` rows, in any order.
      existing: `IMAGES` rows of the dataset that is added to; None for a new dataset.

    Raises:
      ValueError: a new image has the key of an existing one.
    """
    old = schemas.IMAGES.empty_table() if existing is None else existing
    if len(old) and pc.any(pc.is_in(examined["key"], value_set=old["key"].combine_chunks())).as_py():
        raise ValueError("an examined image exists already; leave the images of `existing` out of `examined`")
    order = _key_order(examined)
    keys = examined["key"].take(pa.array(order)).combine_chunks()
    repeated = np.zeros(len(order), bool)
    if len(order) > 1:
        repeated[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    if repeated.any():
        order = _break_ties(examined, order, repeated)
    rejects = tuple(_reject(row) for row in take(examined.select(["key", "uri"]), order[repeated]).to_pylist())
    return Rows(old=old, old_order=_key_order(old), new=examined, new_order=order[~repeated]), rejects


def take(table: pa.Table, indices: np.ndarray) -> pa.Table:
    """Returns the rows with these indices, in their order."""
    return pa.table([_take(column, pa.array(indices)) for column in table.columns], schema=table.schema)


def _key_order(table: pa.Table) -> np.ndarray:
    return pc.sort_indices(table["key"]).to_numpy().astype(np.int64)


def _break_ties(examined: pa.Table, order: np.ndarray, repeated: np.ndarray) -> np.ndarray:
    """Orders rows with equal keys by their other columns, so that their order in the table has no effect."""
    tied = repeated | np.append(repeated[1:], False)
    rows = examined.select(_TIES).take(pa.array(order[tied]))
    order = order.copy()
    order[tied] = order[tied][pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _TIES]).to_numpy()]
    return order


def _reject(row: dict[str, str]) -> Reject:
    return Reject(
        key=row["key"],
        uri=row["uri"],
        stage="plan",
        reason=RejectReason.DUPLICATE_KEY.value,
        detail="another row has this key; name a key column whose values differ",
    )


def _take(column: pa.ChunkedArray, indices: pa.Array) -> pa.ChunkedArray:
    if column.nbytes < _MAX_STRING_BYTES or not pa.types.is_string(column.type):
        return column.take(indices)
    # `take` combines the chunks of a column, and fails when they are too long for the offsets of the type.
    combined = column.cast(pa.large_string()).combine_chunks()
    pieces = (combined.take(indices.slice(start, _PIECE)) for start in range(0, len(indices), _PIECE))
    return pa.chunked_array([piece.cast(pa.string()) for piece in pieces], pa.string())


_COLUMNS = ("sha256", "dhash", "height", "width", "mean_rgb", "var_rgb")
_NAME_LENGTH = 16  # hex digits of a sha256: the probability that two sets of a billion images share a name is 3 %


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Sets of equal images, and of images that look alike.

    Equal images have the same content. Contents are numbered in the order of their first rows.

    Attributes:
      contents: index of the content of each row, int64[rows].
      names: sha256 of each content.
      roots: index of the first content of the near cluster of each content, int64[contents].
      cluster: name of the set of equal images of each row; empty for none.
      near: name of the near cluster of each row; empty for none.
      retained: whether the policies retain each new row, bool[rows]; undefined for existing rows.
      near_dropped: number of new rows that only the policy for near duplicates drops.
      unsearched: number of rows that were not compared with every candidate.
    """

    contents: np.ndarray
    names: pa.Array
    roots: np.ndarray
    cluster: pa.Array
    near: pa.Array
    retained: np.ndarray
    near_dropped: int
    unsearched: int

    @property
    def copies(self) -> np.ndarray:
        """Indices of the rows whose content other rows have too."""
        return np.flatnonzero(np.bincount(self.contents)[self.contents] > 1)

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each set of equal images."""
        counts = np.bincount(self.contents)
        return counts[counts > 1]

    @property
    def near_sizes(self) -> np.ndarray:
        """Number of rows of each near cluster."""
        counts = np.bincount(self.roots[self.contents[_is_named(self.near)]])
        return counts[counts > 0]


def find_clusters(rows: Rows, options: IngestOptions) -> Clusters:
    """Finds the clusters and applies the policies.

    `drop` drops the new rows of a set that contains an existing row; of other sets it retains the first row by key.
    Policies for near duplicates apply to contents: all copies of an image are retained or dropped, unless the policy
    for duplicates drops some of them.

    Args:
      rows: existing and new rows.
      options: policies and near distance.
    """
    table = rows.table(_COLUMNS)
    encoded = table["sha256"].combine_chunks().dictionary_encode()
    contents, names = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    firsts = np.zeros(len(names), np.int64)
    firsts[contents[::-1]] = np.arange(len(rows))[::-1]  # of repeated assignments the last one counts
    is_retained = np.ones(len(rows), bool)
    if options.duplicates == "drop":
        is_retained = firsts[contents] == np.arange(len(rows))
    near = NearClusters(roots=np.arange(len(names)), unsearched=np.zeros(len(names), bool))
    surplus, unsearched = near.unsearched, near.unsearched
    if options.near_duplicates != "off":
        appearances = _appearances(table, firsts, channel_statistics=options.facts == "all")
        near = near_duplicates.find(appearances, options.near_distance)
        unsearched = near.unsearched
        if options.near_duplicates == "drop":
            surplus, unsearched = _surplus(rows, appearances, contents, near, options.near_distance)
    return Clusters(
        contents=contents,
        names=names,
        roots=near.roots,
        cluster=_cluster_names(contents, names),
        near=_near_names(rows.near, contents, names, near.roots),
        retained=is_retained & ~surplus[contents],
        near_dropped=int((is_retained & surplus[contents]).sum()),
        unsearched=int(unsearched[contents].sum()),
    )


def _appearances(rows: pa.Table, firsts: np.ndarray, channel_statistics: bool) -> Appearances:
    columns = rows.select(_COLUMNS[1:]).take(pa.array(firsts))
    dhash, height, width = (columns[name].to_numpy() for name in ("dhash", "height", "width"))
    variance = schemas.triples(columns["var_rgb"]) if channel_statistics else None
    return near_duplicates.measure(dhash, height, width, schemas.triples(columns["mean_rgb"]), variance)


def _surplus(
    rows: Rows, appearances: Appearances, contents: np.ndarray, clusters: NearClusters, distance: int
) -> tuple[np.ndarray, np.ndarray]:
    written, droppable = np.zeros(len(clusters.roots), bool), np.ones(len(clusters.roots), bool)
    written[contents[rows.is_written]] = True
    droppable[contents[~rows.is_new]] = False
    return near_duplicates.find_surplus(appearances, clusters, distance, written, droppable)


def _cluster_names(contents: np.ndarray, names: pa.Array) -> pa.Array:
    repeated = np.bincount(contents, minlength=len(names)) > 1
    return pc.if_else(pa.array(repeated), _prefix(names), "").take(pa.array(contents))


def _near_names(existing: pa.Array, contents: np.ndarray, names: pa.Array, roots: np.ndarray) -> pa.Array:
    """Returns the name of the near cluster of each row: its existing name, or else a prefix of its smallest sha256."""
    linked = np.flatnonzero(np.bincount(roots, minlength=len(roots))[roots] > 1)
    linked = linked[pc.sort_indices(names.take(pa.array(linked))).to_numpy()]
    clusters, firsts = np.unique(roots[linked], return_index=True)
    root_names = dict(zip(clusters.tolist(), _prefix(names.take(pa.array(linked[firsts]))).to_pylist(), strict=True))
    named = np.flatnonzero(_is_named(existing))
    existing_names = zip(existing.take(pa.array(named)).to_pylist(), roots[contents[named]].tolist(), strict=True)
    # A cluster that joins several existing clusters gets the smallest of their names.
    root_names |= {root: name for name, root in sorted(existing_names, reverse=True)}
    return pa.array([root_names.get(root, "") for root in roots.tolist()], pa.string()).take(pa.array(contents))


def _is_named(names: pa.Array) -> np.ndarray:
    return pc.not_equal(names, "").to_numpy(zero_copy_only=False)


def _prefix(names: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(names, 0, _NAME_LENGTH)

"""The images of a plan side by side, and which belong together because they are equal or look alike. On facts alone.

Those of the dataset that is added to come first, then the new ones, each in order of key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas
from beam_jobs.errors import RejectReason
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.near_duplicates import NearClusters
from beam_jobs.types import Reject

# The slices come last: where the bytes lie in a spool follows from the listing, but then the bytes are the same.
_TIES = ("key", "uri", "sha256", "label", "group", "split", "extra", "annotations", "slice", "mask_slice")
_OFFSETS_END = 2**31  # bytes of text that one array of Arrow's `string` type holds
_PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of two tables under one numbering; columns are copied when they are asked for, and not before.

    Attributes:
      old: `IMAGES` rows of the dataset that is added to.
      old_order: their places in order of key.
      new: `EXAMINED` rows.
      new_order: their places in order of key, one of each key.
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
        """Whether each row is in a shard already; an existing one may have been left out as a duplicate."""
        written = self.old["shard"].to_numpy()[self.old_order] >= 0
        return np.concatenate([written, np.zeros(len(self.new_order), bool)])

    @property
    def near(self) -> pa.Array:
        """Name of the near cluster each row was in when the dataset was written."""
        of_old = self.old["near"].take(pa.array(self.old_order)).combine_chunks()
        return pa.concat_arrays([of_old, pa.repeat("", len(self.new_order))])

    def table(self, names: Sequence[str], places: np.ndarray | None = None) -> pa.Table:
        """Returns some columns of the rows at some places, which ascend; of all rows when none are given."""
        edge = len(self.old_order)
        old, new = self.old_order, self.new_order
        if places is not None:
            old, new = old[places[places < edge]], new[places[places >= edge] - edge]
        return pa.concat_tables([take(self.old.select(names), old), take(self.new.select(names), new)])


def line_up(examined: pa.Table, existing: pa.Table | None) -> tuple[Rows, tuple[Reject, ...]]:
    """Puts the rows in order and rejects every new one but the first of each key.

    Args:
      examined: `EXAMINED` rows, in any order.
      existing: `IMAGES` rows of the dataset that is added to; None for a new dataset.

    Raises:
      ValueError: a new image has the key of an existing one.
    """
    old = schemas.IMAGES.empty_table() if existing is None else existing
    if len(old) and pc.any(pc.is_in(examined["key"], value_set=old["key"].combine_chunks())).as_py():
        raise ValueError("an image is there already; leave out of `examined` what `existing` holds")
    order = _by_key(examined)
    keys = examined["key"].take(pa.array(order)).combine_chunks()
    repeated = np.zeros(len(order), bool)
    if len(order) > 1:
        repeated[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    if repeated.any():
        order = _break_ties(examined, order, repeated)
    rejects = tuple(_reject(row) for row in take(examined.select(["key", "uri"]), order[repeated]).to_pylist())
    rows = Rows(old=old, old_order=_by_key(old), new=examined, new_order=order[~repeated])
    return rows, rejects


def take(table: pa.Table, places: np.ndarray) -> pa.Table:
    """Returns the rows at some places."""
    return pa.table([_take(column, pa.array(places)) for column in table.columns], schema=table.schema)


def _by_key(table: pa.Table) -> np.ndarray:
    return pc.sort_indices(table["key"]).to_numpy().astype(np.int64)


def _break_ties(examined: pa.Table, order: np.ndarray, repeated: np.ndarray) -> np.ndarray:
    """Orders the rows of one key by what else tells them apart, so that their order in the table does not matter."""
    tied = repeated | np.append(repeated[1:], False)
    rivals = examined.select(_TIES).take(pa.array(order[tied]))
    order = order.copy()
    order[tied] = order[tied][pc.sort_indices(rivals, sort_keys=[(name, "ascending") for name in _TIES]).to_numpy()]
    return order


def _reject(row: dict[str, str]) -> Reject:
    return Reject(
        key=row["key"],
        uri=row["uri"],
        stage="plan",
        reason=RejectReason.DUPLICATE_KEY.value,
        detail="another row has this key; name a key column whose values differ",
    )


def _take(column: pa.ChunkedArray, places: pa.Array) -> pa.ChunkedArray:
    if column.nbytes < _OFFSETS_END or not pa.types.is_string(column.type):
        return column.take(places)
    # Arrow joins the chunks to take from them, and fails when they are too long for the offsets of the type.
    whole = column.cast(pa.large_string()).combine_chunks()
    pieces = (whole.take(places.slice(start, _PIECE)) for start in range(0, len(places), _PIECE))
    return pa.chunked_array([piece.cast(pa.string()) for piece in pieces], pa.string())


_COLUMNS = ("sha256", "dhash", "height", "width", "mean_rgb", "var_rgb")
_NAME_LENGTH = 16  # hex digits of a sha256: among a billion images two sets share a name with a chance of 3 %


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Sets of equal images, and of images that look alike.

    Equal images are one content. Contents are numbered in the order of the rows that show them first.

    Attributes:
      contents: content of each row.
      names: sha256 of each content.
      roots: first content of the near cluster of each content; its own number when it is alone.
      cluster: name of the set of equal images of each row; empty for none.
      near: name of the near cluster of each row; empty for none.
      kept: whether each row stays under the policies; says nothing of existing rows.
      near_dropped: new rows that go because of the near policy alone.
      unsearched: rows that were not compared with all that may look like them.
    """

    contents: np.ndarray
    names: pa.Array
    roots: np.ndarray
    cluster: pa.Array
    near: pa.Array
    kept: np.ndarray
    near_dropped: int
    unsearched: int

    @property
    def copies(self) -> np.ndarray:
        """Places of the rows that are not the only one of their content."""
        return np.flatnonzero(np.bincount(self.contents)[self.contents] > 1)

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each set of equal images."""
        counts = np.bincount(self.contents)
        return counts[counts > 1]

    @property
    def near_sizes(self) -> np.ndarray:
        """Rows of each near cluster."""
        counts = np.bincount(self.roots[self.contents[_is_named(self.near)]])
        return counts[counts > 0]


def find_clusters(rows: Rows, options: IngestOptions) -> Clusters:
    """Finds the clusters and applies the policies.

    `drop` leaves out new rows that belong with an existing one, and else all but the first of a set by key. Near
    policies look at contents: copies of one image stay or go together, unless the policy for duplicates parts them.

    Args:
      rows: what is there and what is new.
      options: policies and near distance.
    """
    table = rows.table(_COLUMNS)
    encoded = table["sha256"].combine_chunks().dictionary_encode()
    contents, names = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    firsts = np.zeros(len(names), np.int64)
    firsts[contents[::-1]] = np.arange(len(rows))[::-1]  # of several values assigned the last one stays
    kept = np.ones(len(rows), bool)
    if options.duplicates == "drop":
        kept = firsts[contents] == np.arange(len(rows))
    alike = NearClusters(roots=np.arange(len(names)), unsearched=np.zeros(len(names), bool))
    surplus, unsearched = alike.unsearched, alike.unsearched
    if options.near_duplicates != "off":
        looks = _looks_of(table, firsts, moments=options.facts == "all")
        alike = near_duplicates.find(looks, options.near_distance)
        unsearched = alike.unsearched
        if options.near_duplicates == "drop":
            surplus, unsearched = _surplus(rows, looks, contents, alike, options.near_distance)
    return Clusters(
        contents=contents,
        names=names,
        roots=alike.roots,
        cluster=_cluster_names(contents, names),
        near=_near_names(rows.near, contents, names, alike.roots),
        kept=kept & ~surplus[contents],
        near_dropped=int((kept & surplus[contents]).sum()),
        unsearched=int(unsearched[contents].sum()),
    )


def _looks_of(rows: pa.Table, firsts: np.ndarray, moments: bool) -> near_duplicates.Looks:
    shown = rows.select(_COLUMNS[1:]).take(pa.array(firsts))
    dhash, height, width = (shown[name].to_numpy() for name in ("dhash", "height", "width"))
    variance = schemas.triples(shown["var_rgb"]) if moments else None
    return near_duplicates.looks(dhash, height, width, schemas.triples(shown["mean_rgb"]), variance)


def _surplus(
    rows: Rows, looks: near_duplicates.Looks, contents: np.ndarray, alike: NearClusters, distance: int
) -> tuple[np.ndarray, np.ndarray]:
    stays, may_go = np.zeros(len(alike.roots), bool), np.ones(len(alike.roots), bool)
    stays[contents[rows.is_written]] = True
    may_go[contents[~rows.is_new]] = False
    return near_duplicates.surplus(looks, alike, distance, stays, may_go)


def _cluster_names(contents: np.ndarray, names: pa.Array) -> pa.Array:
    repeated = np.bincount(contents, minlength=len(names)) > 1
    return pc.if_else(pa.array(repeated), _short(names), "").take(pa.array(contents))


def _near_names(known: pa.Array, contents: np.ndarray, names: pa.Array, roots: np.ndarray) -> pa.Array:
    """Returns the near cluster of each row: the name it is known by, or else the start of its smallest sha256."""
    linked = np.flatnonzero(np.bincount(roots, minlength=len(roots))[roots] > 1)
    linked = linked[pc.sort_indices(names.take(pa.array(linked))).to_numpy()]
    clusters, places = np.unique(roots[linked], return_index=True)
    given = dict(zip(clusters.tolist(), _short(names.take(pa.array(linked[places]))).to_pylist(), strict=True))
    named = np.flatnonzero(_is_named(known))
    known_names = zip(known.take(pa.array(named)).to_pylist(), roots[contents[named]].tolist(), strict=True)
    # Clusters that grew into one take the smallest of their names.
    given |= {root: name for name, root in sorted(known_names, reverse=True)}
    return pa.array([given.get(root, "") for root in roots.tolist()], pa.string()).take(pa.array(contents))


def _is_named(names: pa.Array) -> np.ndarray:
    return pc.not_equal(names, "").to_numpy(zero_copy_only=False)


def _short(names: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(names, 0, _NAME_LENGTH)

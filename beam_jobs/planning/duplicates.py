"""Which images belong together because they are equal or look alike. Pure; on facts alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.image_rows import Rows
from beam_jobs.planning.near_duplicates import NearClusters

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


def find(rows: Rows, options: IngestOptions) -> Clusters:
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
        looks = _looks(table, firsts, moments=options.facts == "all")
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


def _looks(rows: pa.Table, firsts: np.ndarray, moments: bool) -> near_duplicates.Looks:
    shown = rows.select(_COLUMNS[1:]).take(pa.array(firsts))
    dhash, height, width = (shown[name].to_numpy() for name in ("dhash", "height", "width"))
    variance = _triples(shown["var_rgb"]) if moments else None
    return near_duplicates.looks(dhash, height, width, _triples(shown["mean_rgb"]), variance)


def _triples(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().flatten().to_numpy().reshape(-1, 3)


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

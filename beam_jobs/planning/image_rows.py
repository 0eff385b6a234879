"""The images of a plan side by side: those of the dataset that is added to, then the new ones, each in order of key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas
from beam_jobs.errors import RejectReason
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

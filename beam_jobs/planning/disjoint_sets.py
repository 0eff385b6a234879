"""Sets that grow together: a union-find over arrays."""

from __future__ import annotations

import numpy as np


def join(roots: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Joins sets: returns the smallest member of the set of each item once all pairs are linked.

    Args:
      roots: int64[items], the smallest member of the set of each item so far.
      one: items.
      other: an item to link with each of them.
    """
    roots = roots.copy()
    while True:
        one, other = roots[one], roots[other]
        apart = one != other
        if not apart.any():
            return roots
        one, other = np.minimum(one[apart], other[apart]), np.maximum(one[apart], other[apart])
        np.minimum.at(roots, other, one)  # every root points to a smaller one, so there are no circles
        while not np.array_equal(further := roots[roots], roots):
            roots = further

"""Distance between the distributions of two samples of numbers, each in ascending order so that nothing is copied.

Jensen-Shannon is the divergence (not its square root, the distance) with logarithms of base 2, 0-1. Source: J. Lin,
"Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information Theory 37 (1991).
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

_BINS = 10
_EPSILON = 1e-9


def jensen_shannon(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence (base 2, 0-1) of shares along the last axis."""
    mean = (one + other) / 2
    return np.clip((_relative_entropy(one, mean) + _relative_entropy(other, mean)) / 2, 0, 1)


def sample_divergence(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the Jensen-Shannon divergence (0-1) of two samples, with the deciles of both together as bins.

    Args:
      one: float64[n], finite values in ascending order, n > 0.
      other: float64[m], finite values in ascending order, m > 0.
    """
    edges = common_edges(one, other)
    return float(jensen_shannon(shares(histogram(one, edges)), shares(histogram(other, edges))))


def finite_part(values: np.ndarray) -> np.ndarray:
    """Returns the finite ones of values in ascending order, NaN last, as a view."""
    return values[np.searchsorted(values, -np.inf, "right") : np.searchsorted(values, np.inf, "left")]


def median(values: np.ndarray) -> float:
    """Returns the median of values in ascending order, at least one."""
    return float(values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts as shares that sum to 1."""
    return counts / counts.sum()


def common_edges(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the inner edges of bins for two samples: the deciles of both samples together, with equal weights.

    Deciles suit the long tails of sizes: with bins of equal width, one large file would put all others into one bin.
    Deciles of one sample would put all values that only the other has into its last bin. A value of at least a tenth of
    the images is an edge.

    Args:
      one: finite values in ascending order.
      other: finite values in ascending order.

    Returns:
      float64[edges], ascending, at most 9; a bin includes its upper edge.
    """
    sides = [values for values in (one, other) if len(values)]

    def share(value: float) -> float:
        """Returns the share of the values up to this one, of both samples together."""
        return float(sum(np.searchsorted(values, value, "right") / len(values) for values in sides)) / len(sides)

    targets = [decile / _BINS - _EPSILON for decile in range(1, _BINS)]
    edges = [
        min(values[index] for values in sides if (index := bisect_left(values, target, key=share)) < len(values))
        for target in (targets if sides else ())
    ]
    return np.unique(np.array(edges, np.float64))


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the count of each bin, and at the end that of the non-finite values: int64[edges + 2].

    Args:
      values: values in ascending order, NaN last.
      edges: see `common_edges`.
    """
    finite = finite_part(values)
    counts = np.diff(np.searchsorted(finite, edges, "right"), prepend=0, append=len(finite))
    return np.append(counts, len(values) - len(finite))


def _relative_entropy(one: np.ndarray, mean: np.ndarray) -> np.ndarray:
    ratio = np.divide(one, mean, out=np.ones_like(one), where=one > 0)
    return (one * np.log2(ratio)).sum(axis=-1)

"""Distance between the distributions of two samples of numbers.

Jensen-Shannon is the divergence (not its square root, the distance) with logarithms of base 2, 0-1. Source: J. Lin,
"Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information Theory 37 (1991).
"""

from __future__ import annotations

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
      one: float64[n], finite values, n > 0.
      other: float64[m], finite values, m > 0.
    """
    edges = common_edges(one, other)
    return float(jensen_shannon(shares(histogram(one, edges)), shares(histogram(other, edges))))


def shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts as shares that sum to 1."""
    return counts / counts.sum()


def common_edges(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the inner edges of bins for two samples: the deciles of both samples together, with equal weights.

    Deciles suit the long tails of sizes: with bins of equal width, one large file would put all others into one bin.
    Deciles of one sample would put all values that only the other has into its last bin. A value of at least a tenth of
    the images is an edge.

    Args:
      one: finite values.
      other: finite values.

    Returns:
      float64[edges], ascending, at most 9; a bin includes its upper edge.
    """
    values = np.concatenate([one, other])
    if not len(values):
        return values
    weights = np.concatenate([np.full(len(part), 0.5 / max(1, len(part))) for part in (one, other)])
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    indices = np.searchsorted(cumulative, cumulative[-1:] * np.arange(1, _BINS) / _BINS - _EPSILON)
    return np.unique(values[order][indices])


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the count of each bin, and at the end that of the non-finite values: int64[edges + 2]."""
    finite = values[np.isfinite(values)]
    counts = np.bincount(np.searchsorted(edges, finite), minlength=len(edges) + 1)
    return np.append(counts, len(values) - len(finite))


def _relative_entropy(one: np.ndarray, mean: np.ndarray) -> np.ndarray:
    ratio = np.divide(one, mean, out=np.ones_like(one), where=one > 0)
    return (one * np.log2(ratio)).sum(axis=-1)

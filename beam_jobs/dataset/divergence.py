"""Distance between the distributions of two samples of numbers; sorted samples avoid copies.

Jensen-Shannon is the divergence (not its square root, the distance) with logarithms of base 2, 0-1. Source: J. Lin,
"Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information Theory 37 (1991).
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

_BINS = 10
_EPSILON = 1e-9  # tolerance for rounding errors of shares


def jensen_shannon(shares_a: np.ndarray, shares_b: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence (base 2, 0-1) of shares along the last axis."""
    mean = (shares_a + shares_b) / 2
    return np.clip((_relative_entropy(shares_a, mean) + _relative_entropy(shares_b, mean)) / 2, 0, 1)


def sample_divergence(sample_a: np.ndarray, sample_b: np.ndarray) -> float:
    """Returns the Jensen-Shannon divergence (0-1) of two samples, with the deciles of both together as bins.

    Args:
      sample_a: float64[n], finite values in ascending order, n > 0.
      sample_b: float64[m], finite values in ascending order, m > 0.
    """
    edges = common_edges(sample_a, sample_b)
    return float(jensen_shannon(shares(histogram(sample_a, edges)), shares(histogram(sample_b, edges))))


def finite_part(values: np.ndarray) -> np.ndarray:
    """Returns a view of the finite values of an array in ascending order with NaN last."""
    return values[np.searchsorted(values, -np.inf, "right") : np.searchsorted(values, np.inf, "left")]


def median(values: np.ndarray) -> float:
    """Returns the median of at least one value in ascending order."""
    return float(values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts as shares that sum to 1."""
    return counts / counts.sum()


def common_edges(sample_a: np.ndarray, sample_b: np.ndarray) -> np.ndarray:
    """Returns the inner edges of bins for two samples: the deciles of both samples together, with equal weights.

    Deciles suit the long tails of sizes: with bins of equal width, one large file would put all others into one bin.
    With the deciles of only one sample, all greater values of the other sample would be in the last bin. A value of at
    least a tenth of the images is an edge.

    Args:
      sample_a: finite values in ascending order.
      sample_b: finite values in ascending order.

    Returns:
      float64[edges], ascending, at most 9; a bin includes its upper edge.
    """
    samples = [values for values in (sample_a, sample_b) if len(values)]

    def share(value: float) -> float:
        """Returns the share of values that are at most `value`, averaged over the samples."""
        return float(sum(np.searchsorted(values, value, "right") / len(values) for values in samples)) / len(samples)

    target_shares = [decile / _BINS - _EPSILON for decile in range(1, _BINS)]
    edges = [
        min(values[index] for values in samples if (index := bisect_left(values, target, key=share)) < len(values))
        for target in (target_shares if samples else ())
    ]
    return np.unique(np.array(edges, np.float64))


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the number of values in each bin, then the number of non-finite values: int64[edges + 2].

    Args:
      values: values in ascending order, NaN last.
      edges: see `common_edges`.
    """
    finite = finite_part(values)
    counts = np.diff(np.searchsorted(finite, edges, "right"), prepend=0, append=len(finite))
    return np.append(counts, len(values) - len(finite))


def _relative_entropy(share: np.ndarray, mean_share: np.ndarray) -> np.ndarray:
    """Returns the Kullback-Leibler divergence along the last axis, in bits; a share of 0 adds 0."""
    ratio = np.divide(share, mean_share, out=np.ones_like(share), where=share > 0)
    return (share * np.log2(ratio)).sum(axis=-1)

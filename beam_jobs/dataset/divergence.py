"""How far the distributions of two samples of numbers lie apart.

Jensen-Shannon is the divergence (not its square root, the distance) with logarithms of base 2, 0-1. Source: J. Lin,
"Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information Theory 37 (1991).
"""

from __future__ import annotations

import numpy as np

_BINS = 10
_EPSILON = 1e-9


def jensen_shannon(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence of shares along the last axis, base 2."""
    middle = (one + other) / 2
    return np.clip((_entropy_terms(one, middle) + _entropy_terms(other, middle)) / 2, 0, 1)


def of_samples(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the Jensen-Shannon divergence of two samples, over deciles of both together.

    Args:
      one: float64[values], finite, one at least.
      other: likewise.
    """
    edges = common_edges(one, other)
    return float(jensen_shannon(shares(histogram(one, edges)), shares(histogram(other, edges))))


def shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts as shares that sum to 1."""
    return counts / counts.sum()


def common_edges(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the inner edges of bins for two samples: deciles of both together, each sample weighing the same.

    Equal shares and not equal widths, for sizes in bytes and pixels have long tails: one huge file would put all others
    into one bin. Of both together, for values that only one of them has would otherwise fall into one bin at the end.
    A value that every tenth image has, such as the one side of all images, gets an edge of its own.

    Args:
      one: finite values.
      other: finite values.

    Returns:
      float64[edges], ascending, 9 at most; a bin reaches up to its edge and includes it.
    """
    values = np.concatenate([one, other])
    if not len(values):
        return values
    weights = np.concatenate([np.full(len(part), 0.5 / max(1, len(part))) for part in (one, other)])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, reached[-1:] * np.arange(1, _BINS) / _BINS - _EPSILON)
    return np.unique(values[order][places])


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the count of each bin, and last that of the values that are not finite: int64[edges + 2]."""
    finite = values[np.isfinite(values)]
    counts = np.bincount(np.searchsorted(edges, finite), minlength=len(edges) + 1)
    return np.append(counts, len(values) - len(finite))


def _entropy_terms(one: np.ndarray, middle: np.ndarray) -> np.ndarray:
    ratio = np.divide(one, middle, out=np.ones_like(one), where=one > 0)
    return (one * np.log2(ratio)).sum(axis=-1)

"""How far two distributions lie apart, from counts: exact, and what sampling alone would give. Pure functions.

L-infinity, for categories: the largest difference of the shares of one category, 0-1.

Jensen-Shannon, for numbers: the divergence (not its square root, the distance) with logarithms of base 2, 0-1.
Source: J. Lin, "Divergence Measures Based on the Shannon Entropy", IEEE Transactions on Information Theory 37 (1991).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

L_INFINITY = "l_infinity"
JENSEN_SHANNON = "jensen_shannon"
BINS = 10

_DRAWS = 199  # the largest of them is exceeded by chance once in 200 times
_DRAWN = 1000  # categories; the largest difference that sampling gives is one of a frequent category
_EPSILON = 1e-9


def l_infinity(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the L-infinity distance of shares along the last axis."""
    return np.abs(one - other).max(axis=-1)


def jensen_shannon(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence of shares along the last axis, base 2."""
    middle = (one + other) / 2
    return np.clip((_entropy_terms(one, middle) + _entropy_terms(other, middle)) / 2, 0, 1)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    L_INFINITY: l_infinity,
    JENSEN_SHANNON: jensen_shannon,
}


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
    places = np.searchsorted(reached, reached[-1:] * np.arange(1, BINS) / BINS - _EPSILON)
    return np.unique(values[order][places])


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the count of each bin, and last that of the values that are not finite: int64[edges + 2]."""
    finite = values[np.isfinite(values)]
    counts = np.bincount(np.searchsorted(edges, finite), minlength=len(edges) + 1)
    return np.append(counts, len(values) - len(finite))


def sampling(measure: str, one: np.ndarray, other: np.ndarray, sizes: tuple[float, float]) -> float:
    """Returns what a measure gives when both samples come from one population: the largest value of 199 draws.

    The population is that of both samples together. Draws are of a fixed seed, so equal counts give equal answers.

    Args:
      measure: one of `MEASURES`.
      one: counts.
      other: counts of the same categories or bins.
      sizes: independent images behind each.
    """
    population = shares(one + other)
    frequent = np.argsort(-population, kind="stable")[:_DRAWN]
    drawn = np.append(population[frequent], max(0.0, 1 - population[frequent].sum()))
    drawn = drawn / drawn.sum()
    random = np.random.default_rng(0)
    first, second = (random.multinomial(max(1, round(size)), drawn, _DRAWS) / max(1, round(size)) for size in sizes)
    return float(MEASURES[measure](first[:, :-1], second[:, :-1]).max())


def effective_size(owners: np.ndarray, units: np.ndarray) -> float:
    """Returns how many independent images the values are worth: (sum of weights)^2 / sum of squared weights.

    Frames of one video, or copies of one image, say little more than one of them. Source: L. Kish, "Survey Sampling"
    (1965).

    Args:
      owners: int64[values], the image of each value.
      units: int64[images], the same for images that belong together.
    """
    weights = np.bincount(units[owners])
    return float(weights.sum()) ** 2 / float((weights.astype(np.float64) ** 2).sum())


def _entropy_terms(one: np.ndarray, middle: np.ndarray) -> np.ndarray:
    ratio = np.divide(one, middle, out=np.ones_like(one), where=one > 0)
    return (one * np.log2(ratio)).sum(axis=-1)

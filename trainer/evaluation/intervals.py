"""Confidence intervals of the figures of one evaluation, and the spread of the figures of several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WILSON, NORMAL = "wilson", "normal"
Z_95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Sums over one value per image, from which the mean and its error follow; tallies of parts can be added.

    Attributes:
      count: number of images whose weight is above 0.
      weight: sum of the weights; `count` where all are 1.
      weight_squares: sum of the squared weights.
      total: weighted sum of the values.
      squares: weighted sum of the squared differences from the mean of the part.
      binary: whether every value is 0 or 1, so that the mean is a share of images.
    """

    count: int = 0
    weight: float = 0.0
    weight_squares: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    binary: bool = True

    @classmethod
    def from_values(cls, values: np.ndarray, weights: np.ndarray | None = None) -> Tally:
        """Returns the tally of float[n] values with float[n] weights, which are 1 by default."""
        values = np.asarray(values, np.float64)
        weights = np.ones_like(values) if weights is None else np.asarray(weights, np.float64)
        values, weights = values[weights > 0], weights[weights > 0]
        if not values.size:
            return cls()
        weight, total = math.fsum(weights), math.fsum(weights * values)
        mean = values.mean() if (weights == 1).all() else total / weight
        return cls(
            count=values.size,
            weight=weight,
            weight_squares=math.fsum(weights**2),
            total=total,
            squares=math.fsum(weights * (values - mean) ** 2),
            binary=bool(np.isin(values, (0, 1)).all()),
        )

    def __add__(self, other: Tally) -> Tally:
        """Returns the joint tally, as Chan, Golub and LeVeque do (1983, The American Statistician 37(3), 242-247)."""
        if not self.count or not other.count:
            return self if self.count else other
        weight = self.weight + other.weight
        difference = other.total / other.weight - self.total / self.weight
        return Tally(
            count=self.count + other.count,
            weight=weight,
            weight_squares=self.weight_squares + other.weight_squares,
            total=self.total + other.total,
            squares=self.squares + other.squares + difference**2 * self.weight * other.weight / weight,
            binary=self.binary and other.binary,
        )

    @property
    def effective(self) -> float:
        """Effective sample size (Kish 1965, Survey Sampling); `count` where all weights are equal."""
        return self.weight**2 / self.weight_squares


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over images with its confidence interval.

    Attributes:
      value: mean; NaN without images.
      error: standard error of the mean.
      low: lower end of the interval.
      high: upper end of the interval.
      count: number of images.
      method: method of the interval, `wilson` for shares of images, `normal` for other means.
    """

    value: float
    error: float
    low: float
    high: float
    count: int
    method: str


def figure(tally: Tally, confidence: float = 0.95) -> Figure:
    """Returns the figure of a tally.

    The interval of a share is Wilson's score interval, whose coverage is correct near 0 and 1 and for few images, where
    that of the normal interval is not (Wilson 1927, JASA 22, 209-212; Brown, Cai and DasGupta 2001, Statistical Science
    16, 101-133). The interval of another mean is mean +- z x standard error, which requires some tens of images. For
    weighted images, both use the effective sample size.

    Args:
      tally: tally of all images.
      confidence: confidence level of the interval, above 0 and below 1.
    """
    count = tally.count
    if not count:
        return Figure(value=math.nan, error=math.nan, low=math.nan, high=math.nan, count=0, method=NORMAL)
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    mean, effective = tally.total / tally.weight, tally.effective
    if tally.binary:
        low, high = wilson(mean, effective, z)
        error = math.sqrt(mean * (1 - mean) / effective)
        return Figure(value=mean, error=error, low=low, high=high, count=count, method=WILSON)
    error = math.sqrt(tally.squares / (effective - 1) / tally.weight) if effective > 1 else math.nan
    return Figure(value=mean, error=error, low=mean - z * error, high=mean + z * error, count=count, method=NORMAL)


def wilson(share: float, count: float, z: float = Z_95) -> tuple[float, float]:
    """Returns the lower and upper end of Wilson's score interval.

    Unlike the jackknife of TFMA, its width is not 0 at a share of 1: 26 correct predictions of 26 do not prove that the
    27th is correct. The interval of `scipy.stats` takes only integer counts, no effective sample size.

    Args:
      share: share of the images, 0 to 1.
      count: number of images, or the effective sample size of weighted images; for 0, the interval is 0 to 1.
      z: quantile of the normal distribution, by default that for a confidence of 0.95.
    """
    if not count:
        return 0.0, 1.0
    weight = z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    # A share of 0 or 1 is an end of the interval itself; rounding must not move that end past it.
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variation of a figure over several evaluations.

    Attributes:
      mean: mean over the evaluations.
      deviation: sample standard deviation (n - 1); 0 for one evaluation.
      least: smallest value.
      most: largest value.
      count: number of evaluations.
    """

    mean: float
    deviation: float
    least: float
    most: float
    count: int

    def __str__(self) -> str:
        """Returns a text such as `0.9876 on average, 0.9851 to 0.9890 over the last 10 epochs, ...`."""
        if self.count == 1:
            return f"{self.mean:.4f} in 1 epoch"
        return (
            f"{self.mean:.4f} on average, {self.least:.4f} to {self.most:.4f} over the last {self.count} epochs; this "
            "is the variation of the training, not the uncertainty of the figure"
        )


def validation_spreads(history: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Returns the variation of each validation figure, whose name begins with `val_`, over the last ten epochs."""
    return {name: spread(values[-10:]) for name, values in history.items() if name.startswith("val_") and values}


def spread(values: Iterable[float]) -> Spread:
    """Returns the variation of a figure over evaluations, such as those of the last ten epochs.

    The evaluations have the same images and related weights, so the result is no confidence interval; `figure` returns
    one.

    Args:
      values: value of each evaluation, at least one; if a value is not finite, all statistics are NaN.
    """
    sample = [float(value) for value in values]
    count = len(sample)
    if not all(map(math.isfinite, sample)):
        return Spread(mean=math.nan, deviation=math.nan, least=math.nan, most=math.nan, count=count)
    deviation = statistics.stdev(sample) if count > 1 else 0.0
    return Spread(mean=statistics.fmean(sample), deviation=deviation, least=min(sample), most=max(sample), count=count)

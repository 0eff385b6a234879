"""Figures with an interval: what one evaluation says about all images, and several about the training."""

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
    """What is left of one value an image, enough for their mean and its error; tallies of parts add up.

    Attributes:
      count: images that weigh more than 0.
      weight: sum of their weights; the number of images where none has a weight.
      weight_squares: sum of the squares of their weights.
      total: sum of their values, each times its weight.
      squares: sum of the squared differences from the mean of the part, each times its weight.
      binary: whether every value is 0 or 1, so that their mean is a share of images.
    """

    count: int = 0
    weight: float = 0.0
    weight_squares: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    binary: bool = True

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None = None) -> Tally:
        """Returns the tally of float[n] values with float[n] weights, which are 1 by default."""
        exact = np.asarray(values, np.float64)
        heavy = np.ones_like(exact) if weights is None else np.asarray(weights, np.float64)
        exact, heavy = exact[heavy > 0], heavy[heavy > 0]
        if not exact.size:
            return cls()
        weight, total = math.fsum(heavy), math.fsum(heavy * exact)
        mean = exact.mean() if (heavy == 1).all() else total / weight
        return cls(
            count=exact.size,
            weight=weight,
            weight_squares=math.fsum(heavy**2),
            total=total,
            squares=math.fsum(heavy * (exact - mean) ** 2),
            binary=bool(np.isin(exact, (0, 1)).all()),
        )

    def __add__(self, other: Tally) -> Tally:
        """Adds two parts, as Chan, Golub and LeVeque do (1983, The American Statistician 37(3), 242-247)."""
        if not self.count or not other.count:
            return self if self.count else other
        weight = self.weight + other.weight
        apart = other.total / other.weight - self.total / self.weight
        return Tally(
            count=self.count + other.count,
            weight=weight,
            weight_squares=self.weight_squares + other.weight_squares,
            total=self.total + other.total,
            squares=self.squares + other.squares + apart**2 * self.weight * other.weight / weight,
            binary=self.binary and other.binary,
        )

    @property
    def effective(self) -> float:
        """Images of equal weight that would say as much (Kish 1965, Survey Sampling); `count` if all weigh alike."""
        return self.weight**2 / self.weight_squares


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over images and how far it can be trusted.

    Attributes:
      value: the mean; NaN without images.
      error: its standard error.
      low: lower end of the interval.
      high: upper end.
      count: images.
      method: `wilson` for shares of images, `normal` for other means.
    """

    value: float
    error: float
    low: float
    high: float
    count: int
    method: str


def figure(tally: Tally, confidence: float = 0.95) -> Figure:
    """Returns the figure of a tally.

    The interval of a share is Wilson's score interval, which holds its confidence near 0 and 1 and for few images,
    where the normal one does not (Wilson 1927, JASA 22, 209-212; Brown, Cai and DasGupta 2001, Statistical Science 16,
    101-133). That of another mean is mean +- z x standard error, which wants some tens of images. Where images weigh
    differently, both take the effective number of images.

    Args:
      tally: of all images.
      confidence: how often such an interval holds the figure of all images there could be, above 0 and below 1.
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
    """Returns both ends of Wilson's score interval.

    It stays open at a share of 1, where the jackknife of TFMA closes: 26 right answers out of 26 do not prove that the
    27th is right. Nor can `scipy.stats` serve, whose interval takes whole counts and no effective number.

    Args:
      share: of `count` images, 0 to 1.
      count: number of images, of weighted ones the effective number; of none, the interval is 0 to 1.
      z: quantile of the normal distribution, by default that of a confidence of 0.95.
    """
    if not count:
        return 0.0, 1.0
    weight = z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    # Rounding must not push the ends of 0 and of all beyond them.
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much a figure varies from one evaluation to the next.

    Attributes:
      mean: over the evaluations.
      deviation: standard deviation of one evaluation (n - 1); 0 of a single one.
      least: the smallest.
      most: the greatest.
      count: evaluations.
    """

    mean: float
    deviation: float
    least: float
    most: float
    count: int

    def __str__(self) -> str:
        """Returns it in words: `0.9876 on average, 0.9851 to 0.9890 over the last 10 epochs, ...`."""
        if self.count == 1:
            return f"{self.mean:.4f} in 1 epoch"
        return (
            f"{self.mean:.4f} on average, {self.least:.4f} to {self.most:.4f} over the last {self.count} epochs, which "
            "says how the training varied and not how sure the figure is"
        )


def spreads_of(history: Mapping[str, Sequence[float]], last: int = 10) -> dict[str, Spread]:
    """Returns mean and spread of each figure of validation over the last so many epochs.

    Args:
      history: figure -> its value in every epoch; those of validation begin with `val_`.
      last: epochs.
    """
    return {name: spread(values[-last:]) for name, values in history.items() if name.startswith("val_") and values}


def spread(values: Iterable[float]) -> Spread:
    """Returns mean and spread of repeated evaluations, such as those of the last ten epochs.

    They are of the same images and of related weights, so this is no interval for images never seen: `figure` is.

    Args:
      values: one an evaluation, at least one; of one that is no number, mean and spread are none either.
    """
    given = [float(value) for value in values]
    if not all(map(math.isfinite, given)):
        return Spread(mean=math.nan, deviation=math.nan, least=math.nan, most=math.nan, count=len(given))
    deviation = statistics.stdev(given) if len(given) > 1 else 0.0
    return Spread(
        mean=statistics.fmean(given), deviation=deviation, least=min(given), most=max(given), count=len(given)
    )

"""What an evaluation says, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

_Z_95 = 1.959964  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Share of right answers over some images.

    Attributes:
      value: 0-1.
      low: lower end of the 95 % interval.
      high: upper end.
      images: number of images.
    """

    value: float
    low: float
    high: float
    images: int

    @classmethod
    def of(cls, share: float, images: int, effective: float | None = None) -> Accuracy:
        """Returns a share of right answers with its 95 % interval; `effective` images count in it, all by default."""
        low, high = wilson_interval(share, images if effective is None else effective)
        return cls(value=share, low=low, high=high, images=images)


class Confusion(TypedDict):
    """Which class the images of each class were taken for.

    Attributes:
      labels: class names, of rows and columns.
      counts: images of the class of the row whose most likely class is that of the column.
    """

    labels: list[str]
    counts: list[list[int]]


class Bin(TypedDict):
    """Images whose most likely class was given about the same probability.

    Attributes:
      low: least probability, 0-1.
      high: greatest.
      mean_predicted: mean probability that was given; 0 without images.
      share_right: share of right answers among them; of a calibrated model the same number. 0 without images.
      images: number of images.
    """

    low: float
    high: float
    mean_predicted: float
    share_right: float
    images: int


class Calibration(TypedDict):
    """Whether the probabilities of the most likely class are what they say.

    Attributes:
      bins: of equal width, all of them.
      ece: expected calibration error: distance of `mean_predicted` and `share_right`, weighted by images, 0-1.
    """

    bins: list[Bin]
    ece: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured on the held-back split.

    Attributes:
      overall: over all its images.
      classes: class name -> accuracy over its images, which is the recall, in order of the names.
      precision: class name -> accuracy over the images taken for it, in order of the names.
      top_k: share of images whose class is among the five most likely; None of five classes and fewer.
      slices: user column -> value -> accuracy over the images that hold it.
      confusion: None when it was not measured.
      calibration: None when it was not measured.
      baseline: accuracy of the model blessed before on the same images; None when it was compared with none.
      refused: a sentence for each limit that the model missed; empty when it is blessed.
    """

    overall: Accuracy
    classes: Mapping[str, Accuracy]
    precision: Mapping[str, Accuracy] = field(default_factory=dict)
    top_k: Accuracy | None = None
    slices: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    confusion: Confusion | None = None
    calibration: Calibration | None = None
    baseline: Accuracy | None = None
    refused: tuple[str, ...] = ()


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """Returns the 95 % score interval of a share; source: E. B. Wilson (1927).

    It stays inside 0-1, and stays open at a share of 1 where the jackknife of TFMA closes: 26 right answers out of 26
    do not prove that the 27th is right.

    Args:
      share: observed share, 0-1.
      count: number of observations, of weighted ones the effective number.
    """
    if count == 0:
        return 0.0, 1.0
    spread = _Z_95**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)

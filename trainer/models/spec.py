"""What a model must know about the data it must fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a model must fit.

    Examples:
      >>> from trainer import ModelSpec
      >>> ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67)).weights
      ''

    Attributes:
      side_px: height and width of the images.
      classes: number of classes.
      mean_rgb: mean of each channel of the training split, 0-255.
      std_rgb: standard deviation of each channel of the training split, 0-255.
      multi_label: an image may have several classes or none, so each gets a probability of its own.
      weights: what to begin with: a file (`.weights.h5`, `.keras` or `.h5`, see `transfer.load_weights`), `imagenet`
        for a model of `keras.applications`, or empty for random weights.
    """

    side_px: int
    classes: int
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]
    multi_label: bool = False
    weights: str = ""

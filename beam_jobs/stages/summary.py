"""Summary of images: sums and counts for `dataset.json`. A summary does not grow with the number of images.

The worker that writes a shard measures its images; publishing adds the summaries of the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import ChannelStatistics
from beam_jobs.types import EXTRA_TYPES

_OPTIONAL_PARTS = ("objects", "mask", "weight")


@dataclass(kw_only=True)
class Summary:
    """Counts and sums of some images.

    Attributes:
      parts: optional parts of records that occur: `objects`, `mask`, `weight`.
      extra: user column -> index in `EXTRA_TYPES` of the type of its values.
      classes: class -> number of images; an image of several classes counts in each.
      normalised: joined reasons of a conversion -> number of images.
      pixels: number of pixels.
      sums: sum of each channel over all pixels.
      squares: sum of the squares of each channel over all pixels.
    """

    parts: set[str] = field(default_factory=set)
    extra: dict[str, int] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    normalised: Counter[str] = field(default_factory=Counter)
    pixels: float = 0.0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(3))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(3))

    @classmethod
    def measure(cls, images: pa.Table, label_kind: str) -> Summary:
        """Returns the summary of the images of `PLANNED` or `IMAGES` rows."""
        summary = cls(normalised=Counter(filter(None, images["normalised"].to_pylist())))
        summary._add_moments(images)
        for text in pc.unique(images["extra"]).to_pylist():
            for name, value in schemas.parse_cell(text).items():
                values = value if isinstance(value, list) else [value]
                summary._add_types(name, *(EXTRA_TYPES.index(type(parsed)) for parsed in values))
        if label_kind == "single":
            summary.classes.update(images["label"].to_pylist())
        # Labels are counted for each image; to find the parts that occur, equal texts are parsed once.
        texts = images["annotations"] if label_kind == "multi" else pc.unique(images["annotations"])
        for parsed in map(schemas.parse_annotations, texts.to_pylist()):
            if parsed:
                summary.parts |= {name for name in _OPTIONAL_PARTS if getattr(parsed, name) is not None}
                if label_kind == "multi":
                    summary.classes.update(parsed.labels or ())
        return summary

    def add(self, other: Summary) -> None:
        """Adds the images of another summary."""
        self.parts |= other.parts
        for name, index in other.extra.items():
            self._add_types(name, index)
        self.classes += other.classes
        self.normalised += other.normalised
        self.pixels += other.pixels
        self.sums = self.sums + other.sums
        self.squares = self.squares + other.squares

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            **vars(self),
            "parts": sorted(self.parts),
            "classes": dict(self.classes),
            "normalised": dict(self.normalised),
            "sums": self.sums.tolist(),
            "squares": self.squares.tolist(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Returns the summary with the values of `to_json`.

        Raises:
          KeyError, TypeError: a field is missing, unknown or of the wrong shape.
        """
        counters = {name: Counter(values[name]) for name in ("classes", "normalised")}
        sums = {name: np.array(values[name]) for name in ("sums", "squares")}
        return cls(**{**values, **counters, **sums, "parts": set(values["parts"])})

    @property
    def extra_types(self) -> dict[str, type]:
        """User column -> type of its values."""
        return {name: EXTRA_TYPES[index] for name, index in self.extra.items()}

    def channels(self, split: str) -> ChannelStatistics:
        """Returns the statistics of all pixels, from the mean and variance of each image, weighted by pixels.

        With n_i pixels, mean m_i and variance v_i: m = sum(n_i m_i) / n and v = sum(n_i (v_i + m_i^2)) / n - m^2.
        """
        mean = self.sums / self.pixels
        variance = np.maximum(self.squares / self.pixels - mean**2, 0)
        return ChannelStatistics(
            split=split,
            mean_rgb=tuple(float(value) for value in mean),
            std_rgb=tuple(float(value) for value in np.sqrt(variance)),
        )

    def _add_types(self, name: str, *indices: int) -> None:
        self.extra[name] = max([self.extra.get(name, 0), *indices])  # the most general type

    def _add_moments(self, images: pa.Table) -> None:
        pixels = (images["height"].to_numpy() * images["width"].to_numpy()).astype(np.float64)[:, None]
        mean = schemas.triples(images["mean_rgb"]).astype(np.float64)
        second_moment = schemas.triples(images["var_rgb"]).astype(np.float64) + mean**2
        self.pixels += float(pixels.sum())
        self.sums = self.sums + (pixels * mean).sum(0)
        self.squares = self.squares + (pixels * second_moment).sum(0)

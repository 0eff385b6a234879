"""The limits of the gate, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_jobs.common import validate
from beam_jobs.common.strings import unknown
from beam_jobs.dataset.record import EXTRA_PREFIX
from beam_jobs.errors import OptionError
from components.dataset_gate.names import FACTS, full_name, is_feature

MODES = ("stop", "report")
KINDS = ("drift", "skew")
_COUNTS = (
    *("max_anomalies", "max_leaks", "max_group_leaks", "max_near_leaks", "near_distance", "min_images_per_class"),
    "min_side_px",
)
_FLAGS = ("near_leaks", "allow_missing_classes", "require_all_classes")
_SHARES = (
    *("max_reject_ratio", "max_low_resolution_ratio", "max_blank_ratio"),
    *(f"max_{kind}_{measure}" for kind in KINDS for measure in ("l_infinity", "jensen_shannon")),
)


@dataclass(frozen=True, kw_only=True)
class GateLimits:
    """What a dataset may be before the pipeline stops.

    The limits of drift and skew are what a measure may exceed of what sampling alone would give; see
    `comparisons.compare`. Both measures end at 1, so a limit of 1 never stops.

    Attributes:
      mode: `stop` ends the pipeline when a limit is crossed, `report` writes and logs what was found and goes on.
      max_anomalies: features that ExampleValidator may find wrong in a split.
      max_reject_ratio: rejected share of the images that were found, 0-1. 1 is off: the ingest has a limit of its own.
      max_leaks: images whose exact copy is in another split.
      max_group_leaks: groups, and sets of near duplicates that the ingest grouped, that lie in several splits.
      near_leaks: whether to search for near duplicates across splits; off, because the search costs.
      max_near_leaks: images of later splits that look like one of an earlier split.
      near_distance: bits of 64 in which the perceptual hashes of near duplicates may differ, 0-8.
      allow_missing_classes: whether a class may be absent from the first split.
      require_all_classes: whether the other splits must hold every class of the first; off, because small splits of
        rare classes do not.
      min_images_per_class: images of every class in the first split.
      max_imbalance: images of the largest class for one of the smallest, in the first split; 0 is off.
      min_side_px: short side in pixels, of the source and of the stored image, under which an image counts as of low
        resolution; 0 is off.
      max_low_resolution_ratio: share of such images in a split, 0-1.
      blank_variance: variance of the levels 0-255 under which an image counts as blank if no channel has more; 0 is
        off. 0.25 is a standard deviation of half a level, less than a photograph of clear sky has.
      max_blank_ratio: share of blank images in a split, 0-1.
      max_drift_l_infinity: of categories, between a split and the same split of the dataset before, 0-1.
      max_drift_jensen_shannon: of numbers, between the same.
      drift_limits: feature -> limit that takes the place of these two.
      max_skew_l_infinity: of categories, between the first split and another one, 0-1.
      max_skew_jensen_shannon: of numbers, between the same.
      skew_limits: feature -> limit that takes the place of these two.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    mode: str = "stop"
    max_anomalies: int = 0
    max_reject_ratio: float = 1.0
    max_leaks: int = 0
    max_group_leaks: int = 0
    near_leaks: bool = False
    max_near_leaks: int = 0
    near_distance: int = 3
    allow_missing_classes: bool = False
    require_all_classes: bool = False
    min_images_per_class: int = 1
    max_imbalance: float = 0.0
    min_side_px: int = 0
    max_low_resolution_ratio: float = 0.0
    blank_variance: float = 0.25
    max_blank_ratio: float = 0.01
    max_drift_l_infinity: float = 1.0
    max_drift_jensen_shannon: float = 1.0
    drift_limits: Mapping[str, float] = field(default_factory=dict)
    max_skew_l_infinity: float = 0.3
    max_skew_jensen_shannon: float = 0.3
    skew_limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate.choice("mode", self.mode, MODES)
        for name in _COUNTS:
            validate.whole(name, getattr(self, name), 0)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name in _SHARES:
            validate.share(name, getattr(self, name))
        validate.at_least("blank_variance", self.blank_variance, 0)
        validate.at_least("max_imbalance", self.max_imbalance, 0)
        if 0 < self.max_imbalance < 1:
            raise OptionError(f"max_imbalance is {self.max_imbalance}; it must be 0 for off, or at least 1")
        if self.near_distance > 8:
            raise OptionError(
                f"near_distance is {self.near_distance}; give 0 to 8: over 8 of 64 bits unlike images meet"
            )
        for kind in KINDS:
            _check_features(f"{kind}_limits", getattr(self, f"{kind}_limits"))

    def limit_of(self, kind: str, measure: str, feature: str) -> float:
        """Returns the limit of one feature.

        Args:
          kind: `drift` or `skew`.
          measure: `l_infinity` or `jensen_shannon`.
          feature: its whole name, such as `image/brightness`.
        """
        own = {full_name(name): limit for name, limit in getattr(self, f"{kind}_limits").items()}
        return own.get(feature, getattr(self, f"max_{kind}_{measure}"))

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GateLimits:
        """Builds the limits from `to_json` output.

        Raises:
          OptionError: a value is out of range.
        """
        return cls(**values)


def _check_features(name: str, limits: object) -> None:
    if not isinstance(limits, Mapping):
        raise OptionError(f"{name} is {limits!r}; it must be a mapping such as {{brightness: 0.2}}")
    for feature, limit in limits.items():
        if not is_feature(feature):
            raise OptionError(unknown("feature", feature, [*FACTS, f"{EXTRA_PREFIX}NAME"], f"{name}."))
        validate.share(f"{name}.{feature}", limit)

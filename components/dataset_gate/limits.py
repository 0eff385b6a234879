"""The limits of the gate and their validation, the names of features, and the results of the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Le
from pydantic.dataclasses import dataclass as checked_dataclass

from beam_jobs.common.settings import STRICT, Count, NotNegative, OneOf, Options, Share
from beam_jobs.common.strings import unknown
from beam_jobs.dataset.record import EXTRA_PREFIX
from beam_jobs.errors import OptionError

FINDINGS_KEY = "findings"  # property of a `DatasetVerdict`: the number of findings
IMAGE_PREFIX = "image/"
CLASS = "image/class/text"  # full name of the feature `class`
MISSING = "(missing)"  # category of images without a value of a feature
_NUMERIC_FACTS = ("short_side", "aspect_ratio", "bytes", "brightness", "mean_red", "mean_green", "mean_blue")
FACTS = ("class", "format", *_NUMERIC_FACTS)  # names of features in the settings, besides user columns


def is_feature(name: object) -> bool:
    """Returns whether a name in the settings is the name of a fact or may be that of a user column."""
    if not isinstance(name, str):
        return False
    return name in {*FACTS, *map(full_name, FACTS)} or (name.startswith(EXTRA_PREFIX) and name != EXTRA_PREFIX)


def full_name(name: str) -> str:
    """Returns the full name of a feature, such as `image/brightness`, for its name in the settings, `brightness`."""
    if name == "class":
        return CLASS
    return IMAGE_PREFIX + name if name in FACTS else name


def short_name(name: str) -> str:
    """Returns the name of a feature in the settings, such as `brightness` for `image/brightness`."""
    return "class" if name == CLASS else name.removeprefix(IMAGE_PREFIX)


MODES = ("stop", "report")
KINDS = ("drift", "skew")


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class GateLimits(Options):
    """Limits of a dataset, beyond which the pipeline stops.

    A limit of drift or skew is the amount by which a measure may exceed the value that random sampling can cause; see
    `drift_and_skew.compare`. The maximum of both measures is 1, so a limit of 1 turns the check off.

    Attributes:
      mode: `stop` ends the pipeline when a limit is crossed; `report` writes and logs the findings and continues.
      max_anomalies: maximum number of anomalous features of a split, as found by ExampleValidator.
      max_reject_ratio: maximum rejected share of the images of the source, 0-1. 1 is off: the ingest has its own limit.
      max_leaks: maximum number of images with an exact copy in another split.
      max_group_leaks: maximum number of groups, and of grouped sets of near duplicates, with images in several splits.
      near_leaks: whether to search for near duplicates in different splits; off by default, because the search is slow.
      max_near_leaks: maximum number of images that are near duplicates of an image in an earlier split.
      near_distance: maximum number of different bits, of 64, in the perceptual hashes of near duplicates, 0-8.
      allow_missing_classes: whether a class may have no image, or no image in the first split.
      require_all_classes: whether the other splits need every class of the first; off by default, because a small split
        may have no image of a rare class.
      min_images_per_class: minimum number of images of each class in the first split.
      max_imbalance: maximum ratio of the largest to the smallest class in the first split; 0 is off.
      min_side_px: minimum short side in pixels, of the source and of the stored image; smaller images have a low
        resolution; 0 is off.
      max_low_resolution_ratio: maximum share of images with a low resolution in a split, 0-1.
      blank_variance: images are blank if the variance of each channel, with levels 0-255, is below this value; 0 is
        off. 0.25 is a standard deviation of half a level, less than that of a photograph of clear sky.
      max_blank_ratio: maximum share of blank images in a split, 0-1.
      max_drift_l_infinity: limit of the drift of categories: from the same split of the previous dataset, 0-1.
      max_drift_jensen_shannon: limit of the drift of numbers, 0-1.
      drift_limits: feature -> limit of its drift, instead of the two limits above.
      max_skew_l_infinity: limit of the skew of categories: between the first split and another split, 0-1.
      max_skew_jensen_shannon: limit of the skew of numbers, 0-1.
      skew_limits: feature -> limit of its skew, instead of the two limits above.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    mode: Annotated[str, OneOf(MODES)] = "stop"
    max_anomalies: Count = 0
    max_reject_ratio: Share = 1.0
    max_leaks: Count = 0
    max_group_leaks: Count = 0
    near_leaks: bool = False
    max_near_leaks: Count = 0
    near_distance: Annotated[Count, Le(8)] = 3
    allow_missing_classes: bool = False
    require_all_classes: bool = False
    min_images_per_class: Count = 1
    max_imbalance: NotNegative = 0.0
    min_side_px: Count = 0
    max_low_resolution_ratio: Share = 0.0
    blank_variance: NotNegative = 0.25
    max_blank_ratio: Share = 0.01
    max_drift_l_infinity: Share = 1.0
    max_drift_jensen_shannon: Share = 1.0
    drift_limits: Mapping[str, Share] = field(default_factory=dict)
    max_skew_l_infinity: Share = 0.3
    max_skew_jensen_shannon: Share = 0.3
    skew_limits: Mapping[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if 0 < self.max_imbalance < 1:
            raise OptionError(f"max_imbalance is {self.max_imbalance}; it must be 0 for off, or at least 1")
        for kind in KINDS:
            _check_features(f"{kind}_limits", getattr(self, f"{kind}_limits"))

    def limit_of(self, kind: str, measure: str, feature: str) -> float:
        """Returns the limit of a feature.

        Args:
          kind: `drift` or `skew`.
          measure: `l_infinity` or `jensen_shannon`.
          feature: full name of the feature, such as `image/brightness`.
        """
        limits = {full_name(name): limit for name, limit in getattr(self, f"{kind}_limits").items()}
        return limits.get(feature, getattr(self, f"max_{kind}_{measure}"))


def _check_features(name: str, limits: Mapping[str, float]) -> None:
    for feature in limits:
        if not is_feature(feature):
            raise OptionError(unknown("feature", feature, [*FACTS, f"{EXTRA_PREFIX}NAME"], f"{name}."))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An exceeded limit.

    Attributes:
      check: name of the check.
      split: name of the split, or names of several splits.
      feature: name of the feature.
      value: observed value, as text.
      limit: allowed value, as text.
      remedy: actions that resolve the finding.
    """

    check: str
    split: str
    feature: str
    value: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        """Returns the finding as one sentence."""
        return f"{self.check}: {self.feature} in {self.split}: {self.value}; allowed: {self.limit}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A problem that a person should review, although it crosses no limit.

    Attributes:
      check: name of the check.
      value: description of the problem.
      remedy: actions that resolve the problem; empty if `value` names them.
    """

    check: str
    value: str
    remedy: str = ""

    def __str__(self) -> str:
        """Returns the remark as one sentence."""
        return f"{self.check}: {self.value}{'; ' * bool(self.remedy)}{self.remedy}"


PASSED, EXCEEDED, NOT_CHECKED = "passed", "exceeded", "not checked"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row of the table of all checks.

    Attributes:
      check: name of the check.
      measured: observed value, as text; of several splits or features, the value nearest to its limit.
      limit: allowed value, as text; `none` if the check is off.
      setting: setting of the limit, without `gate.`; empty if the limit is fixed.
      result: `passed`, `exceeded` or `not checked`.
    """

    check: str
    measured: str
    limit: str
    setting: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A measured difference between two distributions.

    Attributes:
      kind: `drift` from the previous dataset, or `skew` between splits.
      baseline: name of the baseline: `span 3`, `dataset 0123abcd`, or the first split.
      split: name of the compared split.
      feature: name of the feature, such as `image/brightness`.
      measure: `l_infinity` or `jensen_shannon`.
      value: value of the measure, 0-1.
      limit: sum of the limit in the settings and of `sampling`, at most 1; a higher value is a finding.
      sampling: value that random sampling can cause, 0-1.
    """

    kind: str
    baseline: str
    split: str
    feature: str
    measure: str
    value: float
    limit: float
    sampling: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the value exceeds the limit."""
        return self.value > self.limit


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of all checks.

    Attributes:
      checks: all checks, including those that were not possible or are off.
      findings: exceeded limits; empty if the dataset passes.
      remarks: problems that a person should review; they do not stop the pipeline.
      comparisons: measured drift and skew.
      notes: a line with the reason for each check that was not possible.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[Remark, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

"""The limits of the gate and their validation, the names of features, findings and remarks."""

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
CLASS = "image/class/text"
MISSING = "(missing)"  # category of images without a value
_NUMBERS = ("short_side", "aspect_ratio", "bytes", "brightness", "mean_red", "mean_green", "mean_blue")
FACTS = ("class", "format", *_NUMBERS)  # names in settings


def is_feature(name: object) -> bool:
    """Returns whether a name in the settings may be that of a feature."""
    if not isinstance(name, str):
        return False
    return name in {*FACTS, *map(full_name, FACTS)} or (name.startswith(EXTRA_PREFIX) and name != EXTRA_PREFIX)


def full_name(name: str) -> str:
    """Returns the name of a feature for its name in the settings: `image/brightness` for `brightness`."""
    if name == "class":
        return CLASS
    return IMAGE_PREFIX + name if name in FACTS else name


def short_name(name: str) -> str:
    """Returns the name in the settings of a feature."""
    return "class" if name == CLASS else name.removeprefix(IMAGE_PREFIX)


MODES = ("stop", "report")
KINDS = ("drift", "skew")


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class GateLimits(Options):
    """What a dataset may be before the pipeline stops.

    The limits of drift and skew are what a measure may exceed of what sampling alone would give; see
    `drift_and_skew.compare`. Both measures end at 1, so a limit of 1 never stops.

    Attributes:
      mode: `stop` ends the pipeline when a limit is crossed, `report` writes and logs what was found and goes on.
      max_anomalies: features that ExampleValidator may find wrong in a split.
      max_reject_ratio: rejected share of the images that were found, 0-1. 1 is off: the ingest has a limit of its own.
      max_leaks: images whose exact copy is in another split.
      max_group_leaks: groups, and sets of near duplicates that the ingest grouped, that lie in several splits.
      near_leaks: whether to search for near duplicates across splits; off, because the search costs.
      max_near_leaks: images of later splits that look like one of an earlier split.
      near_distance: bits of 64 in which the perceptual hashes of near duplicates may differ, 0-8.
      allow_missing_classes: whether a class may have no image, or none in the first split.
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
        """Returns the limit of one feature.

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
      split: name of the split, or of several.
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
    """What a person should look at, although no limit forbids it.

    Attributes:
      check: name of the check.
      value: what was found, as text.
      remedy: actions that resolve it; empty if `value` names them.
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
      measured: observed value, as text; of several splits or features, the one nearest to its limit.
      limit: allowed value, as text; `none` where the setting is off.
      setting: setting of the limit, below `gate`; empty where none changes it.
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
      limit: sum of the limit of the settings and `sampling`, at most 1; a higher value is a finding.
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
      checks: all checks, also those that were not made.
      findings: exceeded limits; empty if the dataset passes.
      remarks: what a person should look at; they stop nothing.
      comparisons: measured drift and skew.
      notes: a line with the reason for each check that was not possible.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[Remark, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

from __future__ import annotations

import pytest

from beam_jobs.errors import OptionError
from components.dataset_gate.limits import GateLimits

COUNTS = (
    *("max_anomalies", "max_leaks", "max_group_leaks", "max_near_leaks", "near_distance", "min_images_per_class"),
    "min_side_px",
)
FLAGS = ("near_leaks", "allow_missing_classes", "require_all_classes")
SHARES = (
    *("max_reject_ratio", "max_low_resolution_ratio", "max_blank_ratio", "max_drift_l_infinity"),
    *("max_drift_jensen_shannon", "max_skew_l_infinity", "max_skew_jensen_shannon"),
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({name: -1}, f"^{name} is -1; it must be a whole number") for name in COUNTS[:2]),
        *(({name: 1}, f"^{name} is 1; it must be true or false$") for name in FLAGS[:1]),
        *(({name: 1.1}, f"^{name} is 1.1; it must be between 0 and 1$") for name in SHARES[:2]),
        ({"mode": "warn"}, "^mode is 'warn'; it must be one of stop, report$"),
        ({"near_distance": 9}, "^near_distance is 9; it must be a whole number from 0 to 8$"),
        ({"max_imbalance": 0.5}, "^max_imbalance is 0.5; it must be 0 for off, or at least 1$"),
        ({"max_imbalance": -1}, "^max_imbalance is -1; it must be a number of at least 0$"),
        ({"blank_variance": -1}, "^blank_variance is -1; it must be a number of at least 0$"),
        ({"drift_limits": 0.3}, r"^drift_limits is 0.3; it must be a mapping of names to numbers, as {a: 1, b: 2}$"),
        ({"drift_limits": {"brightness": 2}}, "^drift_limits.brightness is 2; it must be between 0 and 1$"),
        ({"skew_limits": {"brigthness": 0.2}}, "feature 'skew_limits.brigthness'; did you mean brightness?"),
        ({"skew_limits": {"extra/": 0.2}}, "feature 'skew_limits.extra/'; .* known are class, .*extra/NAME$"),
    ],
)
def test_what_makes_no_sense_is_refused(values, message):
    with pytest.raises(OptionError, match=message):
        GateLimits.from_json(values)


@pytest.mark.parametrize("name", ["brightness", "image/brightness"])
def test_a_feature_may_have_a_limit_of_its_own(name):
    limits = GateLimits(max_drift_jensen_shannon=0.4, drift_limits={name: 0.2, "class": 0.1, "extra/age": 0.6})
    assert limits.limit_of("drift", "jensen_shannon", "image/brightness") == 0.2
    assert limits.limit_of("drift", "l_infinity", "image/class/text") == 0.1
    assert limits.limit_of("drift", "jensen_shannon", "extra/age") == 0.6
    assert limits.limit_of("drift", "jensen_shannon", "image/bytes") == 0.4
    assert limits.limit_of("skew", "jensen_shannon", "image/brightness") == 0.3


def test_zero_is_allowed():
    limits = GateLimits(**dict.fromkeys(COUNTS, 0), max_imbalance=0, blank_variance=0)
    assert {getattr(limits, name) for name in COUNTS} == {0}

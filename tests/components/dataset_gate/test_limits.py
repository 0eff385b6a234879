from __future__ import annotations

import json
import re

import pytest

from beam_jobs.errors import OptionError
from components.dataset_gate.limits import GateLimits

COUNTS = ("max_anomalies", "max_leaks", "min_images_per_class")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None])
def test_counts_below_zero_and_no_numbers_are_refused(name, value):
    with pytest.raises(OptionError, match=f"^{name} is {re.escape(repr(value))}; it must be a whole number"):
        GateLimits(**{name: value})


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_is_true_or_false(value):
    with pytest.raises(OptionError, match=f"^allow_missing_classes is {value!r}; it must be true or false$"):
        GateLimits(allow_missing_classes=value)


@pytest.mark.parametrize("name", COUNTS)
def test_zero_is_allowed(name):
    assert getattr(GateLimits(**{name: 0}), name) == 0


def test_limits_survive_json_with_every_field_changed():
    limits = GateLimits(max_anomalies=1, max_leaks=2, min_images_per_class=3, allow_missing_classes=True)
    values = json.loads(json.dumps(limits.to_json()))
    assert GateLimits.from_json(values) == limits
    defaults = GateLimits().to_json()
    assert values.keys() == defaults.keys()
    assert [name for name in defaults if values[name] == defaults[name]] == []


def test_json_is_checked_like_any_other_value():
    with pytest.raises(OptionError, match="^max_leaks is -2;"):
        GateLimits.from_json({"max_leaks": -2})

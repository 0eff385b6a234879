"""Every section of `pipeline.yaml` has a file of rows, and a row without an effect fails."""

from __future__ import annotations

import pytest

from tests.settings.table import COVERED, documented, grows, missing, row, uncovered


def test_every_section_is_covered():
    assert uncovered() == set()


def test_the_settings_are_those_of_the_page():
    listed = [key for covered in COVERED.values() for section in covered for key in documented(section)]
    assert len(listed) == len(set(listed)) > 150
    assert {"root", "ingest.limits.max_bytes", "flink.retries", "airflow.retries", "engine.runner"} <= set(listed)


def test_a_setting_without_a_row_is_named():
    rows = [row(key, 1, dict) for key in documented("gate") - {"gate.mode"}]
    assert missing(rows, "test_gate") == {"gate.mode"}
    assert missing([*rows, row("gate.mode", 1, dict), row("gate.new", 1, dict)], "test_gate") == {"gate.new"}


@pytest.mark.parametrize(
    "without_effect",
    [
        row("x", 2, lambda settings: 0),
        row("x", 2, lambda settings: settings.get("x"), (1, 2)),
        row("x", 2, lambda settings: settings["x"], grows, first=(3,)),
        row("x", 2, lambda settings: settings.get("x"), same=lambda settings: settings.get("x")),
    ],
)
def test_a_row_whose_setting_does_not_do_what_it_says_fails(without_effect):
    with pytest.raises(AssertionError):
        without_effect.check(dict)


def test_further_settings_are_those_of_both_sides():
    seen = []
    row("x", 2, len, (2, 2), given={"y": 3}, first=(1,)).check(lambda settings: seen.append(dict(settings)) or settings)
    assert seen == [{"y": 3, "x": 1}, {"y": 3, "x": 2}]

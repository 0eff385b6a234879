"""The page of the fault matrix has a row for each that the tests make, and says how long all of it may take."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.faults import page
from tests.faults.matrix import GROUPS, MINUTES, Row, Run
from tests.faults.page import not_tried, rows_of
from tests.faults.rows import ANYTHING, Made, every_test, made

TEXT = page.PAGE.read_text(encoding="utf-8")
RUN = Run(
    form="full",
    whole=True,
    passed=True,
    seconds=1300.4,
    rows=(Row("disk", "a `quota`", "one line", tries=2), Row("fuzz", "bytes", "refused", tries=1)),
    skipped={"tests/faults/test_disk.py::test_a_quota[1]": "no btrfs (yet)"},
)
_FIXED = 10  # characters of a name that must be known, or it would fit any row


def is_of(made: Made, row: tuple[str, str]) -> bool:
    """Returns whether a row is one that a test makes."""
    pattern = ".+".join(map(re.escape, made.fault.split(ANYTHING)))
    return made.group == row[0] and re.fullmatch(pattern, row[1]) is not None


def test_the_sources_tell_the_names_of_their_rows():
    found = made()
    assert len(found) > 100
    assert {one.group for one in found} == set(GROUPS)
    assert [one for one in found if len(one.fault.replace(ANYTHING, "")) < _FIXED] == []
    assert {one.test for one in found} <= every_test()
    names = {one.fault for one in found}
    # Of a parameter, of two, of a loop over constants, and of constants elsewhere.
    assert {"endless bodies", "a decoder that never ends"} <= names
    assert {f"{name} of `feedline run`, from the training on" for name in ("SIGKILL", "SIGTERM", "SIGINT")} <= names
    assert "SIGTERM of the process that decoders are forked from" in names
    assert "SIGTERM of a training" in names
    assert [name for name in names if ANYTHING in name] == []


def test_the_page_has_every_row_of_the_tests():
    on_page = rows_of(TEXT)
    absent = {test.partition("[")[0] for test in not_tried(TEXT)}
    missing = [one for one in made() if one.test not in absent and not any(is_of(one, row) for row in on_page)]
    assert missing == [], "run `make test-faults` and `python -m tests.faults.page`"


def test_the_page_has_no_row_that_no_test_makes():
    found = made()
    assert [row for row in rows_of(TEXT) if not any(is_of(one, row) for one in found)] == []
    assert {test.partition("[")[0] for test in not_tried(TEXT)} <= every_test()


def test_the_page_says_how_long_all_of_it_may_take():
    prose = " ".join(TEXT.split())
    assert f"It should take under {MINUTES['full']} minutes on two cores, and `FAULTS=short`" in prose
    assert f"which takes fewer tries, under {MINUTES['short']} minutes" in prose


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Makes a page without rows, and writes down what a run found."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "RESULTS", tmp_path / "faults.json")
    page.PAGE.write_text(f"before\n\n{page.START}\n\nold\n\n{page.END}\n\nafter\n")
    return lambda run: page.RESULTS.write_text(json.dumps(run.to_json()))


def test_a_full_run_is_put_on_the_page_with_what_was_not_tried_and_its_seconds(results):
    results(RUN)
    page.main()
    text = page.PAGE.read_text()
    assert text.startswith(f"before\n\n{page.START}\n\n2 faults, 3 tries")
    assert text.endswith(f"{page.END}\n\nafter\n")
    assert rows_of(text) == [("disk", "a `quota`"), ("fuzz", "bytes")]
    assert not_tried(text) == {"tests/faults/test_disk.py::test_a_quota[1]"}
    assert "\n\n- not tried: no btrfs (yet) (tests/faults/test_disk.py::test_a_quota[1])\n- full form, 1,300 s" in text
    assert "\n- that is more than the 20 minutes of the full form\n" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"form": "short"}, "the last run was of the short form"),
        ({"whole": False}, "the last run left tests out"),
        ({"passed": False}, "the last run failed"),
        (None, "there is no matrix"),
    ],
)
def test_what_is_no_full_run_stays_off_the_page(results, change, problem):
    if change:
        results(replace(RUN, **change))
    before = page.PAGE.read_text()
    with pytest.raises(SystemExit, match=f"^{problem}; run `make test-faults` first$"):
        page.main()
    assert page.PAGE.read_text() == before


@pytest.mark.parametrize(("form", "seconds", "slow"), [("full", 1200, 0), ("full", 1201, 1), ("short", 301, 1)])
def test_a_run_that_takes_too_long_says_so(form, seconds, slow):
    lines = replace(RUN, form=form, seconds=seconds, skipped={}).summary()
    assert len(lines) == 1 + slow

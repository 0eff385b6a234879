"""The page of the fault matrix has a row for each that the tests make, and says how long all of it may take."""

from __future__ import annotations

import re

from tests.faults import page
from tests.faults.matrix import GROUPS, MINUTES
from tests.faults.page import not_tried, rows_of
from tests.faults.rows import ANYTHING, Made, every_test, made

TEXT = page.PAGE.read_text(encoding="utf-8")
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
    assert [one for one in found if ANYTHING in one.fault] == []


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

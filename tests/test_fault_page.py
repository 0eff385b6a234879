"""The page of the fault matrix names what was not tried, and says how long all of it may take."""

from __future__ import annotations

from tests.faults import page
from tests.faults.matrix import MINUTES

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_what_the_page_did_not_try_is_a_test():
    assert {test.partition("[")[0] for test in page.not_tried(TEXT)} <= page.every_test()


def test_the_page_says_how_long_all_of_it_may_take():
    prose = " ".join(TEXT.split())
    assert f"It should take under {MINUTES['full']} minutes on two cores, and `FAULTS=short`" in prose
    assert f"which takes fewer tries, under {MINUTES['short']} minutes" in prose

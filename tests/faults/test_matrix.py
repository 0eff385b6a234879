"""Tests of the matrix itself: a row that is not all zeros must be seen."""

from __future__ import annotations

from tests.faults import process
from tests.faults.matrix import Row, markdown, merged


def test_a_row_fails_by_what_went_wrong_or_was_never_tried():
    row = Row("kills", "SIGKILL", "ends")
    assert row.verdict() == "SIGKILL: nothing was tried"
    row.tried("the first")
    assert row.verdict() == ""
    row.tried("the second", hang=True, wrong=True)
    assert row.verdict() == "SIGKILL:\nthe second: hang, wrong bytes"


def test_rows_of_one_fault_are_added_up_and_stand_in_their_group():
    rows = [Row("fuzz", "bytes", "found", tries=2), Row("kills", "SIGKILL", "ends", tries=3, losses=1)]
    found = merged([row.to_json() for row in [*rows, rows[0]]])
    assert [(row.fault, row.tries) for row in found] == [("SIGKILL", 3), ("bytes", 4)]
    text = markdown(found)
    assert "2 faults, 7 tries, 0 hangs, 1 losses, 0 with wrong bytes." in text
    assert "| SIGKILL | 3 | 0 | 1 | 0 | ends |" in text


def test_a_command_that_does_not_end_is_a_hang_and_is_ended_with_its_children():
    found = process.run(["sh", "-c", "sleep 300 & sleep 300"], timeout=0.5)
    assert found.hang
    assert found.code == -9


def test_what_outlives_a_command_is_counted_and_ended():
    found = process.run(["sh", "-c", "sleep 300 > /dev/null 2>&1 & exit 3"], timeout=20)
    assert (found.code, found.hang, found.left) == (3, False, 1)

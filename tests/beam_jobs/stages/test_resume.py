from __future__ import annotations

import pytest

from beam_jobs.errors import Fault
from beam_jobs.stages import resume


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    """How long is waited, in vain."""
    waited: list[float] = []
    monkeypatch.setattr(resume.time, "sleep", waited.append)
    return waited


def tried(*left_after: list[str]) -> tuple[list[str], list[tuple[list[str], bool]], list[str]]:
    """Returns what `run_passes` leaves of a, b and c, its passes and its lines."""
    made: list[tuple[list[str], bool]] = []
    lines: list[str] = []
    left = iter(left_after)
    rest = resume.run_passes(
        "abc", lambda units, last: made.append(([*units], last)), lambda _: next(left), lines.append
    )
    return [*rest], made, lines


def test_one_pass_is_enough_where_nothing_is_left(waits):
    assert tried([]) == ([], [(["a", "b", "c"], False)], [])
    assert waits == []


def test_what_is_left_is_tried_again_after_growing_waits(waits):
    rest, made, lines = tried(["a", "c"], ["c"], ["c"])
    assert rest == ["c"]
    assert made == [(["a", "b", "c"], False), (["a", "c"], False), (["c"], True)]
    assert lines == [
        "retrying  2 units of work that could not be read, in 2 s",
        "retrying  1 unit of work that could not be read, in 15 s",
    ]
    assert waits == [2.0, 15.0] == sorted(waits)


def test_notes_are_read_by_unit_and_the_last_of_one_counts(tmp_path):
    assert resume.read_fault_notes(str(tmp_path / "none")) == {}
    for cause in ("denied", "no ä"):
        resume.write_fault_note(str(tmp_path), "000001-ab", [Fault("cat/ö.jpg", cause), Fault("b", "gone")])
    resume.write_fault_note(str(tmp_path), "000002-cd", [])
    found = resume.read_fault_notes(str(tmp_path))
    assert found == {"000001-ab": (Fault("cat/ö.jpg", "no ä"), Fault("b", "gone")), "000002-cd": ()}
    (tmp_path / "000001-ab.json").write_bytes(b"{")
    assert resume.read_fault_notes(str(tmp_path)) == {"000001-ab": (), "000002-cd": ()}


def test_the_error_names_the_first_in_one_bounded_line():
    faults = [Fault("long" * 1000, "denied"), *(Fault(f"{number}\n.jpg", "no answer") for number in range(2000))]
    error = resume.unfinished_error(faults, ", or leave it")
    assert error.exit_code == 1
    assert len(error.faults) == 2001
    text = str(error)
    long = ("long" * 1000)[:300]
    assert text.startswith(f"2,001 files could not be read or written in 3 passes: {long} (denied); 0\\x0a.jpg (no a")
    assert text.endswith(
        "; 8\\x0a.jpg (no answer); and 1,991 more. Nothing was published. Repair the causes; finished work is "
        "kept, run the same command again, or leave it"
    )
    assert len(text.splitlines()) == 1

"""The rows of the fault matrix, from the tests to the end of the run; see `matrix`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.matrix import GROUPS, Row, markdown, merged
from tests.faults.trials import Worker, worker

_PROPERTY = "fault"  # a property of a report travels from the workers of xdist to the one that prints
_RESULTS = Path(__file__).parents[2] / "build" / "faults.json"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything here, so that it runs by `make test-faults` alone."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("faults")


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str, str], Row]]:
    """Makes a row of the matrix: group, fault, what happens. The test fails unless all of it are zeros."""
    rows: list[Row] = []

    def make(group: str, fault: str, outcome: str) -> Row:
        assert group in GROUPS, f"{group} is no group of the matrix"
        rows.append(Row(group, fault, outcome))
        return rows[-1]

    yield make
    request.node.user_properties += [(_PROPERTY, row.to_json()) for row in rows]
    verdicts = [row.verdict() for row in rows if row.verdict()]
    assert not verdicts, "\n".join(verdicts)


@pytest.fixture(scope="session")
def short() -> bool:
    """Whether few tries do: the form of the gate. `FEEDLINE_FAULTS=short`, or full."""
    return os.environ.get("FEEDLINE_FAULTS", "full") == "short"


@pytest.fixture(scope="session")
def tries(short: bool) -> Callable[[int, int], int]:
    """Chooses between how many tries the full and the short form take."""
    return lambda full, few: few if short else full


@pytest.fixture(scope="session")
def ingests() -> Iterator[Worker]:
    """Runs `feedline ingest` again and again, bound by file modes; see `trials`."""
    with worker() as found:
        yield found


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints the matrix, and keeps it for the page."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = {
        (report.nodeid, place): value
        for report in reports
        if getattr(report, "when", "") == "teardown"  # the last one holds the properties of all phases
        for place, (name, value) in enumerate(report.user_properties)
        if name == _PROPERTY
    }
    if not found:
        return
    rows = merged(found.values())
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n", encoding="utf-8")
    terminalreporter.section("fault matrix")
    terminalreporter.write_line(markdown(rows))

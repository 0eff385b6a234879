"""The rows of the fault matrix, from the tests to the end of the run; see `matrix`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.matrix import GROUPS, MINUTES, Row, Run, markdown, merged
from tests.faults.page import every_test
from tests.faults.trials import Worker, worker

_PROPERTY = "fault"  # a property of a report travels from the workers of xdist to the one that prints
_RESULTS = Path(__file__).parents[2] / "build" / "faults.json"
_FOLDER = "tests/faults/"
# A worker takes a file at a time: with a long one at the end, the others would wait for it.
_LONGEST = (
    "test_kills.py",
    "test_left_jobs.py",
    "test_together.py",
    "test_disk.py",
    "test_archives.py",
    "test_network.py",
    "test_kills_training.py",
    "test_images.py",
    "test_tables.py",
    "test_untrusted.py",
    "test_bytes.py",
)
_STARTED = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything here, so that it runs by `make test-faults` alone; the longest files come first."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("faults")
    places = {here / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str, str], Row]]:
    """Makes a row of the matrix: group, fault, what happens. The test fails unless all of it are zeros."""
    made: list[Row] = []

    def make(group: str, fault: str, outcome: str) -> Row:
        assert group in GROUPS, f"{group} is no group of the matrix"
        made.append(Row(group, fault, outcome))
        return made[-1]

    yield make
    request.node.user_properties += [(_PROPERTY, row.to_json()) for row in made]
    verdicts = [row.verdict() for row in made if row.verdict()]
    assert not verdicts, "\n".join(verdicts)


@pytest.fixture(scope="session")
def short() -> bool:
    """Whether few tries do: the form of the gate. `FEEDLINE_FAULTS=short`, or full."""
    form = _form()
    assert form in MINUTES, f"FEEDLINE_FAULTS={form}; it may be {' or '.join(MINUTES)}"
    return form == "short"


@pytest.fixture(scope="session")
def tries(short: bool) -> Callable[[int, int], int]:
    """Chooses between how many tries the full and the short form take."""
    return lambda full, few: few if short else full


@pytest.fixture(scope="session")
def ingests() -> Iterator[Worker]:
    """Runs `feedline ingest` again and again, bound by file modes; see `trials`."""
    with worker() as found:
        yield found


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    """Prints the matrix, and keeps it for the page."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    mine = [report for report in reports if getattr(report, "nodeid", "").startswith(_FOLDER)]
    found = {
        (report.nodeid, place): value
        for report in mine
        if getattr(report, "when", "") == "teardown"  # the last one holds the properties of all phases
        for place, (name, value) in enumerate(report.user_properties)
        if name == _PROPERTY
    }
    skipped = {report.nodeid: _reason(report) for report in mine if getattr(report, "skipped", False)}
    if not found and not skipped:
        return
    run = Run(
        form=_form(),
        whole=_takes_all(config) and every_test() <= {report.nodeid.partition("[")[0] for report in mine},
        passed=exitstatus == 0,
        seconds=round(time.monotonic() - _STARTED, 1),
        rows=tuple(merged(found.values())),
        skipped=skipped,
    )
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(run.to_json(), indent=1) + "\n", encoding="utf-8")
    terminalreporter.section("fault matrix")
    terminalreporter.write_line(markdown(run.rows))
    terminalreporter.write_line("\n".join(["", *run.summary()]))


def _form() -> str:
    return os.environ.get("FEEDLINE_FAULTS", "full")


def _takes_all(config: pytest.Config) -> bool:
    """Returns whether nothing was asked for that leaves out tests, or some parameters of them."""
    option, here = config.option, Path(__file__).parent
    places = [Path(config.invocation_params.dir, argument) for argument in config.args]
    chosen = option.keyword or option.deselect or option.markexpr not in ("", "faults")
    return not chosen and any(here.is_relative_to(place) for place in places)


def _reason(report: pytest.TestReport) -> str:
    """Returns why a test was skipped."""
    return str(report.longrepr[-1] if isinstance(report.longrepr, (tuple, list)) else report.longrepr).removeprefix(
        "Skipped: "
    )

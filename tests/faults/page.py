"""Puts the matrix of the last full run into the documentation: `python -m tests.faults.page`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.faults.matrix import Run, markdown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "build" / "faults.json"
START, END = "<!-- matrix: start -->", "<!-- matrix: end -->"
_NOT_TRIED = re.compile(r"^- not tried: .+ \((?P<test>\S+)\)$", re.MULTILINE)


def main() -> None:
    if not RESULTS.exists():
        sys.exit("there is no matrix; run `make test-faults` first")
    run = Run.from_json(json.loads(RESULTS.read_text(encoding="utf-8")))
    if problem := run.problem():
        sys.exit(f"{problem}; run `make test-faults` first")
    before, after = PAGE.read_text(encoding="utf-8").split(START)[0], PAGE.read_text(encoding="utf-8").split(END)[1]
    PAGE.write_text(f"{before}{START}\n\n{written(run)}\n\n{END}{after}", encoding="utf-8")


def written(run: Run) -> str:
    """Returns what stands between the marks: the matrix, and the lines below it as a list."""
    return "\n".join([markdown(run.rows), "", *(f"- {line}" for line in run.summary())])


def every_test() -> set[str]:
    """Returns the node ids of all tests of faults, without parameters."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def not_tried(text: str) -> set[str]:
    """Returns the tests, with their parameters, that a page says were not tried."""
    return {found["test"] for found in _NOT_TRIED.finditer(text)}


if __name__ == "__main__":
    main()

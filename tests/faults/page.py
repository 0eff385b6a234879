"""Puts the matrix of the last full run into the documentation: `python -m tests.faults.page`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.faults.matrix import markdown, merged

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "build" / "faults.json"
START, END = "<!-- matrix: start -->", "<!-- matrix: end -->"


def main() -> None:
    if not RESULTS.exists():
        sys.exit("there is no matrix; run `make test-faults` first")
    rows = merged(json.loads(RESULTS.read_text(encoding="utf-8")))
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{START}\n\n{markdown(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

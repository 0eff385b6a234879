"""Figures in the documentation: rows of tables whose first cell names an entry of `benchmarks/results/latest.json`.

`python -m tests.doc_figures` writes the rows anew, after a measurement.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from tests.doc_pages import ROOT, every_page, text_of

_ROW = re.compile(r"^\| `(?P<part>\w+): (?P<name>[^`]+)` \|.*$", re.MULTILINE)


@functools.cache
def results() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/results/latest.json").read_text(encoding="utf-8"))["results"]


def row(part: str, name: str) -> str:
    """Returns the row of an entry: its name, its figure, that of the base, their ratio, and what the base is.

    Raises:
      KeyError: there is no such entry, or it compares nothing.
    """
    found = results()[part][name]
    if "of_budget" in found:
        cells = [f"{found['peak_above_mb']:.0f} MB", f"{found['budget_mb']:.0f} MB", found["of_budget"], "byte budget"]
    elif "megabytes" in found:
        cells = [f"{found['megabytes']:,.1f} MB", f"{found['base']:,.1f} MB", found["ratio"], found["base_is"]]
    else:
        cells = [f"{found['rate']:,.0f}/s", f"{found['base']:,.0f}/s", found["ratio"], found["base_is"]]
    cells[2] = f"{cells[2]:.2f}" if cells[2] < 10 else f"{cells[2]:.1f}"
    return f"| `{part}: {name}` | {' | '.join(cells)} |"


def wrong_rows(page: str) -> dict[str, str]:
    """The rows of a page that are not what was measured, and what they must be; empty for an entry that is gone."""
    wrong = {}
    for found in _ROW.finditer(text_of(page)):
        try:
            wanted = row(found["part"], found["name"])
        except KeyError:
            wanted = ""
        if found.group() != wanted:
            wrong[found.group()] = wanted
    return wrong


def rows(page: str) -> int:
    """How many such rows a page has."""
    return len(_ROW.findall(text_of(page)))


def main() -> None:
    for page in every_page():
        wrong, text = wrong_rows(page), text_of(page)
        for found, wanted in wrong.items():
            text = text.replace(found, wanted or found)
        if wrong:
            (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

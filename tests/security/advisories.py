"""Compares what an audit of constraints.txt found with what is known and accepted, and keeps SECURITY.md in line.

`make advisories` pipes the JSON of pip-audit in. `--page` writes the table of accepted ones into SECURITY.md instead.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "SECURITY.md"
BEGIN, END = "<!-- advisories: begin -->", "<!-- advisories: end -->"
_ACCEPTED = Path(__file__).parent / "accepted.yaml"
_HEAD = ("package", "advisory", "fixed in", "vulnerability", "reason for version", "reason for acceptance", "source")

Advisory = Mapping[str, Any]


def accepted() -> list[Advisory]:
    """Returns the known advisories, in the order of the page."""
    return yaml.safe_load(_ACCEPTED.read_text(encoding="utf-8"))


def pins(name: str) -> dict[str, str]:
    """Returns package -> version of the lock of a stack; the oldest, where it differs by the version of Python."""
    text = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE)
    return dict(reversed(found))


def table(known: Sequence[Advisory]) -> str:
    """Returns the page's table of accepted advisories."""
    rows = [
        (
            f"{one['package']} {one['version']}",
            *(one["ids"][0], one["fixed"], one["what"], one["pinned_by"], one["reason"], one["seen"]),
        )
        for one in known
    ]
    lines = [_HEAD, ("---",) * len(_HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, known: Sequence[Advisory]) -> str:
    """Returns the text of SECURITY.md with the table of these advisories in it."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(known)}\n\n{END}{rest.split(END)[1]}"


def judge(audit: Mapping[str, Any], known: Sequence[Advisory]) -> tuple[int, list[str]]:
    """Judges an audit.

    Args:
      audit: JSON of pip-audit.
      known: accepted advisories.

    Returns:
      exit code and lines: 0 when every advisory found is accepted, 1 when one is not, 2 when packages went unasked,
      for then nothing was found because nothing was looked up.
    """
    names = {(one["package"], name) for one in known for name in one["ids"]}
    asked = [one for one in audit["dependencies"] if "skip_reason" not in one]
    unasked = len(audit["dependencies"]) - len(asked)
    new = [
        f"{one['name']} {one['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
        for one in asked
        for found in one["vulns"]
        if not any((one["name"], name) in names for name in (found["id"], *found["aliases"]))
    ]
    if unasked:
        return 2, [*new, f"no audit: the service knew nothing of {unasked} of {len(audit['dependencies'])} packages"]
    return int(bool(new)), new or [f"{len(asked)} packages, nothing that is not accepted"]


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or judges the audit at standard input."""
    if "--page" in arguments:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), accepted()), encoding="utf-8")
        return 0
    code, lines = judge(json.load(sys.stdin), accepted())
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

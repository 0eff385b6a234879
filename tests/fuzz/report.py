"""Prints what the last search of each target came to: `python -m tests.fuzz.report`."""

from __future__ import annotations

import json
import sys

from tests.fuzz.drive import CORPUS, WORK


def main() -> None:
    """Prints a line a target; one that was never searched says so."""
    lines = [("target", "seconds", "executions", "branches", "finds")]
    for name in sorted(path.name for path in CORPUS.iterdir()):
        path = WORK / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            ended = "" if found["code"] == 0 or found["finds"] else f", exit code {found['code']}"
            counts = (f"{found[key]:,}" for key in ("seconds", "executions", "coverage"))
            lines.append((name, *counts, f"{len(found['finds'])}{ended}"))
        else:
            lines.append((name, "-", "-", "-", "not searched"))
    for name, *cells in lines:
        sys.stdout.write(f"{name:<10}" + "".join(f"{cell:>14}" for cell in cells) + "\n")


if __name__ == "__main__":
    main()

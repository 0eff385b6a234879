"""Keeps what a search found: of each target the smallest inputs that together reach every line that all of them reach.

`python -m tests.fuzz.minimise headers` moves them from `build/fuzz/headers/found` into the corpus, beside the seeds.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.drive import CORPUS, WORK, Target, corpus

_PACKAGES = ("beam_jobs", "trainer")
_MAX_FILES = 40  # of a target, seeds included
_MAX_BYTES = 4096  # of a file

Line = tuple[str, int, int]


def lines_of(target: Target, data: bytes) -> set[Line]:
    """Returns the steps from line to line of the product that an input makes the target take."""
    root = Path(__file__).parents[2]
    files = tuple(str(root / package) for package in _PACKAGES)
    reached: set[Line] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name, last = frame.f_code.co_filename, 0
        if not name.startswith(files):
            return None

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                reached.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    sys.settrace(trace)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return reached


def main() -> None:
    """Adds to the corpus what reaches steps that nothing before it does, smallest first."""
    name = sys.argv[1]
    target: Target = importlib.import_module(f"tests.fuzz.{name}").target
    kept = [path.read_bytes() for path in corpus(name)]
    target(kept[0])  # what is imported at the first use is no step
    known = set().union(*(lines_of(target, data) for data in kept))
    for path in sorted((WORK / name / "found").iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        data = path.read_bytes()
        if len(corpus(name)) >= _MAX_FILES or len(data) > _MAX_BYTES:
            break
        reached = lines_of(target, data)
        if not reached <= known:
            known |= reached
            (CORPUS / name / f"found-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
    size = sum(path.stat().st_size for path in corpus(name))
    sys.stdout.write(f"{name}: {len(corpus(name))} files, {size:,} bytes\n")


if __name__ == "__main__":
    main()

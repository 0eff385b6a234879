"""Runs the `feedline` of this environment as a user would: in a process of its own, or the warm one of `doc_warm`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def feedline(
    *arguments: object, cwd: Path | None = None, timeout: int = 280, programs: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Returns the finished process; its exit code is for the test to judge. `programs` is the directory of another."""
    command = [str((programs or Path(sys.executable).parent) / "feedline"), *map(str, arguments)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout)

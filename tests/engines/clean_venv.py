"""An environment that holds what a worker holds: the wheel, and what it needs at the versions of the lock."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs import stack

ROOT = Path(__file__).parent.parent.parent


def make(directory: Path, wheel: str) -> str:
    """Installs a wheel into an environment of its own, and returns its interpreter."""
    uv = uv_program()
    python = str(directory / "bin" / "python")
    _call(uv, "venv", "--quiet", "--python", sys.executable, str(directory))
    # The clients of Google Cloud are in the image of every worker, so they are here too.
    pinned = ["--constraint", str(ROOT / stack.constraints())]
    _call(uv, "pip", "install", "--quiet", "--python", python, *pinned, wheel, "apache-beam[gcp]")
    return python


def uv_program() -> str:
    """Path of uv; the test is skipped where there is none."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    if not Path(uv).is_file():
        pytest.skip("uv is not here: `make setup` brings it into .tools")
    return uv


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    if done.returncode and "Failed to fetch" in done.stderr:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr

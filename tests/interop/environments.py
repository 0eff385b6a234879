"""Clients that cannot live beside TFX: each in an environment of its own, made once and kept in `build/interop`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import ROOT, Skipped, make_environment

REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / "build" / "interop"
CLIENTS = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
_SECONDS = 240
_MARK = "found: "


@functools.cache
def python_of(client: str) -> Path | str:
    """The Python of the environment of a client; why there is none, where it cannot be made."""
    try:
        return make_environment(ENVIRONMENTS / client, REQUIREMENTS / f"{client}.txt")
    except Skipped as error:
        return f"{client} cannot be installed: {error}"


def run(client: str, place: Path, code: str, probe: str) -> Any:
    """Runs a block of the page and then a probe, in the environment of a client.

    Args:
      client: one of `CLIENTS`; a test whose client cannot be installed is skipped with the reason.
      place: directory to run in.
      code: what the page shows.
      probe: Python that leaves in `found` what the block came to; it must go into JSON.

    Returns:
      what the probe found.
    """
    python = python_of(client)
    if isinstance(python, str):
        pytest.skip(python)
    script = f"{code}\n{probe}\nimport json\nprint({_MARK!r} + json.dumps(found))\n"
    # Nothing of this environment, and nothing from the net: the dataset is all there is.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own = {"HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=place, env={**kept, **own}, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    return json.loads(line.removeprefix(_MARK))

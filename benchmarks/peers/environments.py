"""Virtual environments of the peers, in a cache directory; changed requirements create an environment again."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.peers.registry import Peer

ROOT = Path(__file__).parents[2]
DEFAULT_CACHE = ROOT / ".benchmarks"
_INSTALL_SECONDS = 1800
_MARKER = ".installed"


class Skipped(Exception):
    """A peer cannot be measured; the message is the reason, in one line."""


def python_for(name: str, peer: Peer, cache: Path) -> Path:
    """Returns the Python that runs a peer, after installing its requirements.

    Raises:
      Skipped: the requirements cannot be installed.
    """
    if peer.requirements:
        return make_environment(cache / name, peer.requirements)
    try:
        metadata.version(peer.distribution)
    except metadata.PackageNotFoundError as error:
        raise Skipped(f"{peer.distribution} is not in this environment; make setup installs it") from error
    return Path(sys.executable)


def make_environment(
    directory: Path, requirements: Path, versions: str = sys.executable, built: tuple[str, ...] = ()
) -> Path:
    """Creates a virtual environment of exactly the pinned packages, unless it exists; with uv if available.

    Args:
      directory: directory of the environment.
      requirements: file of the packages.
      versions: Python versions of the packages, such as `>=3.10,<3.13`; only uv searches for another Python.
      built: packages without a wheel, which are built here.

    Returns:
      path of the Python of the environment.

    Raises:
      Skipped: the environment cannot be created.
    """
    python = directory / "bin" / "python"
    marker = directory / _MARKER
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if marker.is_file() and python.exists() and marker.read_text() == digest:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    for command in _commands(directory, requirements, versions, built):
        _run(command)
    marker.write_text(digest)
    return python


def last_line(text: str) -> str:
    """Returns the last line of an output that is not empty, as a reason in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _commands(directory: Path, requirements: Path, versions: str, built: tuple[str, ...]) -> list[list[str]]:
    """Installs only wheels, except for the built packages: nothing else is compiled, and no other setup script runs."""
    python = directory / "bin" / "python"
    built_options = [word for name in built for word in ("--no-binary", name)]
    options = ["--only-binary", ":all:", *built_options, "--requirement", str(requirements)]
    local = ROOT / ".tools" / "bin" / "uv"
    uv = str(local) if local.exists() else shutil.which("uv")
    if uv:
        return [
            [uv, "venv", "--quiet", "--python", versions, str(directory)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *options],
        ]
    return [
        [sys.executable, "-m", "venv", str(directory)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options],
    ]


def _run(command: list[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"installing took over {_INSTALL_SECONDS} s") from error
    except OSError as error:
        raise Skipped(f"{command[0]} cannot be run: {error.strerror}") from error
    if run.returncode:
        raise Skipped(f"installing failed: {last_line(run.stderr or run.stdout)}")

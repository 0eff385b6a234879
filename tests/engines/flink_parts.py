"""What the tests on Flink need and the project does not ship: a job server, and a distribution of Flink.

Both are fetched once into the user's cache. `Missing` is raised where a program is missing, or the network; what fails
otherwise is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from beam_jobs.errors import OptionError
from beam_jobs.runners import flink_job_server
from tests.command import executable

VERSION = "1.19"
_DISTRIBUTION = "apache-flink-libraries==1.19.3"
_POM = Path(__file__).parent / "flink_job_server" / "pom.xml"
_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 280
# How Maven and uv say that there is no network, or none that leads there.
_NO_NETWORK = (
    "Could not transfer",
    "Failed to fetch",
    "Unknown host",
    "Could not resolve",
    "Connection",
    "timed out",
    "error sending request",
    "dns error",
)


class Missing(Exception):
    """Something that cannot be had here; the message says what and why."""


def job_server() -> str:
    """Returns the path of the jar of Beam's job server.

    It is the published one of this Beam; failing that, one put together with Maven from the parts of an older Beam,
    which speaks the same protocol.
    """
    try:
        flink_job_server.find_java()
    except OptionError as error:
        raise Missing(str(error)) from error
    try:
        return flink_job_server.find_jar(VERSION)
    except OptionError as error:
        return _assembled(str(error))


def distribution() -> Path:
    """Returns the folder of the jars of a Flink distribution, from the package that PyFlink installs them with."""
    place = cache() / _DISTRIBUTION
    if not place.is_dir():
        made(place, [_uv(), "pip", "install", "--quiet", "--no-deps", "--target", ".", _DISTRIBUTION], "pyflink/lib")
    return place


def cache() -> Path:
    """Returns the folder of what was fetched or made."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedline" / "flink-tests"


def _assembled(why: str) -> str:
    place = cache() / f"job-server-{VERSION}"
    if not place.is_dir():
        if shutil.which("mvn") is None:
            raise Missing(f"{why}; and there is no mvn to put one together")
        made(place, ["mvn", "--quiet", "--batch-mode", "package"], "target", _POM)
    return str(place / "flink-job-server-1.jar")


def made(place: Path, command: list[str], result: str, *needed: Path) -> None:
    """Runs a command in a folder of its own, with copies of the files it needs, and keeps its result as `place`.

    Raises:
      Missing: the program is not there, or cannot reach what it fetches.
      RuntimeError: it failed otherwise.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as work:
        for path in needed:
            shutil.copy(path, work)
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_DEADLINE_S)
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            raise Missing(f"{command[0]} failed: {error}") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines() or [f"code {done.returncode}"]
            for line in said:
                if any(words in line for words in _NO_NETWORK):
                    raise Missing(f"{' '.join(command)} failed: {line}")
            raise RuntimeError(f"{' '.join(command)} failed: {said[0]}")
        os.replace(Path(work) / result, place)


def _uv() -> str:
    found = shutil.which("uv", path=f"{_ROOT / '.tools' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise Missing("there is no uv to install a Flink distribution with; make setup brings one")
    return found


def program(path: Path, text: str) -> Path:
    """Makes a shell script."""
    return executable(path, f"#!/bin/sh\n{text}\n")

"""The Java that runs the job server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from beam_jobs.errors import OptionError

OLDEST = 11
_REMEDY = f"install Java {OLDEST} or newer, such as Debian's default-jre-headless, and put it on PATH or in JAVA_HOME"
_DEADLINE_S = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find() -> str:
    """Returns the path of `java`: that of `JAVA_HOME`, or the first on `PATH`.

    Raises:
      OptionError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME", "")
    path = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        where = f"JAVA_HOME, which is {home}" if home else "PATH"
        raise OptionError(f"Flink needs Java, and there is none in {where}; {_REMEDY}")
    output = _version_output(path)
    if (version := _VERSION.search(output)) is None:
        raise OptionError(f"{path} does not say which Java it is ({output[:80]!r}); {_REMEDY}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < OLDEST:
        raise OptionError(f"{path} is Java {major}, which is too old for Flink; {_REMEDY}")
    return path


def _version_output(path: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the Java of the user
            [path, "-version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"{path} cannot be run: {error}; {_REMEDY}") from error
    return done.stderr + done.stdout

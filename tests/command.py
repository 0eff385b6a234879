"""Runs the `feedline` of this environment as a user would: in a process of its own, or the warm one of `doc_warm`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = Path(sys.executable).parent
_LOADS = """
import json, sys
from pipeline.cli import execute
code = execute(json.loads(sys.argv[1]))
print("\\n" + json.dumps([code, sorted(set(json.loads(sys.argv[2])) & set(sys.modules))]))
"""


def feedline(
    *arguments: object, cwd: Path | None = None, timeout: int = 280, programs: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Returns the finished process; its exit code is for the test to judge. `programs` is the directory of another."""
    command = [str((programs or PROGRAMS) / "feedline"), *map(str, arguments)]
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout)


def python(code: str, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python of its own, without warnings."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"timeout": 280, **options})


def loads(modules: Iterable[str], *arguments: object) -> tuple[int, list[str], subprocess.CompletedProcess[str]]:
    """Returns the exit code of a command, which of these modules were loaded for it, and the finished process."""
    done = python(_LOADS, json.dumps([str(argument) for argument in arguments]), json.dumps(list(modules)))
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    return code, loaded, done


def on_a_terminal(*arguments: object, columns: int = 100, **environment: str) -> tuple[int, str]:
    """Returns the exit code of a command, and what it shows on a terminal of xterm's kind."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "COLUMNS")}
    command = [str(PROGRAMS / "feedline"), *map(str, arguments)]
    values = {**plain, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=values)
    os.close(theirs)
    shown = read_terminal(ours)
    os.close(ours)
    return process.wait(timeout=60), shown.replace("\r\n", "\n")


def read_terminal(terminal: int, end: str | None = None) -> str:
    """What a terminal shows until a pattern appears, or until all that write to it are gone."""
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says when the other side is gone
        while not (end and re.search(end, shown.decode(errors="replace"), re.DOTALL)):
            part = os.read(terminal, 1 << 16)
            if not part:
                break
            shown += part
    return shown.decode(errors="replace")


def executable(path: Path, text: str) -> Path:
    """Makes a program of its text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path

"""Makes `.venv`: chooses the stack and the Python, looks for what is missing, and installs the lock.

`make setup` runs this with any Python from 3.8 on; it needs no package. The glibc chooses the stack. Of the Pythons
that fit the stack, in PATH and in pyenv, the newest is taken that has its C headers; where none fits, uv fetches one.
STACK and PYTHON override both choices.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
# uv resolves in seconds where pip backtracks for long; it lives in a venv of its own, out of the project's way.
UV_VERSION = "0.9.30"
UV = ROOT / ".tools" / "bin" / "uv"
VENV = ROOT / ".venv"
# The record is written before anything else of `.venv`, the mark after everything.
RECORD, MARK = VENV / ".stack", VENV / ".installed"

# First and last minor version of Python 3.
PYTHONS = {"current": (10, 13), "legacy": (10, 10)}
# What the wheels of tensorflow-data-validation 1.21 and ml-metadata 1.21 were linked with.
GLIBC_OF_CURRENT = (2, 39)

_PROBE = """
import json, os, platform, sys, sysconfig
gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
kind = platform.python_implementation() if gil else "a Python without the GIL"
headers = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
print(json.dumps([os.path.realpath(sys.executable), kind, platform.python_version(), headers]))
"""


class Refusal(Exception):
    """Why nothing is installed, and what to do; one line."""


class Python(NamedTuple):
    """An interpreter that starts: its file, implementation, version, and whether Python.h is there."""

    path: str
    kind: str
    version: str
    headers: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        """Version to compare: `3.13.0rc1` is before `3.13.1` and equal to `3.13.0`."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])

    def fits(self, stack: str) -> bool:
        """Whether the lock of the stack can be installed on it."""
        first, last = PYTHONS[stack]
        return self.kind == "CPython" and (3, first) <= self.numbers[:2] <= (3, last)


def main() -> int:
    """Makes or completes `.venv`; prints one line and returns 2 where that is impossible."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", default="", help="current or legacy; empty: by the glibc")
    parser.add_argument("--python", default="", help="name or path of a Python; empty: the newest that fits")
    parser.add_argument("--extras", default="tfx,dev,kubeflow,gcp", help="of setup.py, with commas between them")
    parser.add_argument("--glibc", default=_glibc(), help="version of the glibc; only a test gives it")
    parser.add_argument("--only-uv", action="store_true", help="make .tools and nothing else")
    options = parser.parse_args()
    try:
        if options.only_uv:
            make_uv()
        else:
            make(options)
    except (Refusal, OSError) as error:
        sys.stderr.write(f"setup: error: {error}\n")
        return 2
    return 0


def make(options: argparse.Namespace) -> None:
    """Chooses, checks and installs.

    Raises:
      Refusal: the stack, the Python, the system or the `.venv` that is there does not allow it.
    """
    stack, why = choose_stack(options.stack, options.glibc)
    python = _of_venv(stack)
    if options.python:
        python = _same(python, _asked_for(options.python, stack, why))
    python = python or _newest(stack)
    wanted = hashlib.sha256(
        b"\0".join([options.extras.encode(), (ROOT / "setup.py").read_bytes(), _lock(stack).read_bytes()])
    ).hexdigest()
    done = MARK.is_file() and MARK.read_text() == wanted
    if not done:
        if "tfx" in options.extras.split(","):
            _check_compiler(python)
        make_uv()
    by = ""
    if python is None:
        python, by = _fetch(stack), ", which uv has fetched"
    sys.stdout.write(f"setup: {stack} stack (TFX {_tfx(stack)}) on Python {python.version}{by}, because {why}\n")
    sys.stdout.flush()
    if not done:
        _install(stack, python, options.extras)
        MARK.write_text(wanted)
    MARK.touch()


def choose_stack(asked: str, glibc: str) -> tuple[str, str]:
    """Returns the stack and why it is this one.

    Args:
      asked: `current`, `legacy`, or nothing.
      glibc: its version, such as `2.41`; empty where the system has none.

    Raises:
      Refusal: there is no such stack, or it does not run here.
    """
    least = ".".join(map(str, GLIBC_OF_CURRENT))
    if asked not in ("", *PYTHONS):
        _refuse(f"STACK={asked}: there is no such stack", "STACK=current, STACK=legacy, or leave STACK out")
    if not glibc or platform.machine() != "x86_64":
        here = f"{platform.system()} on {platform.machine()}{'' if glibc else ' without glibc'}"
        _refuse(f"this is {here}, and TFX has wheels for Linux on x86_64 with glibc only", "use such a machine")
    new = tuple(int(part) for part in glibc.split(".")[:2]) >= GLIBC_OF_CURRENT
    if asked == "current" and not new:
        _refuse(
            f"STACK=current needs glibc {least} or later, as in Debian 13 and Ubuntu 24.04, and this is {glibc}",
            "leave STACK out for the legacy stack",
        )
    if asked:
        return asked, f"STACK={asked}"
    return ("current", f"glibc is {glibc}") if new else ("legacy", f"glibc {glibc} is older than {least}")


def make_uv() -> None:
    """Makes `.tools` with uv, where it is not there in this version.

    Raises:
      Refusal: this Python cannot make a venv, or pip cannot install uv.
    """
    if UV.is_file() and _run(str(UV), "--version").stdout.split()[1:2] == [UV_VERSION]:
        return
    if importlib.util.find_spec("ensurepip") is None:
        _refuse(f"{sys.executable} has no ensurepip, so it makes no venv", _apt("python3-venv"))
    tools = UV.parent.parent
    _must("no venv for uv can be made", sys.executable, "-m", "venv", "--clear", str(tools))
    python = str(tools / "bin" / "python")
    _must(f"uv {UV_VERSION} cannot be installed", python, "-m", "pip", "install", "--quiet", f"uv=={UV_VERSION}")


def _install(stack: str, python: Python, extras: str) -> None:
    MARK.unlink(missing_ok=True)
    VENV.mkdir(exist_ok=True)
    RECORD.write_text(f"{stack} {python.version}\n")
    inside = VENV / "bin" / "python"
    if not inside.exists():
        _must(
            "no .venv can be made",
            str(UV),
            "venv",
            "--quiet",
            "--no-project",
            "--allow-existing",
            "--python",
            python.path,
            str(VENV),
        )
    # Importing TensorFlow and TFX takes three times as long without compiled files; tests start many processes.
    command = [str(UV), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(inside)]
    command += ["--constraint", str(_lock(stack)), "--editable", f".[{extras}]"]
    # The messages of uv are shown as they come: they name the package.
    if subprocess.run(command, check=False, cwd=ROOT).returncode:  # noqa: S603 - uv of this checkout
        _refuse("uv could not install the packages, as it says above", "`make setup` continues")


def _of_venv(stack: str) -> Python | None:
    """Returns the Python of the `.venv` that is there; None where there is none yet.

    Raises:
      Refusal: it is none of ours, of another stack, or of a Python that no longer starts.
    """
    if not VENV.exists():
        return None
    of_stack, _, version = RECORD.read_text().strip().partition(" ") if RECORD.is_file() else ("", "", "")
    if of_stack not in PYTHONS:
        _refuse(
            ".venv does not say of which stack it is (an older `make setup` or another program made it)",
            "remove it with `make clean`",
        )
    if of_stack != stack:
        _refuse(
            f".venv is of the {of_stack} stack on Python {version}, and this is to be the {stack} one",
            f"remove it with `make clean`, or STACK={of_stack} to stay with it",
        )
    inside = VENV / "bin" / "python"
    if not os.path.lexists(inside):
        # The first installation was stopped before it came to Python.
        return None
    found = _probe(str(inside))
    if isinstance(found, str):
        _refuse(f".venv is of a Python {version} that no longer starts ({found})", "remove it with `make clean`")
    return found


def _same(of_venv: Python | None, python: Python) -> Python:
    if of_venv and of_venv.numbers != python.numbers:
        _refuse(
            f".venv is of Python {of_venv.version}, and PYTHON is {python.version}",
            "remove it with `make clean`, or leave PYTHON out",
        )
    return python


def _asked_for(name: str, stack: str, why: str) -> Python:
    """Returns the Python that PYTHON names.

    Raises:
      Refusal: it is not there, does not start, or does not fit the stack.
    """
    places = [name] if os.sep in name else _on_path(name) + _of_pyenv(name)
    remedy = f"PYTHON=PATH of a Python {_range(stack)}, or leave PYTHON out"
    found: Python | str = "there is no such program" + ("" if os.sep in name else " in PATH")
    for place in places:
        found = _probe(place)
        if isinstance(found, Python):
            break
    if isinstance(found, str):
        _refuse(f"PYTHON={name}: {found}", remedy)
    if not found.fits(stack):
        needs = f"the {stack} stack needs CPython {_range(stack)} ({why})"
        _refuse(f"PYTHON={name} is {found.kind} {found.version}, and {needs}", remedy)
    return found


def _newest(stack: str) -> Python | None:
    first, last = PYTHONS[stack]
    names = [f"python3.{minor}" for minor in range(last, first - 1, -1)]
    places = [place for name in (*names, "python3") for place in _on_path(name) + _of_pyenv(name)]
    found = [python for python in map(_probe, places) if isinstance(python, Python) and python.fits(stack)]
    return max(found, key=lambda python: (python.headers, python.numbers), default=None)


def _on_path(name: str) -> list[str]:
    """Returns every program of that name: the first may be a shim of pyenv, which does not start what is not chosen."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (shutil.which(name, path=folder) for folder in folders if folder)
    return [place for place in found if place]


def _of_pyenv(name: str) -> list[str]:
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    return sorted(glob.glob(os.path.join(glob.escape(root), "versions", "*", "bin", name)))


def _probe(place: str) -> Python | str:
    """Returns the interpreter; the reason where it does not start."""
    try:
        done = _run(place, "-I", "-c", _PROBE)
        return Python(*json.loads(done.stdout))
    except FileNotFoundError:
        return "there is no such program"
    except OSError as error:
        return error.strerror or "it does not start"
    except (ValueError, TypeError):
        return f"it does not start as a Python 3 ({_reason(done)})"


def _fetch(stack: str) -> Python:
    first, last = PYTHONS[stack]
    versions = f">=3.{first},<3.{last + 1}"
    done = _run(str(UV), "python", "install", "--no-bin", versions)
    if done.returncode == 0:
        done = _run(str(UV), "python", "find", "--no-project", "--managed-python", versions)
        found = _probe(done.stdout.strip())
        if isinstance(found, Python):
            return found
    return _refuse(
        f"there is no Python {_range(stack)} in PATH or pyenv, and uv could not fetch one ({_reason(done)})",
        "install one, and name it with PYTHON=PATH if it is not in PATH",
    )


def _check_compiler(python: Python | None) -> None:
    """Looks for what compiles pyfarmhash: it has no wheel for Python 3.10 and later.

    Args:
      python: None where uv is to fetch one, which comes with its headers.

    Raises:
      Refusal: the compiler or the headers are missing.
    """
    missing = {}
    if not (shutil.which("c++") or shutil.which("g++")):
        missing["g++"] = "a C++ compiler"
    if python and not python.headers:
        missing[f"python{python.numbers[0]}.{python.numbers[1]}-dev"] = f"Python.h of {python.path}"
    if missing:
        _refuse(f"pyfarmhash has to be compiled, and there is no {' and no '.join(missing.values())}", _apt(*missing))


def _lock(stack: str) -> Path:
    return ROOT / "constraints" / f"{stack}.txt"


def _tfx(stack: str) -> str:
    return re.search(r"^tfx==(\d+\.\d+)", _lock(stack).read_text(), flags=re.MULTILINE)[1]


def _range(stack: str) -> str:
    first, last = PYTHONS[stack]
    return f"3.{first}" if first == last else f"3.{first} to 3.{last}"


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except (OSError, ValueError):
        return ""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - a Python of the user, or uv of this checkout
        command, check=False, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace"
    )


def _must(trouble: str, *command: str) -> None:
    done = _run(*command)
    if done.returncode:
        _refuse(f"{trouble} ({_reason(done)})", f"`{shlex.join(command)}` shows more")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the line of an error output that says most."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def _apt(*packages: str) -> str:
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install {' '.join(packages)}"


def _refuse(what: str, remedy: str) -> NoReturn:
    raise Refusal(f"{what}; {remedy}")


if __name__ == "__main__":
    sys.exit(main())

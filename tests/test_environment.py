"""`make setup`: which stack and Python it chooses, what it refuses in one line, and that no `.venv` is overwritten.

The script runs as `make` runs it, in a checkout of its own. Shell scripts stand for Pythons of other versions and,
where nothing is to be installed, for uv.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import executable
from tests.engines.clean_venv import uv_program

ROOT = Path(__file__).parent.parent
ANY = "PYTHON=PATH of a Python 3.10 to 3.13, or leave PYTHON out"
OLD = "PYTHON=PATH of a Python 3.10, or leave PYTHON out"
UV = """#!/bin/sh
PATH=/usr/bin:/bin
echo "$@" >> {log}
case "$1" in
--version) echo "uv 0.9.30 (x86_64-unknown-linux-gnu)" ;;
venv) for last; do :; done
    while [ "$1" != --python ]; do shift; done
    mkdir -p "$last/bin" && ln -s "$2" "$last/bin/python" ;;
pip) if [ -e {broken} ]; then echo "error: no such package" >&2; exit 1; fi ;;
python) echo "error: no download for the request" >&2; exit 2 ;;
esac
"""


class Checkout:
    """A fresh clone as far as `make setup` looks at it, and a PATH with nothing but what a test puts there."""

    def __init__(self, place: Path) -> None:
        self.place, self.bin, self.pyenv = place / "checkout", place / "bin", place / "pyenv"
        self.venv, self.log = self.place / ".venv", place / "uv.log"
        self.broken_index = place / "broken"
        shutil.copytree(ROOT / "constraints", self.place / "constraints")
        for name in ("setup.py", "Makefile"):
            shutil.copy(ROOT / name, self.place)
        self.uv = self.place / ".tools" / "bin" / "uv"
        executable(self.uv, UV.format(log=self.log, broken=self.broken_index))
        executable(self.bin / "c++", "#!/bin/sh\n")
        self.environment = {"PATH": str(self.bin), "PYENV_ROOT": str(self.pyenv), "HOME": str(place)}

    def python(self, version: str, name: str = "", *, headers: bool = True, folder: Path | None = None) -> Path:
        minor = ".".join(version.split(".")[:2])
        path = (folder or self.bin) / (name or f"python{minor}")
        answer = json.dumps([str(path), "CPython", version, headers])
        return executable(path, f"#!/bin/sh\necho '{answer}'\n")

    def setup(self, *arguments: str, glibc: str = "2.41") -> subprocess.CompletedProcess[str]:
        script = self.place / "constraints" / "environment.py"
        return self.run(sys.executable, "-I", str(script), "--glibc", glibc, *arguments)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=120
        )

    def calls(self) -> list[list[str]]:
        """What uv was called for since the last time, questions for its version left out."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.split() for line in lines if line != "--version"]

    def tree(self) -> dict[str, str]:
        return {str(path): os.readlink(path) if path.is_symlink() else "" for path in sorted(self.venv.rglob("*"))}


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


def chosen(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("setup: error: ")
    return line.removeprefix("setup: error: ")


@pytest.mark.parametrize(
    ("glibc", "versions", "line"),
    [
        ("2.41", ["3.10.13", "3.13.5"], "current stack (TFX 1.21) on Python 3.13.5, because glibc is 2.41"),
        ("2.39", ["3.9.2", "3.10.13", "3.14.0"], "current stack (TFX 1.21) on Python 3.10.13, because glibc is 2.39"),
        (
            "2.38",
            ["3.10.13", "3.11.2"],
            "legacy stack (TFX 1.16) on Python 3.10.13, because glibc 2.38 is older than 2.39",
        ),
    ],
)
def test_the_glibc_chooses_the_stack_and_the_newest_python_that_fits_is_taken(checkout, glibc, versions, line):
    for version in versions:
        checkout.python(version)
    assert chosen(checkout.setup(glibc=glibc)) == f"setup: {line}\n"


def test_a_python_with_its_headers_comes_before_a_newer_one_without(checkout):
    checkout.python("3.13.5", headers=False)
    checkout.python("3.12.3")
    assert "on Python 3.12.3," in chosen(checkout.setup())


def test_a_python_is_found_behind_a_shim_that_does_not_start_under_another_name_and_in_pyenv(checkout, tmp_path):
    executable(checkout.bin / "python3.13", "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    behind = tmp_path / "behind"
    checkout.environment["PATH"] += f":{behind}"
    checkout.python("3.11.7", folder=checkout.pyenv / "versions" / "3.11.7" / "bin")
    assert "on Python 3.11.7," in chosen(checkout.setup())
    shutil.rmtree(checkout.venv)
    checkout.python("3.12.3", "python3")
    assert "on Python 3.12.3," in chosen(checkout.setup())
    shutil.rmtree(checkout.venv)
    checkout.python("3.13.5", folder=behind)
    assert "on Python 3.13.5," in chosen(checkout.setup())


def test_stack_and_python_override_the_choice(checkout):
    for version in ("3.10.13", "3.12.3", "3.13.5"):
        checkout.python(version)
    elsewhere = checkout.python("3.11.7", folder=checkout.pyenv / "versions" / "3.11.7" / "bin")
    line = chosen(checkout.setup("--stack", "legacy"))
    assert line == "setup: legacy stack (TFX 1.16) on Python 3.10.13, because STACK=legacy\n"
    for name, version in (("python3.12", "3.12.3"), ("python3.11", "3.11.7"), (str(elsewhere), "3.11.7")):
        shutil.rmtree(checkout.venv)
        assert f"current stack (TFX 1.21) on Python {version}, " in chosen(checkout.setup("--python", name))


@pytest.mark.parametrize(
    ("glibc", "arguments", "line"),
    [
        ("2.41", "--stack new", "STACK=new: there is no such stack; STACK=current, STACK=legacy, or leave STACK out"),
        (
            "2.38",
            "--stack current",
            "STACK=current needs glibc 2.39 or later.*this is 2.38; leave STACK out for the legacy",
        ),
        ("2.36", "--python python3.12", f"CPython 3.12.3, .* CPython 3.10 [(]glibc 2.36 is older than 2.39[)]; {OLD}"),
        ("2.41", "--python python3.9", f"PYTHON=python3.9: there is no such program in PATH; {ANY}"),
        ("2.41", "--python shim", f"PYTHON=shim: it does not start .*pyenv: shim: command not found[)]; {ANY}"),
        ("", "", "this is Linux on x86_64 without glibc, .*; use such a machine"),
    ],
)
def test_an_impossible_pair_is_one_line_and_installs_nothing(checkout, glibc, arguments, line):
    for version in ("3.10.13", "3.12.3", "3.14.0"):
        checkout.python(version)
    executable(checkout.bin / "shim", "#!/bin/sh\necho 'pyenv: shim: command not found' >&2\nexit 127\n")
    assert re.search(line, refused(checkout.setup(*arguments.split(), glibc=glibc)))
    assert checkout.calls() == []
    assert not checkout.venv.exists()


def test_what_compiles_a_package_is_missed_before_anything_is_made(checkout):
    python = checkout.python("3.13.5", headers=False)
    (checkout.bin / "c++").unlink()
    missing = f"pyfarmhash has to be compiled, and there is no a C++ compiler and no Python.h of {python}"
    command = f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install g++ python3.13-dev"
    assert refused(checkout.setup()) == f"{missing}; {command}"
    assert checkout.calls() == []
    assert not checkout.venv.exists()


def test_the_lock_of_the_stack_is_installed_once_and_again_when_something_changed(checkout):
    python = checkout.python("3.12.3")
    line = chosen(checkout.setup("--extras", "tfx,dev"))
    venv, install = checkout.calls()
    assert venv == ["venv", *"--quiet --no-project --allow-existing --python".split(), str(python), str(checkout.venv)]
    lock = checkout.place / "constraints" / "current.txt"
    inside = checkout.venv / "bin" / "python"
    assert install == [
        *("pip install --quiet --compile-bytecode --python".split()),
        *(str(inside), "--constraint", str(lock), "--editable", ".[tfx,dev]"),
    ]
    assert chosen(checkout.setup("--extras", "tfx,dev")) == line
    assert checkout.calls() == []
    lock.write_text(lock.read_text() + "# newer\n")
    chosen(checkout.setup("--extras", "tfx,dev"))
    assert checkout.calls() == [install]


def test_a_half_made_environment_is_continued(checkout):
    checkout.python("3.12.3")
    checkout.broken_index.touch()
    done = checkout.setup()
    assert done.returncode == 2
    last = "setup: error: uv could not install the packages, as it says above; `make setup` continues"
    assert done.stderr.splitlines() == ["error: no such package", last]
    assert not (checkout.venv / ".installed").exists()
    assert [call[0] for call in checkout.calls()] == ["venv", "pip"]
    checkout.broken_index.unlink()
    chosen(checkout.setup())
    assert [call[0] for call in checkout.calls()] == ["pip"]
    # As it is left where uv is killed before it has made the interpreter.
    shutil.rmtree(checkout.venv / "bin")
    (checkout.venv / ".installed").unlink()
    chosen(checkout.setup())
    assert [call[0] for call in checkout.calls()] == ["venv", "pip"]


def test_a_newer_python_does_not_take_the_place_of_that_of_the_environment(checkout):
    checkout.python("3.12.3")
    chosen(checkout.setup())
    checkout.python("3.13.5")
    assert "on Python 3.12.3," in chosen(checkout.setup())


def other_stack(checkout: Checkout) -> list[str]:
    chosen(checkout.setup("--stack", "legacy"))
    return []


def other_python(checkout: Checkout) -> list[str]:
    chosen(checkout.setup())
    return ["--python", "python3.10"]


def python_gone(checkout: Checkout) -> list[str]:
    chosen(checkout.setup())
    (checkout.bin / "python3.13").unlink()
    return []


def of_another_program(checkout: Checkout) -> list[str]:
    (checkout.venv / "bin").mkdir(parents=True)
    (checkout.venv / "bin" / "python").touch()
    return []


@pytest.mark.parametrize(
    ("make_venv", "line"),
    [
        (
            other_stack,
            "is of the legacy stack on Python 3.10.13, .* the current one; .*, or STACK=legacy to stay with it",
        ),
        (other_python, "is of Python 3.13.5, and PYTHON is 3.10.13; .*, or leave PYTHON out"),
        (python_gone, "is of a Python 3.13.5 that no longer starts [(]there is no such program[)]; remove it"),
        (of_another_program, "does not say of which stack it is .*; remove it with `make clean`"),
    ],
)
def test_a_stale_environment_is_one_line_and_stays_as_it_is(checkout, make_venv, line):
    for version in ("3.10.13", "3.13.5"):
        checkout.python(version)
    arguments = make_venv(checkout)
    before = checkout.tree()
    checkout.calls()
    assert re.match(f".venv {line}", refused(checkout.setup(*arguments)))
    assert checkout.calls() == []
    assert checkout.tree() == before


def test_make_does_nothing_the_second_time_and_notices_a_choice_and_a_python_that_is_gone(checkout):
    executable(checkout.bin / "python3", f'#!/bin/sh\nexec {sys.executable} "$@" --glibc 2.41\n')
    python = checkout.python("3.13.99")
    make = shutil.which("make")
    checkout.environment["PATH"] += ":/usr/bin:/bin"
    current = "setup: current stack (TFX 1.21) on Python 3.13.99, because glibc is 2.41\n"
    assert chosen(checkout.run(make, "setup")) == current
    assert chosen(checkout.run(make, "setup")) == "make: Nothing to be done for 'setup'.\n"
    assert chosen(checkout.run(make, "setup", "PYTHON=python3.13")) == current
    wrong, of_make = checkout.run(make, "setup", "STACK=old").stderr.splitlines()
    assert wrong.startswith("setup: error: STACK=old: there is no such stack; ")
    assert of_make.startswith("make: *** ")
    python.unlink()
    gone = checkout.run(make, "setup").stderr.splitlines()[0]
    assert gone.startswith("setup: error: .venv is of a Python 3.13.99 that no longer starts (")


def test_make_says_that_there_is_no_python_at_all(checkout):
    for name in ("sh", "grep"):
        (checkout.bin / name).symlink_to(f"/bin/{name}")
    executable(checkout.bin / "python3", "#!/bin/sh\nexit 1\n")  # as a Python before 3.8 answers
    line, of_make = checkout.run(shutil.which("make"), "setup").stderr.splitlines()
    assert line == (
        "setup: error: there is no Python 3.8 or later in PATH to make the environment with: apt-get install python3"
    )
    assert of_make.startswith("make: *** ")


def test_the_script_is_python_3_8():
    ast.parse((ROOT / "constraints" / "environment.py").read_text(), feature_version=(3, 8))


def test_a_python_without_ensurepip_makes_no_tools(checkout):
    checkout.python("3.12.3")
    checkout.uv.unlink()
    script = checkout.place / "constraints" / "environment.py"
    # Debian's python3 without python3-venv, on any system.
    code = f"import runpy, sys; sys.modules['ensurepip'] = None; runpy.run_path({str(script)!r}, run_name='__main__')"
    line = refused(checkout.run(sys.executable, "-I", "-c", code, "--glibc", "2.41"))
    assert line.startswith(f"{sys.executable} has no ensurepip, so it makes no venv; ")
    assert line.endswith("apt-get install python3-venv")


def test_an_old_uv_is_replaced_and_an_index_that_has_none_is_one_line(checkout):
    checkout.python("3.12.3")
    executable(checkout.uv, "#!/bin/sh\necho uv 0.1.0\n")
    checkout.environment["PIP_NO_INDEX"] = "1"
    line = refused(checkout.setup())
    assert line.startswith("uv 0.9.30 cannot be installed (ERROR: No matching distribution found for uv==0.9.30); ")
    assert not checkout.venv.exists()


def with_real_uv(checkout: Checkout, downloads: dict) -> None:
    """Packages are not installed; Pythons come from the downloads."""
    listed = checkout.place / "downloads.json"
    listed.write_text(json.dumps(downloads))
    checkout.environment["UV_PYTHON_DOWNLOADS_JSON_URL"] = str(listed)
    checkout.environment["UV_PYTHON_INSTALL_DIR"] = str(checkout.place / "pythons")
    executable(checkout.uv, f'#!/bin/sh\n[ "$1" = pip ] || exec {uv_program()} "$@"\n')


def test_where_no_python_can_be_fetched_one_line_says_so(checkout):
    with_real_uv(checkout, {})
    line = refused(checkout.setup(glibc="2.36"))
    assert line == (
        "there is no Python 3.10 in PATH or pyenv, and uv could not fetch one (error: No download found for request: "
        "cpython->=3.10, <3.11-linux-x86_64-gnu); install one, and name it with PYTHON=PATH if it is not in PATH"
    )
    assert not checkout.venv.exists()

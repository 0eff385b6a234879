"""Temporary directories of processes that end, that are killed, and that live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_MAKE = (
    "from beam_jobs.common.system import temporary_directory as make; made = make(); open(made + '/x', 'w').close(); "
)
_SAY = "print(made, flush=True); import sys; sys.stdin.read()"


def start(place: Path, more: str = "") -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a directory below `place`, and where that lies."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAKE + more + _SAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    return process, Path(process.stdout.readline().strip())


def made_long_ago(directory: Path) -> None:
    before = time.time() - 1000
    os.utime(directory, (before, before))


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("old", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next_one_unless_it_is_younger_than_a_minute(tmp_path, old):
    process, left = start(tmp_path)
    process.kill()
    process.communicate()
    assert (left / "x").exists()
    if old:
        made_long_ago(left)
    following, _ = start(tmp_path)
    assert left.exists() is not old
    end(following)


def test_that_of_a_living_process_stays_however_old_it_is(tmp_path):
    living, directory = start(tmp_path)
    made_long_ago(directory)
    process, _ = start(tmp_path)
    end(process)
    assert (directory / "x").exists()
    end(living)


def test_that_of_a_fork_which_outlives_its_parent_stays(tmp_path):
    fork = (
        "import os, time; child = os.fork(); "
        "child or [*map(os.close, (0, 1, 2)), time.sleep(600)]; "
        "open(made + '/child', 'w').write(str(child)); "
    )
    process, directory = start(tmp_path, fork)
    child = int((directory / "child").read_text())
    try:
        process.kill()
        process.communicate()
        made_long_ago(directory)
        end(start(tmp_path)[0])
        assert (directory / "x").exists()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_link_of_that_name_leads_nowhere(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    (tmp_path / "feedline-copies-link").symlink_to(victim)
    made_long_ago(victim)
    before = time.time() - 1000
    os.utime(tmp_path / "feedline-copies-link", (before, before), follow_symlinks=False)
    process, _ = start(tmp_path)
    end(process)
    assert (victim / "kept").exists()

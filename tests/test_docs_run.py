"""Every page of the documentation is run, block after block, in a directory of its own with what it takes for granted.

What cannot run here says why before its block, see `test_docs_commands.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.doc_pages import SHELL, Block, blocks, every_page
from tests.doc_places import common, furnish, make_everything, make_modules, make_run, once, prepare
from tests.doc_runner import Page

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

RUN = {*SHELL, "python", "yaml"}
BY_ITSELF = {"index", "json"}  # by `feedline` itself, not by a fork of `doc_warm`
ELSEWHERE = {
    "README": "test_readme.py",
    "elsewhere": "interop",  # each reader in an environment of its own
}


def to_run(page: str) -> list[Block]:
    return [block for block in blocks(page) if not block.excuse]


def pages() -> list[str]:
    """The pages that have something to run; those with a run of the pipeline first, which take longest."""
    found = [page for page in every_page() if page not in ELSEWHERE]
    found = [page for page in found if any(block.language in RUN for block in to_run(page))]
    return sorted(found, key=lambda page: -code_of(page).count("feedline run"))


def code_of(page: str) -> str:
    return "".join(block.code for block in to_run(page))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    return common(tmp_path_factory.getbasetemp(), worker_id)


@pytest.fixture(scope="session")
def everything(shared: Path) -> Path:
    return once(shared / "everything", make_everything)


@pytest.fixture
def place(page: str, everything: Path, warm: Path, shared: Path, tmp_path: Path) -> Path:
    """The directory of a page."""
    code = code_of(page)
    if re.search(r"\bwork/|--root work\b", code.partition("feedline run")[0]):  # before the page makes it
        once(shared / "run", lambda _: make_run(everything, warm))
    furnish(tmp_path, everything, code)
    make_modules(tmp_path, to_run(page))
    prepare(page, tmp_path, everything)
    return tmp_path


@pytest.mark.parametrize("page", ELSEWHERE)
def test_pages_that_are_run_elsewhere_are(page):
    assert (Path(__file__).parent / ELSEWHERE[page]).exists()


@pytest.mark.parametrize(
    ("line", "code"),
    [("feedline --version | cat", 0), ("echo '{}' | feedline verify /dev/stdin", 2), ("feedline bench outptu", 2)],
)
def test_a_fork_says_and_ends_as_the_program_does(line, code, warm):
    itself = Path(sys.executable).parent
    found = [in_shell(line, programs) for programs in (warm, itself)]
    said = [(done.returncode, done.stdout, done.stderr) for done in found]
    assert said[0] == said[1]
    assert said[0][0] == code


def test_a_fork_is_interrupted_and_goes_with_whoever_asked_for_it(warm, photos, tmp_path):
    line = f"cd {tmp_path}; timeout --preserve-status -s %s 3 feedline run --images {photos} --root work"
    assert in_shell(line % "INT", warm).returncode == 130
    in_shell(line % "KILL", warm)
    time.sleep(2)
    assert [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(tmp_path)] == []


def in_shell(line: str, programs: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("page", pages())
def test_the_page_does_what_it_shows(page, place, warm, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    shown = Page(page, place, Path(sys.executable).parent if page in BY_ITSELF else warm)
    for block in to_run(page):
        shown.run(block)
    monkeypatch.undo()
    shutil.rmtree(place, ignore_errors=True)

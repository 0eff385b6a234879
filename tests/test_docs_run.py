"""Every page of the documentation is run, block after block, in a directory of its own with what it takes for granted.

What cannot run here says why before its block, see `test_docs_commands.py`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.doc_pages import SHELL, Block, blocks, every_page
from tests.doc_places import furnish, make_everything, make_modules, make_run, prepare
from tests.doc_runner import Page

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

RUN = {*SHELL, "python", "yaml"}
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
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_everything(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def place(page: str, everything: Path, tmp_path: Path) -> Path:
    """The directory of a page."""
    code = code_of(page)
    if re.search(r"\bwork/|--root work\b", code.partition("feedline run")[0]):  # before the page makes it
        (everything / "work").is_dir() or make_run(everything)
    furnish(tmp_path, everything, code)
    make_modules(tmp_path, to_run(page))
    prepare(page, tmp_path, everything)
    return tmp_path


@pytest.mark.parametrize("page", ELSEWHERE)
def test_pages_that_are_run_elsewhere_are(page):
    assert (Path(__file__).parent / ELSEWHERE[page]).exists()


@pytest.mark.parametrize("page", pages())
def test_the_page_does_what_it_shows(page, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    shown = Page(page, place)
    for block in to_run(page):
        shown.run(block)
    monkeypatch.undo()
    shutil.rmtree(place, ignore_errors=True)  # a job in the background may still write there

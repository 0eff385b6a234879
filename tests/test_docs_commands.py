"""Every page, the README among them: each `feedline` command parses, each YAML is a configuration, and what Python
imports of ours is there. What also runs is in `test_docs_run.py` and `test_readme.py`."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
import yaml

from beam_jobs.errors import FeedlineError
from tests import doc_pages
from tests.doc_pages import FENCE, SHELL, Block, blocks, check_feedline, check_mention, check_yaml, text_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PAGES = doc_pages.every_page()
WRONG = (click.ClickException, FeedlineError)
OWN = {"beam_jobs", "benchmarks", "components", "feedline", "pipeline", "trainer"}
RUN = {*SHELL, "python"}
MOST_EXCUSED = 24
# What would go unseen if nothing were found on a page.
COMMANDS = {"airflow": 3, "dataflow": 3, "flink": 4, "kubeflow": 1, "lineage": 3, "object-stores": 7, "README": 8}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes the modules that the pages show importable, for settings that name them."""
    folder = tmp_path_factory.mktemp("modules")
    for block in (block for page in PAGES for block in blocks(page) if block.file.endswith(".py")):
        path = folder / block.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def commands_of(page: str) -> list[tuple[int, list[str]]]:
    """Line of the block and arguments of every `feedline` command of a page."""
    shown = [block for block in blocks(page) if block.language in SHELL]
    every = [*shown, *doc_pages.indented(page, text_of(page))]
    return [(block.line, words[1:]) for block in every for words in block.commands if words[0] == "feedline"]


def blocks_of(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def complaint(check: Callable[[Any], None], given: Any) -> str:
    """What a check finds wrong with something; empty when it is right."""
    try:
        check(given)
    except WRONG as error:
        return error.format_message() if isinstance(error, click.ClickException) else str(error)
    return ""


def complaints(check: Callable[[Any], None], given: dict[str, Any]) -> list[str]:
    """Place and complaint of everything that is wrong."""
    found = {place: complaint(check, value) for place, value in given.items()}
    return [f"{place}: {wrong}" for place, wrong in found.items() if wrong]


def test_every_command_parses(modules):
    found = {page: commands_of(page) for page in PAGES}
    assert [page for page, least in COMMANDS.items() if len(found[page]) < least] == []
    every = {f"{page}:{line}: {' '.join(words)}": words for page in PAGES for line, words in found[page]}
    assert complaints(check_feedline, every) == []


def test_what_is_not_run_says_why_and_is_the_lesser_part(capsys):
    """`make test-docs` runs all that can run here; this lists the rest."""
    pages = [page for page in PAGES if page not in ("README", "cli-reference")]  # which have tests of their own
    every = [block for page in pages for block in blocks(page) if block.language in RUN]
    excused = [block for block in every if block.excuse]
    with capsys.disabled():
        click.echo("".join(f"\n{block.page}:{block.line} is not run: {block.excuse}" for block in excused))
    assert len(excused) <= MOST_EXCUSED
    assert len(every) >= 4 * len(excused)
    assert [f"{block.page}:{block.line}" for block in excused if len(block.excuse.split()) < 4] == []


def test_tests_and_targets_that_excuses_name_are_there():
    excuses = " ".join(block.excuse for page in PAGES for block in blocks(page))
    paths = re.findall(r"\btests/[\w/]+(?:\.py)?", excuses)
    assert paths
    assert [path for path in paths if not (doc_pages.ROOT / path).exists()] == []
    makefile = (doc_pages.ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"`make ([\w-]+)`", excuses) if f"\n{name}:" not in makefile] == []


def test_every_command_in_a_sentence_exists():
    sentences = {page: re.findall(r"`feedline ([^`]+)`", FENCE.sub("", text_of(page))) for page in PAGES}
    mentions = {f"{page}: {mention}": mention for page, found in sentences.items() for mention in found}
    assert mentions
    assert complaints(check_mention, mentions) == []


def test_every_yaml_is_a_configuration(modules):
    shown = {
        f"{block.page}:{block.line}": yaml.safe_load(block.code) for block in blocks_of("yaml") if not block.excuse
    }
    assert shown
    assert complaints(check_yaml, shown) == []


def imports_of_pages() -> list[tuple[str, str, str]]:
    """Place, module and name of what the Python of the pages imports from this repository."""
    found = []
    for block in blocks_of("python"):
        nodes = [node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.ImportFrom) and node.module]
        for node in (node for node in nodes if node.module.split(".")[0] in OWN):
            found += [(f"{block.page}:{block.line}", node.module, name.name) for name in node.names]
    return found


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_what_python_imports_of_ours_is_there():
    assert [found for found in imports_of_pages() if not is_there(*found[1:])] == []


def test_python_imports_public_names_from_their_package_and_names_that_may_move_where_they_are_listed():
    listed = re.findall(r"`([\w.]+)\.(\w+)`", text_of("python-api").partition("\n## Names that may move\n")[2])
    assert listed
    found = {f"{module}.{name}": unstable(module, name) for _, module, name in imports_of_pages()}
    assert {wrong for wrong in found.values() if wrong} == {f"{module}.{name}" for module, name in listed}


def unstable(module: str, name: str) -> str:
    """What an import takes that is not of the public API, or takes from another place; empty when it is right."""
    package = importlib.import_module(module.partition(".")[0])
    if name in getattr(package, "__all__", ()):
        return "" if module == package.__name__ else f"{package.__name__}.{name}, taken from {module}"
    place = (module.partition(".")[2], name)
    alias = [public for public, found in getattr(package, "_ALIASES", {}).items() if found == place]
    return f"{package.__name__}.{alias[0]}, taken from {module}" if alias else f"{module}.{name}"

"""Every page, the README among them: each `feedline` command parses, each YAML is a configuration, and what Python
imports of ours is there. What also runs is in `test_docs_run.py` and `test_readme.py`."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from beam_jobs.errors import FeedlineError
from tests import doc_pages
from tests.doc_pages import FENCE, SHELL, blocks, check_feedline, check_mention, check_yaml, text_of

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = doc_pages.every_page()
WRONG = (click.ClickException, FeedlineError)
OWN = {"beam_jobs", "benchmarks", "components", "pipeline", "trainer"}
RUN = {*SHELL, "python"}
MOST_EXCUSED = 24
# What would go unseen if nothing were found on a page.
COMMANDS = {"airflow": 3, "dataflow": 3, "flink": 4, "kubeflow": 1, "lineage": 3, "object-stores": 7, "README": 10}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the modules that the pages show, for settings that name them."""
    folder = tmp_path_factory.mktemp("modules")
    for block in (block for page in PAGES for block in blocks(page) if block.file.endswith(".py")):
        path = folder / block.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.code, encoding="utf-8")
    return folder


def commands_of(page: str) -> list[tuple[int, list[str]]]:
    """Line of the block and arguments of every `feedline` command of a page."""
    shown = [block for block in blocks(page) if block.language in SHELL]
    every = [*shown, *doc_pages.indented(page, text_of(page))]
    return [(block.line, words[1:]) for block in every for words in block.commands if words[0] == "feedline"]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


def complaint(check: Callable[[Any], None], given: Any) -> str:
    """What a check says against something; empty when it is right."""
    try:
        check(given)
    except WRONG as error:
        return error.format_message() if isinstance(error, click.ClickException) else str(error)
    return ""


# --- the pages


@pytest.mark.parametrize("page", PAGES)
def test_every_command_parses(page, files, monkeypatch):
    monkeypatch.syspath_prepend(str(files))
    found = {f"{line}: {' '.join(words)}": complaint(check_feedline, words) for line, words in commands_of(page)}
    assert {place: said for place, said in found.items() if said} == {}


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_are_found(page):
    assert len(commands_of(page)) >= COMMANDS[page]


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


@pytest.mark.parametrize("page", PAGES)
def test_a_test_that_an_excuse_names_is_there(page):
    excuses = " ".join(block.excuse for block in blocks(page))
    assert [
        path for path in re.findall(r"\btests/[\w/]+(?:\.py)?", excuses) if not (doc_pages.ROOT / path).exists()
    ] == []
    targets = (doc_pages.ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"`make ([\w-]+)`", excuses) if f"\n{name}:" not in targets] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page):
    mentions = re.findall(r"`feedline ([^`]+)`", FENCE.sub("", text_of(page)))
    found = {mention: complaint(check_mention, mention) for mention in mentions}
    assert {mention: said for mention, said in found.items() if said} == {}


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_every_yaml_is_a_configuration(page, files, monkeypatch):
    monkeypatch.syspath_prepend(str(files))
    shown = [block for block in blocks(page) if block.language == "yaml" and not block.excuse]
    found = {block.line: complaint(check_yaml, yaml.safe_load(block.code)) for block in shown}
    assert {line: said for line, said in found.items() if said} == {}


@pytest.mark.parametrize("page", pages_with("python"))
def test_what_python_imports_of_ours_is_there(page):
    missing = [name for block in blocks(page) if block.language == "python" for name in missing_imports(block.code)]
    assert missing == []


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_imports_public_names_from_their_package_and_no_others(page):
    movable = {f"{module}.{name}" for module, name in names_that_may_move()}
    imported = [found for block in blocks(page) if block.language == "python" for found in own_imports(block.code)]
    assert [said for module, name in imported if (said := unstable(module, name)) and said not in movable] == []


def test_names_that_may_move_are_those_that_pages_import():
    shown = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    imported = {found for block in shown for found in own_imports(block.code)}
    assert names_that_may_move() == {(module, name) for module, name in imported if unstable(module, name)}


def names_that_may_move() -> set[tuple[str, str]]:
    """Module and name of what the page of the API lists as not public."""
    listed = re.findall(r"`([\w.]+)\.(\w+)`", text_of("python-api").partition("\n## Names that may move\n")[2])
    assert listed
    return set(listed)


def unstable(module: str, name: str) -> str:
    """What an import takes that is not of the public API, or takes from another place; empty when it is right."""
    package = importlib.import_module(module.partition(".")[0])
    if name in getattr(package, "__all__", ()):
        return "" if module == package.__name__ else f"{package.__name__}.{name}, taken from {module}"
    alias = [public for public, place in getattr(package, "_ALIASES", {}).items() if place == (module_in(module), name)]
    return f"{package.__name__}.{alias[0]}, taken from {module}" if alias else f"{module}.{name}"


def module_in(module: str) -> str:
    """The path of a module within its package."""
    return module.partition(".")[2]


def missing_imports(code: str) -> list[str]:
    """The names that a block imports from this repository and that are not there; the code must be Python."""
    return [f"{module}.{name}" for module, name in own_imports(code) if not is_there(module, name)]


def own_imports(code: str) -> list[tuple[str, str]]:
    """Module and name of what a block imports from this repository."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and node.module]
    return [(node.module, name.name) for node in nodes if node.module.split(".")[0] in OWN for name in node.names]


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


# --- what the checks find


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ingets photos --out dataset", "did you mean ingest"),
        ("ingest photos --out dataset --shard 16", "No such option"),
        ("ingest photos", "Missing option"),
        ("run --images photos --root work and more", "unexpected extra argument"),
        ("compile --target argo -c pipeline.yaml --out x.yaml", "'argo' is not one of"),
        ("run -c pipeline.yaml --set train.epoch=3", "epoch"),
        ("run -c pipeline.yaml --set train.epochs=many", "train.epochs"),
        ("ingest photos --out dataset --runner flink --runner-option paralelism=2", "paralelism"),
        ("ingest photos --out dataset --runner flink --runner-option parallelism=-1", "parallelism"),
        ("doctor --target flink --set engine.flink_maste=host:1", "flink_maste"),
    ],
)
def test_a_wrong_command_is_found(line, message):
    assert message in complaint(check_feedline, line.split())


@pytest.mark.parametrize(
    "mention", ["ingets", "run --show-settings", "compile --target argo", "schema init|shw|diff", "bench output DIR"]
)
def test_a_wrong_mention_is_found(mention):
    assert complaint(check_mention, mention)


@pytest.mark.parametrize(
    "mention",
    [
        "COMMAND --help",
        "--debug COMMAND",
        "compile --target airflow\\|kubeflow -c pipeline.yaml --out FILE",
        "verify DIR",
    ],
)
def test_a_mention_may_leave_things_open(mention):
    check_mention(mention)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian: {epochs: 3}", "trian"),
        ("train: {epochs: many}", "train.epochs"),
        ("input: {train_ops: decode|resise(3)}", "resise"),
        ("train: {model: resnet9000}", "resnet9000"),
        ("airflow: {schedule: sometimes}", "airflow.schedule is 'sometimes'"),
        ("airflow: {retry: 1}", "airflow.retry"),
        ("kubeflow: {gpus: 1, image: x, gpu_type: ''}", "kubeflow.gpus"),
        ("engine: {runner: flink, paralelism: 3}", "paralelism"),
        ("engine: {runner: dataflow, project: p-project, region: us-central1}", "engine.temp_location is missing"),
    ],
)
def test_a_wrong_yaml_is_found(text, message):
    assert message in complaint(check_yaml, yaml.safe_load(text))


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("trainer", "make_dataset", ""),
        ("trainer.input_fn", "make_dataset", "trainer.make_dataset, taken from trainer.input_fn"),
        ("trainer.streams", "FOREVER", "trainer.FOREVER, taken from trainer.streams"),
        ("trainer.job", "fit", "trainer.fit_job, taken from trainer.job"),
        ("beam_jobs.dataset", "manifest", "beam_jobs.dataset.manifest"),
        ("pipeline.runs.lineage", "trace", "pipeline.runs.lineage.trace"),
    ],
)
def test_an_import_that_may_move_is_found(module, name, said):
    assert unstable(module, name) == said


def test_an_import_of_nothing_is_found():
    code = (
        "from pipeline.runs.history import open_store, open_shop\nfrom pipeline import cli\nfrom beam_jobs.no import x"
    )
    assert missing_imports(code) == ["pipeline.runs.history.open_shop", "beam_jobs.no.x"]


def test_commands_are_read_from_fences_lists_and_indented_blocks():
    text = """
Text, and

    feedline verify dataset   # it's read back
    it's no command

- in a list:

    ```sh
    A=1 feedline ingest photos \\
      --out dataset
    ```

```text
feedline: error: nothing
```
"""
    found = [*doc_pages.fenced("page", text), *doc_pages.indented("page", text)]
    assert [(block.language, block.line) for block in found] == [("sh", 10), ("text", 15), ("", 4)]
    commands = [words for block in found if block.language != "text" for words in block.commands]
    assert commands == [["feedline", "ingest", "photos", "--out", "dataset"], ["feedline", "verify", "dataset"]]

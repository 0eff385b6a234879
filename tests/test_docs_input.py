"""What the pages about input and training show is what happens: their Python runs, their YAML is a configuration, their
commands exist. `<!-- not run: REASON -->` before a block excuses it."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.doc_pages import FENCE, blocks, check_feedline, check_settings, text_of
from tests.doc_places import SMALLER, make_everything, make_modules
from tests.doc_runner import Page

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = ("input", "ops", "streams", "models", "training", "distributed", "bench", "doctor", "pipeline-yaml")
LANGUAGES = {"python", "yaml", "bash", "text"}


def of_language(language: str) -> list[Any]:
    """The blocks that are to be tried, as parameters."""
    every = [block for page in PAGES for block in blocks(page)]
    found = [block for block in every if block.language == language and not block.excuse]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


# --- what the pages take for granted


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the datasets and files that the pages name."""
    folder = make_everything(tmp_path_factory.mktemp("pages"))
    make_modules(folder, (block for page in PAGES for block in blocks(page)))
    return folder


# --- blocks


def test_every_page_is_there():
    assert [page for page in PAGES if not text_of(page)] == []


def test_what_is_not_run_is_said(capsys):
    with capsys.disabled():
        for block in (block for page in PAGES for block in blocks(page) if block.excuse):
            click.echo(f"\ndocs/{block.page}.md:{block.line} is not run: {block.excuse}")


def test_every_block_is_fenced_and_says_what_it_is():
    for page in PAGES:
        outside = FENCE.sub("", text_of(page))
        assert "```" not in outside, f"docs/{page}.md holds half a fence"
        assert not re.findall(r"^(?: {4}|\t).*", outside, flags=re.MULTILINE), f"docs/{page}.md indents code"
        assert {block.language for block in blocks(page)} <= LANGUAGES, page


@pytest.mark.parametrize("page", SMALLER)
def test_what_is_done_small_stands_on_the_page(page):
    shown = "".join(block.code for block in blocks(page) if block.language == "python")
    assert [text for text in SMALLER[page] if text not in shown] == []


# --- Python


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_in_the_order_of_the_page(page, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(workplace))
    shown = Page(page, workplace, Path(sys.executable).parent)
    for block in blocks(page):
        if block.language in ("python", "text") and not block.excuse and not block.file:
            shown.run(block)


def test_a_model_of_your_own_is_found(workplace, monkeypatch):
    from trainer.models import ModelSpec, build_model

    monkeypatch.syspath_prepend(str(workplace))
    spec = ModelSpec(side_px=32, classes=3, mean_rgb=(0, 0, 0), std_rgb=(1, 1, 1))
    assert build_model("my_package.models.build", spec).output_shape == (None, 3)


# --- YAML and commands


@pytest.mark.parametrize("block", of_language("yaml"))
def test_yaml_is_a_configuration(block, workplace, monkeypatch):
    monkeypatch.syspath_prepend(str(workplace))
    check_settings(yaml.safe_load(block.code))


@pytest.mark.parametrize("block", of_language("bash"))
def test_commands_and_their_options_exist(block, workplace, monkeypatch):
    monkeypatch.syspath_prepend(str(workplace))
    for words in block.commands:
        if words[0] == "export":
            check_cluster(words[1], monkeypatch)
        elif words[0] == "feedline":
            check_feedline(words[1:])
        elif words[:2] == ["python", "-m"]:
            check_module(words[2], words[3:])
        else:
            assert words[0] in ("pip", "tensorboard"), words


def check_cluster(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.training.cluster import cluster_of_environment

    name, _, value = variable.partition("=")
    assert name == "TF_CONFIG"
    monkeypatch.setenv(name, value)
    assert cluster_of_environment().host.count > 1


def check_module(module: str, arguments: list[str]) -> None:
    found = importlib.util.find_spec(f"{module}.__main__") or importlib.util.find_spec(module)
    assert found
    assert found.origin
    source = Path(found.origin).read_text(encoding="utf-8")
    assert [word for word in arguments if word.startswith("--") and f'"{word}"' not in source] == []


# --- tables of options


def test_every_option_and_every_op_is_explained():
    from trainer.ops import OPS
    from trainer.ops.device import DEVICE_OPS
    from trainer.options import InputOptions
    from trainer.training.options import TrainOptions

    assert {field.name for field in fields(InputOptions)} == rows_of(text_of("input").partition("## Options")[2])
    assert OPS.keys() | DEVICE_OPS.keys() == rows_of(text_of("ops").partition("## The table")[2].partition("## ")[0])
    training = text_of("training") + text_of("models")
    assert [field.name for field in fields(TrainOptions) if not re.search(rf"\b{field.name}\b", training)] == []


def rows_of(text: str) -> set[str]:
    """The names in the first column of a table."""
    cells = re.findall(r"^\| (`.+?`) \|", text, flags=re.MULTILINE)
    return {re.sub(r"\(.*", "", name) for cell in cells for name in re.findall(r"`(\w+(?:\(.*?\))?)`", cell)}

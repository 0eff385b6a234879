"""What the pages about input and training show is what happens: their Python runs, and their tables are whole.

`<!-- not run: REASON -->` before a block excuses it. Their YAML and commands are in `test_docs_commands.py`."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.doc_pages import FENCE, blocks, text_of
from tests.doc_places import SMALLER, make_everything, make_modules
from tests.doc_runner import Page

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = ("input", "ops", "streams", "models", "training", "distributed", "bench", "doctor", "pipeline-yaml")
LANGUAGES = {"python", "yaml", "bash", "text"}


# --- what the pages take for granted


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the datasets and files that the pages name."""
    folder = make_everything(tmp_path_factory.mktemp("pages"))
    make_modules(folder, (block for page in PAGES for block in blocks(page)))
    return folder


# --- blocks


def test_every_block_is_fenced_and_says_what_it_is():
    for page in PAGES:
        outside = FENCE.sub("", text_of(page))
        assert "```" not in outside, f"docs/{page}.md holds half a fence"
        assert not re.findall(r"^(?: {4}|\t).*", outside, flags=re.MULTILINE), f"docs/{page}.md indents code"
        assert {block.language for block in blocks(page)} <= LANGUAGES, page


def test_what_is_done_small_stands_on_the_page():
    shown = {page: "".join(block.code for block in blocks(page) if block.language == "python") for page in SMALLER}
    assert [(page, text) for page, texts in SMALLER.items() for text in texts if text not in shown[page]] == []


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


def test_the_cluster_of_the_page_is_one(monkeypatch):
    from trainer.training.strategy import cluster_of_environment

    commands = [words for block in blocks("distributed") if block.language == "bash" for words in block.commands]
    (variable,) = [words[1] for words in commands if words[0] == "export"]
    monkeypatch.setenv("TF_CONFIG", variable.removeprefix("TF_CONFIG="))
    assert cluster_of_environment().host.count > 1


# --- tables of options


def test_every_option_and_every_op_is_explained():
    from trainer.ops import OPS
    from trainer.ops.device import DEVICE_OPS
    from trainer.options import InputOptions, TrainOptions

    assert {field.name for field in fields(InputOptions)} == rows_of(text_of("input").partition("## Options")[2])
    assert OPS.keys() | DEVICE_OPS.keys() == rows_of(text_of("ops").partition("## The table")[2].partition("## ")[0])
    training = text_of("training") + text_of("models")
    assert [field.name for field in fields(TrainOptions) if not re.search(rf"\b{field.name}\b", training)] == []


def rows_of(text: str) -> set[str]:
    """The names in the first column of a table."""
    cells = re.findall(r"^\| (`.+?`) \|", text, flags=re.MULTILINE)
    return {re.sub(r"\(.*", "", name) for cell in cells for name in re.findall(r"`(\w+(?:\(.*?\))?)`", cell)}

"""The pages about input and training name every option and every op; `test_docs_run.py` runs what they show."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from tests.doc_pages import FENCE, blocks, text_of
from tests.doc_places import SMALLER

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = ("input", "ops", "streams", "models", "training", "distributed", "bench", "doctor", "pipeline-yaml")
LANGUAGES = {"python", "yaml", "bash", "text"}


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


def test_the_cluster_of_the_page_is_one(monkeypatch):
    from trainer.training.strategy import read_cluster

    commands = [words for block in blocks("distributed") if block.language == "bash" for words in block.commands]
    (variable,) = [words[1] for words in commands if words[0] == "export"]
    monkeypatch.setenv("TF_CONFIG", variable.removeprefix("TF_CONFIG="))
    assert read_cluster().host.count > 1


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

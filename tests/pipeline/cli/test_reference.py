from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from beam_jobs.common.settings import meanings
from pipeline.cli.reference import commands_page, json_page, settings_page, target_options
from pipeline.config import TARGET_SECTIONS
from pipeline.settings.known_settings import names, sections

ROOT = Path(__file__).parents[3]


def rows() -> dict[str, list[str]]:
    """Dotted key -> cells of its row: type, default and meaning."""
    found, section = {}, ""
    for line in settings_page().splitlines():
        if line.startswith("##"):
            section = line.lstrip("# ")
        elif line.startswith("| `"):
            name, *cells = re.split(r"(?<!\\) \| ", line.strip("| "))
            found[f"{section}.{name.strip('`')}".removeprefix("Top level.")] = cells
    return found


@pytest.mark.parametrize(
    ("name", "page"), [("pipeline-yaml", settings_page), ("cli-reference", commands_page), ("json", json_page)]
)
def test_the_page_is_up_to_date(name, page):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(), f"run `python -m pipeline.cli.reference {name} > docs/{name}.md`"


def test_the_docstrings_say_what_every_setting_means_and_name_no_other():
    classes = [*sections().values(), *(cls for _, cls in target_options().values())]
    assert {cls: meanings(cls).keys() for cls in classes} == {
        cls: {item.name for item in dataclasses.fields(cls)} for cls in classes
    }
    assert all(meaning for cls in classes for meaning in meanings(cls).values())


def test_every_setting_has_a_row():
    keys = {f"{section}.{name}".strip(".") for section in sections() for name in names(section)}
    for where, cls in target_options().values():
        keys |= {f"{where}.{item.name}" for item in dataclasses.fields(cls)}
    assert rows().keys() == keys - sections().keys() - set(TARGET_SECTIONS)


@pytest.mark.parametrize(
    ("key", "cells"),
    [
        ("root", ["text", "none; required"]),
        ("train.class_weights", ["balanced or mapping of names to numbers", "`''`"]),
        ("ingest.splits", ["mapping of names to numbers", "`{train: 0.9, eval: 0.1}`"]),
    ],
)
def test_types_and_defaults_are_those_of_the_code(key, cells):
    assert rows()[key][:2] == cells


def test_meanings_are_sentences_with_their_option_and_without_names_of_the_code():
    assert rows()["train.epochs"][2] == "Passes over the training split. Option `--epochs`."
    assert rows()["ingest.source_kind"][2].startswith("Kind of the source: `auto`, `folder`, `glob`, `csv`")
    assert "SOURCE_KINDS" not in settings_page()
    assert "None" not in settings_page()

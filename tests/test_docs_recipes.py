"""Every recipe has a page with an example, its measurement or that there is none, where to read more, and tests that
are there. What is measured is what `benchmarks/results/latest.json` says."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.doc_figures import row, rows, wrong_rows
from tests.doc_pages import FENCE, ROOT, every_page, text_of

PAGES = [page for page in every_page() if page.startswith("recipes/")]


def part(page: str, heading: str) -> str:
    """The text below a heading."""
    return text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()


def test_every_recipe_has_a_page_and_a_place_in_the_overview():
    assert [int(page[8:10]) for page in PAGES] == list(range(1, 31))
    assert re.findall(r"^\| \d+ \| \[.+\]\((.+)\.md\)", text_of("recipes"), flags=re.MULTILINE) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_the_overview_has_the_name_of_the_page(page):
    number, _, name = text_of(page).partition("\n")[0].removeprefix("# ").partition(". ")
    assert f"| {number} | [{name}]({page}.md)" in text_of("recipes")


@pytest.mark.parametrize("page", PAGES)
def test_a_recipe_has_an_example_a_page_and_a_test(page):
    assert len(FENCE.findall(text_of(page))) == 1
    links = re.findall(r"\]\(\.\./([\w-]+)\.md(?:#([\w-]+))?\)", part(page, "More"))
    assert links
    assert [link for link, _ in links if not text_of(link)] == []
    assert [f"{link}#{place}" for link, place in links if place and place not in headings_of(link)] == []
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part(page, "Proof"))
    assert tests
    assert [f"{path}::{name}" for path, name in tests if name not in known_tests(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_recipe_says_what_was_measured_and_by_which_command_or_that_nothing_was(page):
    said = part(page, "Measured")
    measured = re.search(r"`(?:python -m benchmarks\.\w+|make \w+)`", said)
    assert measured or re.search(r"^Not measured|not measured", said), said


@pytest.mark.parametrize("page", [page for page in every_page() if rows(page)])
def test_figures_are_those_of_the_last_measurement(page):
    assert wrong_rows(page) == {}, "write them anew with `python -m tests.doc_figures`"


def test_a_figure_is_read_from_the_results():
    assert row("input", "JPEG 500x375, crop 224, flip").startswith("| `input: JPEG 500x375, crop 224, flip` | ")
    with pytest.raises(KeyError):
        row("input", "JPEG of another size")


@functools.cache
def headings_of(page: str) -> set[str]:
    """The headings of a page, as a link spells them."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}


@functools.cache
def known_tests(path: str) -> set[str]:
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}

"""Every recipe has a page with an example, its measurement or that there is none, where to read more, and tests that
are there. What is measured is what `benchmarks/results/latest.json` says."""

from __future__ import annotations

import ast
import functools
import re

from tests.doc_figures import rows, wrong_rows
from tests.doc_pages import FENCE, ROOT, every_page, text_of

PAGES = [page for page in every_page() if page.startswith("recipes/")]


def part(page: str, heading: str) -> str:
    """The text below a heading."""
    return text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()


def test_every_recipe_has_a_page_and_a_place_in_the_overview():
    assert [int(page[8:10]) for page in PAGES] == list(range(1, 31))
    assert re.findall(r"^\| \d+ \| \[.+\]\((.+)\.md\)", text_of("recipes"), flags=re.MULTILINE) == PAGES


def test_the_overview_has_the_name_of_every_page():
    overview, missing = text_of("recipes"), []
    for page in PAGES:
        number, _, name = text_of(page).partition("\n")[0].removeprefix("# ").partition(". ")
        missing += [page] if f"| {number} | [{name}]({page}.md)" not in overview else []
    assert missing == []


def problems(page: str) -> list[str]:
    """What a recipe lacks: one example, links and tests that are there, and a measurement or that there is none."""
    links = re.findall(r"\]\(\.\./([\w-]+)\.md(?:#([\w-]+))?\)", part(page, "More"))
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part(page, "Tests"))
    found = ["one example"] if len(FENCE.findall(text_of(page))) != 1 else []
    found += [] if links else ["a link"]
    found += [] if tests else ["a test"]
    found += [link for link, place in links if not text_of(link) or (place and place not in headings_of(link))]
    found += [f"{path}::{name}" for path, name in tests if name not in known_tests(path)]
    measured = re.search(r"`(?:python -m benchmarks\.\w+|make \w+)`|^Not measured|not measured", part(page, "Measured"))
    return found if measured else [*found, "a measurement"]


def test_every_recipe_has_an_example_a_page_a_test_and_its_measurement():
    found = {page: problems(page) for page in PAGES}
    assert {page: lacking for page, lacking in found.items() if lacking} == {}


def test_figures_are_those_of_the_last_measurement():
    pages = [page for page in every_page() if rows(page)]
    assert pages
    assert {page: wrong_rows(page) for page in pages if wrong_rows(page)} == {}, "run `python -m tests.doc_figures`"


@functools.cache
def headings_of(page: str) -> set[str]:
    """The headings of a page, as a link spells them."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}


@functools.cache
def known_tests(path: str) -> set[str]:
    if not (ROOT / path).is_file():
        return set()
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}

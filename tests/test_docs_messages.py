"""Every message of the troubleshooting page still stands in the source, and with the exit code that the page gives."""

from __future__ import annotations

import ast
import functools
import re

from beam_jobs import errors
from tests.doc_pages import ROOT, text_of

PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
VARIABLE = "…"  # on the page, for what changes
_ROW = re.compile(r"^\| `(?P<message>.+?)` \| (?P<code>\d) \| (?P<cause>.+?) \| (?P<remedy>.+?) \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in _ROW.finditer(text_of("troubleshooting"))]


def text_of_node(node: ast.expr) -> str:
    """The text of a string, joined parts together; what is put in is one NUL."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of_node(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of_node(node.left) + text_of_node(node.right)
    return "\0"


@functools.cache
def raised() -> tuple[tuple[str, str], ...]:
    """Name of the class and text of everything that is raised, and, without a class, of every other text."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                found += [(ast.unparse(node.func).split(".")[-1], text_of_node(argument)) for argument in node.args]
            elif isinstance(node, ast.JoinedStr):
                found.append(("", text_of_node(node)))
    return tuple(found)


def classes(message: str) -> set[str]:
    """What a message is raised as; what changes may be anything, also nothing."""
    fixed = message.replace("\\|", "|").split(VARIABLE)
    longest, pattern = max(fixed, key=len), re.compile("[^\n]*?".join(map(re.escape, fixed)))
    return {name for name, text in raised() if longest in text and pattern.search(text)}


def test_the_page_is_read():
    lines = [line for line in text_of("troubleshooting").splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines) > 80
    assert len({row["message"] for row in ROWS}) == len(ROWS)


def problem(row: dict[str, str]) -> str:
    """What is wrong with a row of the page; empty when it is right."""
    if max(map(len, row["message"].split(VARIABLE))) < 10:
        return "too little of it is fixed to be found"
    found = classes(row["message"])
    if not found:
        return "no such message is in the source"
    codes = {getattr(getattr(errors, name, None), "exit_code", 0) for name in found} - {0}
    return "" if not codes or int(row["code"]) in codes else f"it ends with one of {codes}"


def test_every_message_stands_in_the_source_and_ends_with_its_code():
    found = {row["message"]: problem(row) for row in ROWS}
    assert {message: wrong for message, wrong in found.items() if wrong} == {}

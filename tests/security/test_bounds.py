"""The table of bounds in SECURITY.md names tests that are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.security.advisories import PAGE, ROOT

TABLE = PAGE.read_text(encoding="utf-8").partition("<!-- bounds: begin -->")[2].partition("<!-- bounds: end -->")[0]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")][2:]


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip() for row in ROWS])
def test_every_bound_has_a_test(row):
    named = re.findall(r"`(tests/[^`]+)::(test_[^`]+)`", row[3])
    assert named
    assert row[1].strip()
    assert [name for path, name in named if name not in names_in(path)] == []

"""What the page of the gate says of its limits is so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from components.dataset_gate.limits import GateLimits
from components.dataset_gate.names import FACTS
from pipeline.config import build

PAGE = (Path(__file__).parents[3] / "docs" / "gates.md").read_text(encoding="utf-8")


def test_the_example_is_a_configuration():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    gate = build(yaml.safe_load(example)).gate
    assert gate.limit_of("drift", "jensen_shannon", "image/brightness") == 0.2


@pytest.mark.parametrize("field", dataclasses.fields(GateLimits), ids=lambda field: field.name)
def test_every_limit_is_listed_with_its_default(field):
    rows = [line.split("|") for line in PAGE.splitlines() if f"| `{field.name}` |" in line]
    assert rows
    for row in rows:
        default = row[3].strip().strip("`").split(" ")[0]
        if field.default is dataclasses.MISSING:
            assert default == ""
        elif isinstance(field.default, (bool, str)):
            assert default == str(field.default).lower()
        else:
            assert float(default) == field.default


def test_every_feature_is_listed():
    assert [name for name in FACTS if f"`{name}`" not in PAGE] == []

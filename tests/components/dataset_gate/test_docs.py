"""What the page of the gate says of its limits is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from components.dataset_gate.limits import FACTS, GateLimits
from pipeline.config import build

PAGE = (Path(__file__).parents[3] / "docs" / "gates.md").read_text(encoding="utf-8")


def test_the_example_is_a_configuration():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    gate = build(yaml.safe_load(example)).gate
    assert gate.limit_of("drift", "jensen_shannon", "image/brightness") == 0.2


def test_every_limit_is_listed_with_its_default():
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("|")]
    listed = {(row[2].strip(" `"), row[3].strip().strip("`").split(" ")[0]) for row in rows if len(row) > 3}
    plain = {name: value for name, value in GateLimits().to_json().items() if not name.endswith("_limits")}
    assert {name for name in GateLimits().to_json() if name not in {name for name, _ in listed}} == set()
    assert {name: default for name, default in listed if name in plain} == {
        name: str(value).lower() if isinstance(value, (bool, str)) else f"{value:g}" for name, value in plain.items()
    }


def test_every_feature_is_listed():
    assert [name for name in FACTS if f"`{name}`" not in PAGE] == []

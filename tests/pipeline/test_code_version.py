from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.command import python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def version_of(folder: Path) -> str:
    code = "from pipeline.pipeline import code_version; print(code_version())"
    return python(code, cwd=folder, check=True).stdout.strip()


def test_any_change_of_source_changes_the_version(tmp_path):
    for package in ("beam_jobs", "components", "pipeline", "trainer"):
        shutil.copytree(ROOT / package, tmp_path / package)
    before = version_of(tmp_path)
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{8}", before)
    assert version_of(tmp_path) == before
    with (tmp_path / "trainer" / "models.py").open("a") as stream:
        stream.write("# changed\n")
    assert version_of(tmp_path) != before

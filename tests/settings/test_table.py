"""Every section of `pipeline.yaml` has a file of rows, and every setting of it a row there."""

from __future__ import annotations

import importlib

import pytest

from tests.settings.table import COVERED, missing, uncovered


def test_every_section_is_covered():
    assert uncovered() == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", COVERED)
def test_every_setting_has_a_row(file: str):
    assert missing(importlib.import_module(f"tests.settings.{file}").ROWS, file) == set()

"""Every section of `pipeline.yaml` has a file of rows."""

from __future__ import annotations

from tests.settings.table import uncovered


def test_every_section_is_covered():
    assert uncovered() == set()

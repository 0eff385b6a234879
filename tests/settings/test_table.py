"""Every section of `pipeline.yaml` has a file of rows."""

from __future__ import annotations

from tests.settings.table import COVERED, documented, uncovered


def test_every_section_is_covered():
    assert uncovered() == set()


def test_the_settings_are_those_of_the_page():
    listed = [key for covered in COVERED.values() for section in covered for key in documented(section)]
    assert len(listed) == len(set(listed)) > 150
    assert {"root", "ingest.limits.max_bytes", "flink.retries", "airflow.retries", "engine.runner"} <= set(listed)

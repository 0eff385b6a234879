"""Artifact types of our own."""

from __future__ import annotations

from tfx.types.artifact import Artifact


class DatasetVerdict(Artifact):
    """What the gate decided: `verdict.json`."""

    TYPE_NAME = "DatasetVerdict"


class HtmlReport(Artifact):
    """One self-contained page: `report.html`."""

    TYPE_NAME = "HtmlReport"

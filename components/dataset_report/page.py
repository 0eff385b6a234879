"""The page itself: the templates of the report, and the words they have for numbers and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from beam_jobs.common.html import render_page
from beam_jobs.common.strings import plural
from components.dataset_report import shown

_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS: Mapping[str, Callable[..., Any]] = {
    "line": shown.text,
    "place": shown.place,
    "number": shown.number,
    "percent": shown.percent,
    "weight": shown.size,
    "plural": plural,
}


def pour(values: Mapping[str, Any]) -> str:
    """Returns the page.

    Args:
      values: what the templates name.
    """
    return render_page(_TEMPLATES, "page", values, _FILTERS)

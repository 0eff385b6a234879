"""The page itself: templates, style and script, poured into one file that may load and run nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from components.dataset_report import shown

_TEMPLATES = Path(__file__).parent / "templates"


def pour(values: Mapping[str, Any]) -> str:
    """Returns the page.

    Every name, label and reason in it comes from data, so all of it is escaped; and the content security policy lets
    the page run its own script and use its own style, both named by their hash, and load nothing.

    Args:
      values: what the templates name.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "line": shown.text,
        "place": shown.place,
        "number": shown.number,
        "percent": shown.percent,
        "weight": shown.size,
        "plural": shown.plural,
    }
    style, script = (_read(name) for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; img-src data:; style-src {_source(style)}; script-src {_source(script)}"
    own = {"style": style, "script": script, "policy": f"{policy}; base-uri 'none'; form-action 'none'"}
    return environment.get_template("page.html").render(**values, **own)


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

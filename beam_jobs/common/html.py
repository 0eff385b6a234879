"""What every HTML page has in common: one file in one look, that loads nothing and runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

_BASE = Path(__file__).parent / "templates"


def render_page(
    templates: Path, name: str, values: Mapping[str, Any], filters: Mapping[str, Callable[..., Any]] | None = None
) -> str:
    """Returns the page that a template makes of values.

    Every value comes from outside and is escaped. The content security policy names the page's own style and script by
    their hash: nothing else takes effect, and nothing is loaded.

    Args:
      templates: directory of `NAME.html`, which extends `base.html`, of `NAME.css`, which comes after what all pages
        share, and of `NAME.js` where the page has a script.
      name: of the page.
      values: what the templates name.
      filters: functions for the templates.

    Raises:
      jinja2.UndefinedError: a template names a value that is not given.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates, _BASE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters or {}
    style = _read(_BASE / "base.css") + _read(templates / f"{name}.css")
    path = templates / f"{name}.js"
    script = _read(path) if path.is_file() else ""
    policy = f"default-src 'none'; img-src data:; style-src {_source(style)}"
    policy += f"; script-src {_source(script)}" if script else ""
    own = {"style": style, "script": script, "policy": f"{policy}; base-uri 'none'; form-action 'none'"}
    return environment.get_template(f"{name}.html").render(**values, **own)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

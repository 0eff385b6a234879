"""HTML pages: self-contained files in a common style, which load nothing and run only their own script."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

_BASE = Path(__file__).parent / "templates"


def render_page(
    templates: Path,
    name: str,
    values: Mapping[str, Any],
    filters: Mapping[str, Callable[..., Any]] | None = None,
    look: str = "",
) -> str:
    """Renders the template of a page.

    Every value is escaped. The content security policy allows only the page's own style and script, by their hash:
    nothing else is applied, and nothing is loaded.

    Args:
      templates: directory with `NAME.html`, which extends `base.html`; with `LOOK.css`, which is appended to the common
        style; and with `LOOK.js` if the page has a script.
      name: name of the page.
      values: the variables of the templates.
      filters: filter functions for the templates.
      look: name of the style and the script; by default the name of the page.

    Raises:
      jinja2.UndefinedError: a template uses a variable that is not in `values`.
    """
    environment = _environment(templates)
    environment.filters |= filters or {}
    style = _read(_BASE / "base.css") + _read(templates / f"{look or name}.css")
    path = templates / f"{look or name}.js"
    script = _read(path) if path.is_file() else ""
    policy = f"default-src 'none'; img-src data:; style-src {_csp_source(style)}"
    policy += f"; script-src {_csp_source(script)}" if script else ""
    page_values = {"style": style, "script": script, "policy": f"{policy}; base-uri 'none'; form-action 'none'"}
    return environment.get_template(f"{name}.html").render(**values, **page_values)


@functools.cache  # the environment caches compiled templates
def _environment(templates: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates, _BASE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _csp_source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

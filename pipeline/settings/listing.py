"""The whole configuration for people and machines: every value with the layer it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.common import strings
from beam_jobs.common.redact import hide
from beam_jobs.common.yaml_text import one_line
from pipeline.config import TARGET_SECTIONS
from pipeline.settings.catalog import names
from pipeline.settings.layers import Settings

_COMMENT_COLUMN = 48


def text(settings: Settings) -> str:
    """Returns YAML with a comment behind each value: `default`, `file NAME`, `environment NAME` or `option NAME`.

    Secrets are left out, see `hidden.hide`.

    Raises:
      OptionError: the settings are no configuration.
    """
    return strings.lines(_lines(_nested(settings), settings.origin, ""))


def to_json(settings: Settings) -> dict[str, Any]:
    """Returns the same as plain JSON values: nested `settings`, and `origin` by dotted key.

    Raises:
      OptionError: the settings are no configuration.
    """
    values = _nested(settings)
    return {"settings": values, "origin": {key: settings.origin.get(key, "default") for key in _keys(values, "")}}


class _Section(dict[str, Any]):
    """A mapping of settings, unlike one that is the value of a setting."""


def _nested(settings: Settings) -> _Section:
    config = settings.build()
    targets = {name: _Section(hide(settings.values[name])) for name in TARGET_SECTIONS if name in settings.values}
    return _Section(_section(config, ""), **targets)


def _section(options: Any, where: str) -> _Section:
    found = _Section()
    for name in names(where):
        value = getattr(options, name, None)
        if dataclasses.is_dataclass(value):
            found[name] = _section(value, f"{where}.{name}" if where else name)
        elif hasattr(options, name) and not (name == "ingest" and value is None):
            found[name] = hide(list(value) if isinstance(value, tuple) else value)
    return found


def _keys(values: _Section, where: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, _Section):
            yield from _keys(value, f"{where}{name}.")
        else:
            yield f"{where}{name}"


def _lines(values: _Section, origin: Mapping[str, str], where: str) -> Iterator[str]:
    indent = "  " * where.count(".")
    for name, value in values.items():
        if isinstance(value, _Section):
            yield f"{indent}{name}:"
            yield from _lines(value, origin, f"{where}{name}.")
        else:
            line = f"{indent}{name}: {one_line(value)}"
            yield f"{line:<{_COMMENT_COLUMN}}  # {origin.get(f'{where}{name}', 'default')}"

"""How the values of a feature are shown."""

from __future__ import annotations

_SHOWN_CHARACTERS = 48
_SHOWN_NAME = 120


def shown_value(values: list) -> str:
    """Returns the values of a feature as a short piece of text; long and binary ones only say their length."""
    if len(values) == 1 and isinstance(values[0], bytes):
        return _shown_bytes(values[0])
    some = (_shown_bytes(value) if isinstance(value, bytes) else _shown_number(value) for value in values[:4])
    return ", ".join(some) + (f", ... ({len(values)} values)" if len(values) > 4 else "")


def shown_name(name: str) -> str:
    """Returns the name of a feature; of one that is very long, its beginning."""
    return name if len(name) <= _SHOWN_NAME else f"{name[: _SHOWN_NAME - 1]}…"


def _shown_number(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shown_bytes(value: bytes) -> str:
    if not value:
        return "<empty>"
    text = value[: 4 * _SHOWN_CHARACTERS + 1].decode("utf-8", "replace")
    if len(text) > _SHOWN_CHARACTERS or not text.isprintable():
        return f"<{len(value):,} bytes>"
    return text

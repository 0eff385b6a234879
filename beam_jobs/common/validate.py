"""The checks that options make of their values: one line with name, value and what is allowed."""

from __future__ import annotations

import math

from beam_jobs.errors import OptionError


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises `OptionError` unless the value is one of the allowed."""
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def whole(name: str, value: object, minimum: int | None = None) -> None:
    """Raises `OptionError` unless the value is an int of at least `minimum`; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        least = "" if minimum is None else f" of at least {minimum}"
        raise OptionError(f"{name} is {value!r}; it must be a whole number{least}")


def at_least(name: str, value: object, minimum: float) -> None:
    """Raises `OptionError` unless the value is a finite number of at least `minimum`."""
    if not _is_number(value) or not minimum <= value < math.inf:  # type: ignore[operator]
        raise OptionError(f"{name} is {value!r}; it must be a number of at least {minimum:g}")


def above(name: str, value: object, minimum: float) -> None:
    """Raises `OptionError` unless the value is a finite number above `minimum`."""
    if not _is_number(value) or not minimum < value < math.inf:  # type: ignore[operator]
        raise OptionError(f"{name} is {value!r}; it must be a number above {minimum:g}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

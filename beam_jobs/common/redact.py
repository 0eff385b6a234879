"""Settings and command lines with their secrets left out, for screens and logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

HIDDEN = "***"

T = TypeVar("T")

_WORDS = (
    r"(?:password|passwd|pwd|secret|token|credentials?|signature|sig|authorization"
    r"|api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|account[-_]?key)"
)
# A whole word of a name, so that `max_tokens` and `design` are none.
_NAME = rf"(?:[\w.-]*[_.-]|(?:AWS|GOOG)?){_WORDS}(?:[_.-][\w.-]*)?"
_IS_NAME = re.compile(rf"-*{_NAME}", re.IGNORECASE)
_USER = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^/?#\s@:]*:)[^/?#\s]*(?=@)", re.IGNORECASE)
_GIVEN = re.compile(rf"(?P<before>(?<![\w.-])-*{_NAME}\s*=\s*)[^&\s,;]+", re.IGNORECASE)


def hide(value: T) -> T:
    """Returns a value with `***` where it holds a password of a URL, or what stands behind the name of a secret.

    Args:
      value: text, and lists and mappings of such; anything else is returned as it is. In a list, what follows a flag
        such as `--password` is hidden too.
    """
    result: Any = value
    if isinstance(value, str):
        result = _GIVEN.sub(rf"\g<before>{HIDDEN}", _USER.sub(rf"\g<before>{HIDDEN}", value))
    elif isinstance(value, Mapping):
        result = {name: HIDDEN if _is_secret(name, item) else hide(item) for name, item in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        before = [None, *value]
        hidden = [HIDDEN if _is_flag(flag) else hide(item) for flag, item in zip(before, value, strict=False)]
        result = tuple(hidden) if isinstance(value, tuple) else hidden
    return result


def _is_secret(name: object, value: object) -> bool:
    return isinstance(value, str) and value != "" and bool(_IS_NAME.fullmatch(str(name)))


def _is_flag(value: object) -> bool:
    return isinstance(value, str) and value.startswith("-") and bool(_IS_NAME.fullmatch(value))

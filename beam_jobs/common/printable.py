"""Text out of data on its way to a terminal, a log or a page: what would move the cursor or hide is made visible.

A file may be named so that a terminal that shows the name changes its title, clears the screen or answers as if
somebody typed. So what a user reads passes through here, and every control of it appears as an escape: `\\x1b`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

# Controls of both sets, what ends a line to some readers, what turns the direction of writing, halves of surrogates.
_OTHERS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_HIDDEN = re.compile(rf"[\x00-\x08\x0b-\x1f{_OTHERS}]")
_HIDDEN_IN_LINE = re.compile(rf"[\x00-\x1f{_OTHERS}]")


def text(value: object) -> str:
    """Returns a text whose line feeds and tabs are the only controls left."""
    return _HIDDEN.sub(_escape, str(value))


def line(value: object) -> str:
    """Returns a text as one line: no control is left in it."""
    return _HIDDEN_IN_LINE.sub(_escape, str(value))


def lines(values: Iterable[object]) -> str:
    """Returns texts as lines, one each: no name in one of them can pretend to be another."""
    return "\n".join(map(line, values))


def to_json(value: Any) -> str:
    """Returns indented JSON that means the same and is printed safely; JSON itself would let some controls through."""
    import json  # here, as a worker imports this module before it has left the working directory

    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False))


class LogFormatter(logging.Formatter):
    """A formatter whose lines can be shown on a terminal, and only the first of a record begins at the margin."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, or the lines, of a record."""
        return text(super().format(record)).replace("\n", "\n  ")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

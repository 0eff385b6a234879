"""Text for a terminal, a log or a page: control characters escaped, secrets hidden, names suggested, words counted.

Control characters in a file name can make a terminal change its title, clear the screen or send input. So all text for
users is passed through this module, which shows control characters as escapes such as `\\x1b`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

# DEL and the C1 controls, Unicode line separators, characters that change the text direction, and lone surrogates.
_OTHER_CONTROLS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_OTHER_CONTROLS}]")
_CONTROLS_IN_LINE = re.compile(rf"[\x00-\x1f{_OTHER_CONTROLS}]")


def printable(value: object) -> str:
    """Returns a value as text in which all control characters except line feeds and tabs are escaped."""
    return _CONTROLS.sub(_escape, str(value))


def line(value: object) -> str:
    """Returns a value as one line of text, in which all control characters are escaped."""
    return _CONTROLS_IN_LINE.sub(_escape, str(value))


def lines(values: Iterable[object]) -> str:
    """Returns values as text, with one line for each value, as `line` returns it."""
    return "\n".join(map(line, values))


def to_json(value: Any) -> str:
    """Returns a value as indented JSON with all control characters escaped; `json.dumps` escapes only some of them."""
    import json  # not at the top: workers import this module before `leave_working_directory`

    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False))


class LogFormatter(logging.Formatter):
    """A log formatter that escapes control characters, and indents the lines after the first line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, or the lines, of a record."""
        return printable(super().format(record)).replace("\n", "\n  ")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def unknown(kind: str, name: object, known: Iterable[str], within: str = "") -> str:
    """Returns one line about an unknown name, with similar names, or all known names if these are few or not similar.

    Args:
      kind: kind of the name, such as `op`.
      name: the unknown name.
      known: all known names.
      within: prefix of the unknown name in the line, such as `train.`.
    """
    names = list(known)
    similar_names = difflib.get_close_matches(str(name), names, 3)
    text = f"there is no {kind} {f'{within}{name}'!r}"
    if similar_names and len(names) > _MAX_KNOWN:
        return f"{text}; did you mean {' or '.join(similar_names)}?"
    hint = f"did you mean {similar_names[0]}? " if similar_names else ""
    return f"{text}; {hint}known are {', '.join(names)}"


_MAX_KNOWN = 20  # largest number of known names that a line lists if there is a similar name
WARNING = "warning   "  # prefix of the warnings of an ingest


def plural(count: int, one: str, many: str = "") -> str:
    """Returns `1 image` or `1,234 images`.

    Args:
      count: number of things.
      one: singular noun.
      many: plural noun; `one` with an s when empty.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def name_list(names: Sequence[str], most: int = 8) -> str:
    """Returns `2: cat, dog`: the number of names, and the first `most` names."""
    return f"{len(names):,}: {some(names, most)}"


def some(names: Sequence[object], most: int = 8) -> str:
    """Returns `cat, dog and 3 more`: the first `most` names, and the number of all other names."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def size(count: float) -> str:
    """Returns bytes as `812 bytes`, `52.4 kB` or `3.2 MB` (1e3 and 1e6 bytes)."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return plural(round(count), "byte")


def clock_time(seconds: float) -> str:
    """Returns a duration as `2:05` or `1:02:05`."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}" if hours else f"{minutes}:{whole_seconds:02d}"


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns name, positional and named arguments of `name` or `name(1, word=2)`; arguments are Python literals.

    Raises:
      ValueError: the text does not have this form, or an argument is not a literal.
    """
    import ast  # not at the top, for the reason given in `to_json`

    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"{text!r} is not a call")
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return call.func.id, [ast.literal_eval(value) for value in call.args], named
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a call") from error


HIDDEN = "***"

T = TypeVar("T")

_WORDS = (
    r"(?:password|passwd|pwd|secret|token|credentials?|signature|sig|authorization"
    r"|api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|account[-_]?key)"
)
# Every pattern takes time proportional to the length of the text, because some values come from untrusted files.
# This pattern matches only a complete word of a name: not `max_tokens` or `design`.
_SECRET_WORD = re.compile(rf"(?:^(?:AWS|GOOG)?|[_.-]){_WORDS}(?![^_.-])", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+")
_URL_PASSWORD = re.compile(r"(?P<before>(?<![a-z0-9+.-])[a-z0-9+.-]+://[^/?#\s@:]*:)[^/?#\s]*(?=@)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)\s*=\s*(?=[^&\s,;])")
_ASSIGNED_VALUE = re.compile(r"[^&\s,;]+")


def hide_secrets(value: T) -> T:
    """Returns a value with `***` for the passwords of URLs and the values of secrets.

    Args:
      value: text, or lists and mappings of text; other values are returned unchanged. In a list, the item after a flag
        such as `--password` is hidden, too.
    """
    result: Any = value
    if isinstance(value, str):
        result = "".join(_hide_assignments(_URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", value)))
    elif isinstance(value, Mapping):
        result = {name: HIDDEN if _is_secret_item(name, item) else hide_secrets(item) for name, item in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        flags = [None, *value]
        hidden = [HIDDEN if _hides_next(flag) else hide_secrets(item) for flag, item in zip(flags, value, strict=False)]
        result = tuple(hidden) if isinstance(value, tuple) else hidden
    return result


def _hide_assignments(text: str) -> Iterator[str]:
    """Yields the pieces of a text, with `***` for each value that follows the name of a secret and `=`."""
    position = 0
    while match := _ASSIGNMENT.search(text, position):
        yield text[position : match.end()]
        position = match.end()
        if _is_secret_name(match["name"]):
            yield HIDDEN
            position = _ASSIGNED_VALUE.match(text, position).end()  # type: ignore[union-attr]
    yield text[position:]


def _is_secret_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name) and _SECRET_WORD.search(name.lstrip("-")))


def _is_secret_item(name: object, value: object) -> bool:
    return isinstance(value, str) and value != "" and _is_secret_name(str(name))


def _hides_next(value: object) -> bool:
    return isinstance(value, str) and value.startswith("-") and _is_secret_name(value)

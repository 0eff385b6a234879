"""Text for a terminal, a log or a page: control characters escaped, secrets hidden, names suggested, words counted.

A terminal that prints a file name may change its title, clear the screen or answer as if somebody typed. So all text
for users is passed through this module, which shows control characters as escapes such as `\\x1b`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

# Controls of both sets, what ends a line to some readers, what turns the direction of writing, halves of surrogates.
_OTHERS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_OTHERS}]")
_CONTROLS_IN_LINE = re.compile(rf"[\x00-\x1f{_OTHERS}]")


def printable(value: object) -> str:
    """Returns a text whose line feeds and tabs are the only controls left."""
    return _CONTROLS.sub(_escape, str(value))


def line(value: object) -> str:
    """Returns a text as one line: no control is left in it."""
    return _CONTROLS_IN_LINE.sub(_escape, str(value))


def lines(values: Iterable[object]) -> str:
    """Returns texts as lines, one each: no name in one of them can pretend to be another."""
    return "\n".join(map(line, values))


def to_json(value: Any) -> str:
    """Returns indented JSON that means the same and is printed safely; JSON itself would let some controls through."""
    import json  # here, as a worker imports this module before it has left the working directory

    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False))


class LogFormatter(logging.Formatter):
    """A formatter whose lines can be shown on a terminal, and only the first of a record begins at the margin."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, or the lines, of a record."""
        return printable(super().format(record)).replace("\n", "\n  ")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def unknown(kind: str, name: object, known: Iterable[str], within: str = "") -> str:
    """Returns one line about an unknown name: the nearest known ones, or all that are known if none is near or few are.

    Args:
      kind: what is named, such as `op`.
      name: the unknown name.
      known: what would have been right.
      within: what the names belong to, such as `train.`; shown in front of the unknown one.
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 3)
    text = f"there is no {kind} {f'{within}{name}'!r}"
    if near and len(names) > _MAX_KNOWN:
        return f"{text}; did you mean {' or '.join(near)}?"
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{text}; {hint}known are {', '.join(names)}"


_MAX_KNOWN = 20  # that a line names beside a near one


WARNING = "warning   "  # how a line of an ingest begins that is more than progress


def plural(count: int, one: str, many: str = "") -> str:
    """Returns `1 image` or `1,234 images`.

    Args:
      count: of them.
      one: what one of them is called.
      many: what several are called; `one` with an s when not given.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Returns `2: cat, dog`: how many names there are, and the first `most` of them."""
    return f"{len(names):,}: {some(names, most)}"


def some(names: Sequence[object], most: int = 8) -> str:
    """Returns `cat, dog and 3 more`: the first of the names, and how many there are beyond `most`."""
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
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns name, positional and named arguments of `name` or `name(1, word=2)`; arguments are Python literals.

    Raises:
      ValueError: the text is something else.
    """
    import ast  # here, for the same reason as above

    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"{text!r} is no call")
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        return call.func.id, [ast.literal_eval(value) for value in call.args], named
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no call") from error


HIDDEN = "***"

T = TypeVar("T")

_WORDS = (
    r"(?:password|passwd|pwd|secret|token|credentials?|signature|sig|authorization"
    r"|api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|account[-_]?key)"
)
# The time of every pattern is proportional to the length of the text: values come from files of strangers, too.
# A complete word of a name, so that `max_tokens` and `design` do not match.
_SECRET_WORD = re.compile(rf"(?:^(?:AWS|GOOG)?|[_.-]){_WORDS}(?![^_.-])", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+")
_USER = re.compile(r"(?P<before>(?<![a-z0-9+.-])[a-z0-9+.-]+://[^/?#\s@:]*:)[^/?#\s]*(?=@)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)\s*=\s*(?=[^&\s,;])")
_VALUE = re.compile(r"[^&\s,;]+")


def hide_secrets(value: T) -> T:
    """Returns a value with `***` for the passwords of URLs and the values of secrets.

    Args:
      value: text, or lists and mappings of text; anything else is returned unchanged. In a list, the item after a flag
        such as `--password` is hidden, too.
    """
    result: Any = value
    if isinstance(value, str):
        result = "".join(_hide_assignments(_USER.sub(rf"\g<before>{HIDDEN}", value)))
    elif isinstance(value, Mapping):
        result = {name: HIDDEN if _is_secret(name, item) else hide_secrets(item) for name, item in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        previous = [None, *value]
        hidden = [HIDDEN if _is_flag(flag) else hide_secrets(item) for flag, item in zip(previous, value, strict=False)]
        result = tuple(hidden) if isinstance(value, tuple) else hidden
    return result


def _hide_assignments(text: str) -> Iterator[str]:
    """Yields the pieces of a text without the values that follow the name of a secret and `=`."""
    position = 0
    while match := _ASSIGNMENT.search(text, position):
        yield text[position : match.end()]
        position = match.end()
        if _is_secret_name(match["name"]):
            yield HIDDEN
            position = _VALUE.match(text, position).end()  # type: ignore[union-attr]
    yield text[position:]


def _is_secret_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name) and _SECRET_WORD.search(name.lstrip("-")))


def _is_secret(name: object, value: object) -> bool:
    return isinstance(value, str) and value != "" and _is_secret_name(str(name))


def _is_flag(value: object) -> bool:
    return isinstance(value, str) and value.startswith("-") and _is_secret_name(value)

"""How names, numbers and places appear on the page. Nothing here escapes: the templates do."""

from __future__ import annotations

import re

from beam_jobs.common import strings

_LONGEST = 120  # characters; a name of a megabyte must not make a page of a megabyte
_ABSOLUTE = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|file:)")
_HOME = re.compile(
    r"^(?:file:/+(?=[^/]))?(?:/?home/[^/]+|/?Users/[^/]+|/?root|~[^/\\]*|[A-Za-z]:[\\/]Users[\\/][^\\/]+)(?=[\\/]|$)"
)
_PATH_IN_PROSE = re.compile(r"(?<![\w./:…\\~-])(?:file:/+|/|~|[A-Za-z]:[\\/])[^\s'\",;()]+")


def text(value: object, most: int = _LONGEST) -> str:
    """Returns a value as one line: controls made visible, absolute paths as `place` has them, a long one cut inside.

    Args:
      value: anything; its text comes from data.
      most: characters, at least 8.
    """
    # Cut first, so that a very long text is not searched to its end.
    line = str(value)
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[-(most - most // 2 - 1) :]}"
    line = _PATH_IN_PROSE.sub(lambda found: _without_owner(found[0]), line)
    return strings.line(line)


def place(value: str, most: int = _LONGEST) -> str:
    """Returns a path or uri as a line; of an absolute path, which tells whose machine it is, the last two parts."""
    return text(_without_owner(value) if _ABSOLUTE.match(value) else value, most)


def _without_owner(path: str) -> str:
    """Returns the last two parts of an absolute path, and no part that is somebody's home; a short one as it is."""
    below = _HOME.sub("", path)
    parts = [part for part in re.split(r"[\\/]+", below) if part]
    if below == path and len(parts) <= 2:
        return path
    return "/".join(["…", *parts[-2:]])


def number(value: float) -> str:
    """Returns a number with the digits a reader wants: `12,345`, `3.14`, `0.0021`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float, digits: int = 1) -> str:
    """Returns a share, 0-1, as `12.3 %`."""
    return f"{100 * share:.{digits}f} %"


def size(count: float) -> str:
    """Returns bytes as `812 bytes`, `52.4 kB` or `3.2 MB` (1e3 and 1e6 bytes)."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:,.1f} {unit}"
    return "1 byte" if count == 1 else f"{count:,.0f} bytes"

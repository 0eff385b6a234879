"""Spans and versions: which batch of data a source such as `photos/{SPAN}/v{VERSION}` means today.

A span is a numbered batch, a version a numbered edition of it. `{SPAN}` and `{VERSION}` stand for a name of a path or a
part of one, and only for digits; `{SPAN:3}` for exactly three of them. The newest span is the largest number.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from beam_jobs import errors, storage
from beam_jobs.common.strings import some
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.sources.containers import WILDCARD

_SPAN, _VERSION = "SPAN", "VERSION"
_PLACE = re.compile(r"\{(SPAN|VERSION)(:[^{}]*)?\}")
_MAX_DIGITS = 18  # ML Metadata keeps both as int64
_SHOWN = 5

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a pattern means.

    Attributes:
      source: the pattern with its numbers filled in, spelled as they were found.
      span: its number, at least 0; 0 for a source without `{SPAN}`.
      version: its number; None for a source without `{VERSION}`.
    """

    source: str
    span: int
    version: int | None = None


@dataclass(frozen=True)
class _Match:
    """One span and version that is there: the names of the path, and its numbers as they are spelled."""

    names: Names
    span: str
    version: str | None


@dataclass(frozen=True)
class _Pattern:
    """A pattern in three pieces: `stem` + `names` + `rest`.

    Attributes:
      stem: what stands before the first name with a place, with its slash.
      names: the names from there to the last one that must be there as it is written.
      rest: wildcards that follow, with their slash.
    """

    stem: str
    names: Names
    rest: str

    @property
    def base(self) -> str:
        """Directory that is listed."""
        return (self.stem.rstrip("/") or "/") if self.stem else "."


def has_span(source: str) -> bool:
    """Returns whether a source leaves its span or version open."""
    return bool(_PLACE.search(source))


def check(pattern: str, span: int | None = None, version: int | None = None) -> None:
    """Checks a pattern, and a span and version that are asked for, without looking at any directory.

    Raises:
      OptionError: the pattern cannot be followed, or has no place for what is asked for.
    """
    for name, value in (("span", span), ("version", version)):
        if value is None:
            continue
        errors.check_whole(name, value, 0)
        if name.upper() not in _places(pattern):
            raise OptionError(f"{name} is {value}, but the source {pattern} has no {{{name.upper()}}} to put it in")
    if has_span(pattern):
        _check_places(pattern)
        _parse(pattern)


def resolve(pattern: str, span: int | None = None, version: int | None = None) -> Resolved:
    """Returns what a source means now; every call looks again.

    Example:
      resolve("photos/{SPAN}/v{VERSION}")  # Resolved(source="photos/007/v2", span=7, version=2)

    Args:
      pattern: a source, local or remote. One without `{SPAN}` is returned as it is.
      span: the span that is wanted; the newest when None.
      version: the version of it that is wanted; its newest when None.

    Raises:
      OptionError: the pattern cannot be followed, or has no place for what is asked for.
      SourceError: there is no such span or version, or two directories mean the same one.
    """
    check(pattern, span, version)
    if not has_span(pattern):
        return Resolved(source=pattern, span=0)
    parsed = _parse(pattern)
    matches = list(_matches(parsed))
    if not matches:
        raise SourceError(f"{pattern} matches nothing; {_seen(parsed.base)}")
    number, matches = _choose(pattern, "span", span, [(match.span, match) for match in matches])
    chosen = matches[0]
    edition = None
    if chosen.version is not None:
        spelled = [(match.version or "", match) for match in matches]
        edition, (chosen, *_) = _choose(f"span {number} of {pattern}", "version", version, spelled)
    return Resolved(source=parsed.stem + "/".join(chosen.names) + parsed.rest, span=number, version=edition)


def resolve_options(options: IngestOptions, span: int | None = None, version: int | None = None) -> IngestOptions:
    """Returns the options with the source that theirs means now; see `resolve`.

    Raises:
      OptionError: the source cannot be followed, or has no place for what is asked for.
      SourceError: there is no such span or version.
    """
    return dataclasses.replace(options, source=resolve(options.source, span, version).source)


def _places(pattern: str) -> list[str]:
    return [place[1] for place in _PLACE.finditer(pattern)]


def _check_places(pattern: str) -> None:
    places = _places(pattern)
    for name in (_SPAN, _VERSION):
        if places.count(name) > 1:
            raise OptionError(f"the source {pattern} has {{{name}}} twice; it must stand in one place")
    if _SPAN not in places:
        raise OptionError(f"the source {pattern} has {{VERSION}} without {{SPAN}}; a version is one of a span")
    for place in _PLACE.finditer(pattern):
        width = (place[2] or ":1")[1:]
        if not re.fullmatch("[0-9]{1,2}", width) or not 1 <= int(width) <= _MAX_DIGITS:
            raise OptionError(f"the source {pattern} has {place[0]}; the width must be from 1 to {_MAX_DIGITS} digits")
    if re.search(r"\{(SPAN|VERSION)\}\{(SPAN|VERSION)\}", pattern):
        raise OptionError(
            f"the source {pattern} does not say where one number ends; part them, as in {{SPAN}}-{{VERSION}}"
        )


def _parse(pattern: str) -> _Pattern:
    names = pattern.rstrip("/").split("/")
    open_ones = [index for index, name in enumerate(names) if _PLACE.search(name)]
    first, last = open_ones[0], open_ones[-1]
    if storage.is_remote(pattern) and first < len(("s3:", "", "bucket")):
        raise OptionError(f"the source {pattern} has {{SPAN}} in the name of its bucket; put it behind that")
    stem = "".join(f"{name}/" for name in names[:first])
    wild = [index for index, name in enumerate(names) if WILDCARD.search(_PLACE.sub("", name))]
    # A directory may be called `photos[1]`, so that what is there as it is written is no wildcard.
    if any(first <= index <= last for index in wild) or (wild and wild[0] < first and not os.path.isdir(stem)):
        raise OptionError(
            f"the source {pattern} has a wildcard before or beside {{SPAN}} or {{VERSION}}; it may only follow in a "
            "name of its own, as in photos/{SPAN}/*/*.jpg"
        )
    fixed = min((index for index in wild if index > last), default=len(names))
    rest = pattern.split("/", fixed)[-1] if fixed < len(names) else ""
    return _Pattern(stem, tuple(name for name in names[first:fixed] if name), f"/{rest}" if rest else "")


def _matches(pattern: _Pattern) -> Iterator[_Match]:
    """Yields what is there and matches, in no order."""
    expression = re.compile("/".join(map(_expression, pattern.names)))
    try:
        for names in _remote(pattern) if storage.is_remote(pattern.base) else _local(pattern.base, pattern.names):
            if found := expression.fullmatch("/".join(names)):
                yield _Match(names, found[_SPAN], found.groupdict().get(_VERSION))
    except OSError as error:
        raise SourceError(f"{pattern.base} cannot be listed: {error.strerror or error}") from error


def _expression(name: str) -> str:
    """Returns the regular expression of a name; its groups are called as the places."""
    parts, end = [], 0
    for place in _PLACE.finditer(name):
        width = place[2][1:] if place[2] else f"1,{_MAX_DIGITS}"
        parts += [re.escape(name[end : place.start()]), f"(?P<{place[1]}>[0-9]{{{width}}})"]
        end = place.end()
    return "".join(parts) + re.escape(name[end:])


def _local(directory: str, wanted: Names) -> Iterator[Names]:
    """Yields the names below a directory that fit, one a level, entering only where a match can lie."""
    if not wanted:
        yield ()
    elif os.path.isdir(directory):
        for name in _fitting(directory, wanted[0]):
            yield from ((name, *below) for below in _local(os.path.join(directory, name), wanted[1:]))


def _fitting(directory: str, wanted: str) -> list[str]:
    if not has_span(wanted):
        return [wanted] if os.path.exists(os.path.join(directory, wanted)) else []
    return [name for name in os.listdir(directory) if re.fullmatch(_expression(wanted), name)]


def _remote(pattern: _Pattern) -> Iterable[Names]:
    # Object stores have no folders: what lies at a depth shows in the names of the objects below it.
    return {tuple(path.split("/")[: len(pattern.names)]) for path, _, _ in storage.walk_files(pattern.base)}


def _choose(whose: str, what: str, wanted: int | None, spelled: list[tuple[str, _Match]]) -> tuple[int, list[_Match]]:
    """Returns the wanted number, or the largest one, and its matches."""
    numbers = sorted({int(text) for text, _ in spelled}, reverse=True)
    number = numbers[0] if wanted is None else wanted
    if number not in numbers:
        raise SourceError(f"{whose} has no {what} {wanted}; it has {some(numbers, _SHOWN)}")
    texts = sorted({text for text, _ in spelled if int(text) == number})
    if len(texts) > 1:
        raise SourceError(f"{whose}: {' and '.join(texts)} both mean {what} {number}; keep one of them")
    return number, [match for text, match in spelled if text == texts[0]]


def _seen(base: str) -> str:
    """Returns what there is in the place of a span."""
    if not storage.is_remote(base) and not os.path.isdir(base):
        return f"there is no directory {base}"
    names = sorted({*storage.list_dirs(base), *storage.list_files(base)})
    return f"{base} holds {some(names, _SHOWN) if names else 'nothing'}"

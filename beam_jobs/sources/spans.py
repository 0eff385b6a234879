"""Spans and versions: resolves a source such as `photos/{SPAN}/v{VERSION}` to a batch of data.

A span is a numbered batch, a version a numbered edition of it. `{SPAN}` and `{VERSION}` match digits in a name of a
path; `{SPAN:3}` matches exactly three digits. The newest span is the one with the largest number.
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
_PLACEHOLDER = re.compile(r"\{(SPAN|VERSION)(:[^{}]*)?\}")
_MAX_DIGITS = 18  # ML Metadata stores both numbers as int64
_MAX_SHOWN = 5

Names = tuple[str, ...]  # the names in a path, between its slashes


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A pattern resolved to a source.

    Attributes:
      source: the pattern with the digits of the path, including leading zeros.
      span: number of the span, at least 0; 0 for a source without `{SPAN}`.
      version: number of the version; None for a source without `{VERSION}`.
    """

    source: str
    span: int
    version: int | None = None


@dataclass(frozen=True)
class _Match:
    """An existing span and version: the names in its path, and the digits of span and version."""

    names: Names
    span: str
    version: str | None


@dataclass(frozen=True)
class _Pattern:
    """A pattern in three parts: `stem` + `names` + `wildcards`.

    Attributes:
      stem: the path before the first name with a placeholder, with its slash.
      names: the names in the path from the first placeholder to the last name without a wildcard.
      wildcards: the path after `names`, with wildcards and a leading slash; empty for none.
    """

    stem: str
    names: Names
    wildcards: str

    @property
    def base(self) -> str:
        """Directory to search for spans."""
        return (self.stem.rstrip("/") or "/") if self.stem else "."


def has_span(source: str) -> bool:
    """Returns whether a source has a placeholder for a span or version."""
    return bool(_PLACEHOLDER.search(source))


def check(pattern: str, span: int | None = None, version: int | None = None) -> None:
    """Checks a pattern, and a requested span and version, without access to a directory.

    Raises:
      OptionError: the pattern is not valid, or has no placeholder for a requested number.
    """
    for name, value in (("span", span), ("version", version)):
        if value is None:
            continue
        errors.check_whole(name, value, 0)
        if name.upper() not in _placeholders(pattern):
            raise OptionError(f"{name} is {value}, but the source {pattern} has no {{{name.upper()}}} to put it in")
    if has_span(pattern):
        _check_placeholders(pattern)
        _parse(pattern)


def resolve(pattern: str, span: int | None = None, version: int | None = None) -> Resolved:
    """Resolves a source against its directory, which is listed again in every call.

    Example:
      resolve("photos/{SPAN}/v{VERSION}")  # Resolved(source="photos/007/v2", span=7, version=2)

    Args:
      pattern: a source, local or remote. A source without `{SPAN}` is returned unchanged.
      span: number of the span; None for the newest.
      version: number of the version of the span; None for the newest.

    Raises:
      OptionError: the pattern is not valid, or has no placeholder for a requested number.
      SourceError: the span or version does not exist, or two directories have the same number.
    """
    check(pattern, span, version)
    if not has_span(pattern):
        return Resolved(source=pattern, span=0)
    parsed = _parse(pattern)
    matches = list(_find_matches(parsed))
    if not matches:
        raise SourceError(f"{pattern} matches nothing; {_describe_contents(parsed.base)}")
    number, matches = _choose(pattern, "span", span, [(item.span, item) for item in matches])
    match = matches[0]
    version_number = None
    if match.version is not None:
        versions = [(item.version or "", item) for item in matches]
        version_number, (match, *_) = _choose(f"span {number} of {pattern}", "version", version, versions)
    return Resolved(source=parsed.stem + "/".join(match.names) + parsed.wildcards, span=number, version=version_number)


def resolve_options(options: IngestOptions, span: int | None = None, version: int | None = None) -> IngestOptions:
    """Returns the options with their source resolved; see `resolve`.

    Raises:
      OptionError: the source is not valid, or has no placeholder for a requested number.
      SourceError: the span or version does not exist.
    """
    return dataclasses.replace(options, source=resolve(options.source, span, version).source)


def _placeholders(pattern: str) -> list[str]:
    return [placeholder[1] for placeholder in _PLACEHOLDER.finditer(pattern)]


def _check_placeholders(pattern: str) -> None:
    placeholders = _placeholders(pattern)
    for name in (_SPAN, _VERSION):
        if placeholders.count(name) > 1:
            raise OptionError(f"the source {pattern} has {{{name}}} twice; it may occur only once")
    if _SPAN not in placeholders:
        raise OptionError(f"the source {pattern} has {{VERSION}} without {{SPAN}}; a version needs a span")
    for match in _PLACEHOLDER.finditer(pattern):
        width = (match[2] or ":1")[1:]
        if not re.fullmatch("[0-9]{1,2}", width) or not 1 <= int(width) <= _MAX_DIGITS:
            raise OptionError(f"the source {pattern} has {match[0]}; the width must be from 1 to {_MAX_DIGITS} digits")
    if re.search(r"\{(SPAN|VERSION)\}\{(SPAN|VERSION)\}", pattern):
        raise OptionError(
            f"the source {pattern} has two numbers without a separator; separate them, as in {{SPAN}}-{{VERSION}}"
        )


def _parse(pattern: str) -> _Pattern:
    names = pattern.rstrip("/").split("/")
    placeholder_indices = [index for index, name in enumerate(names) if _PLACEHOLDER.search(name)]
    first, last = placeholder_indices[0], placeholder_indices[-1]
    if storage.is_remote(pattern) and first < len(("s3:", "", "bucket")):
        raise OptionError(f"the source {pattern} has {{SPAN}} in the name of its bucket; put it after the bucket")
    stem = "".join(f"{name}/" for name in names[:first])
    wildcard_indices = [index for index, name in enumerate(names) if WILDCARD.search(_PLACEHOLDER.sub("", name))]
    # A directory may be named `photos[1]`, so a name in an existing path is not a wildcard.
    is_wildcard_before = wildcard_indices and wildcard_indices[0] < first and not os.path.isdir(stem)
    if is_wildcard_before or any(first <= index <= last for index in wildcard_indices):
        raise OptionError(
            f"the source {pattern} has a wildcard before or beside {{SPAN}} or {{VERSION}}; wildcards may only be in "
            "later names of the path, as in photos/{SPAN}/*/*.jpg"
        )
    end = min((index for index in wildcard_indices if index > last), default=len(names))
    suffix = pattern.split("/", end)[-1] if end < len(names) else ""
    return _Pattern(stem, tuple(name for name in names[first:end] if name), f"/{suffix}" if suffix else "")


def _find_matches(pattern: _Pattern) -> Iterator[_Match]:
    """Yields the existing spans and versions, unsorted."""
    expression = re.compile("/".join(map(_name_expression, pattern.names)))
    with errors.os_errors_as(SourceError, f"{pattern.base} cannot be listed"):
        for names in _remote(pattern) if storage.is_remote(pattern.base) else _local(pattern.base, pattern.names):
            if match := expression.fullmatch("/".join(names)):
                yield _Match(names, match[_SPAN], match.groupdict().get(_VERSION))


def _name_expression(name: str) -> str:
    """Returns the regular expression of a name; its groups are named after the placeholders."""
    parts, end = [], 0
    for placeholder in _PLACEHOLDER.finditer(name):
        width = placeholder[2][1:] if placeholder[2] else f"1,{_MAX_DIGITS}"
        parts += [re.escape(name[end : placeholder.start()]), f"(?P<{placeholder[1]}>[0-9]{{{width}}})"]
        end = placeholder.end()
    return "".join(parts) + re.escape(name[end:])


def _local(directory: str, patterns: Names) -> Iterator[Names]:
    """Yields the matching paths below a directory, as names; only directories that match so far are entered."""
    if not patterns:
        yield ()
    elif os.path.isdir(directory):
        for name in _matching_names(directory, patterns[0]):
            yield from ((name, *subpath) for subpath in _local(os.path.join(directory, name), patterns[1:]))


def _matching_names(directory: str, pattern: str) -> list[str]:
    if not has_span(pattern):
        return [pattern] if os.path.exists(os.path.join(directory, pattern)) else []
    return [name for name in os.listdir(directory) if re.fullmatch(_name_expression(pattern), name)]


def _remote(pattern: _Pattern) -> Iterable[Names]:
    # Object stores have no folders: the names of folders are parts of the names of objects.
    return {tuple(path.split("/")[: len(pattern.names)]) for path, *_ in storage.list_objects(pattern.base)}


def _choose(owner: str, kind: str, value: int | None, matches: list[tuple[str, _Match]]) -> tuple[int, list[_Match]]:
    """Returns the requested number `value`, by default the largest, and its matches, given the digits of each match."""
    numbers = sorted({int(text) for text, _ in matches}, reverse=True)
    number = numbers[0] if value is None else value
    if number not in numbers:
        raise SourceError(f"{owner} has no {kind} {value}; it has {some(numbers, _MAX_SHOWN)}")
    spellings = sorted({text for text, _ in matches if int(text) == number})
    if len(spellings) > 1:
        raise SourceError(f"{owner}: {' and '.join(spellings)} both mean {kind} {number}; keep one of them")
    return number, [match for text, match in matches if text == spellings[0]]


def _describe_contents(base: str) -> str:
    if not storage.is_remote(base) and not os.path.isdir(base):
        return f"there is no directory {base}"
    names = sorted({*storage.list_dirs(base), *storage.list_files(base)})
    return f"{base} holds {some(names, _MAX_SHOWN) if names else 'nothing'}"

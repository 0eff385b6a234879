"""Paths of sources: their kind, and container files, found by path, pattern or directory and opened unpacked."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from beam_jobs import storage
from beam_jobs.common.strings import size as describe_size
from beam_jobs.errors import OptionError, SourceError, os_errors_as
from beam_jobs.sources.base import OnHidden, ignore, is_hidden, printable
from beam_jobs.storage import decompress

# Base of images that are not separate files, so that sources do not search for such files.
NO_FILES = "container://"

_MAX_BRACED = 1_000_000
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
WILDCARD = re.compile(r"[*?\[{]")
_HIDDEN = (".", "_")  # a Beam or Spark job writes `_SUCCESS` and similar files beside its output


@dataclass(frozen=True, kw_only=True)
class Container:
    """A file that holds images.

    Attributes:
      path: path of the file, local or remote.
      name: path relative to the base of the source, with `/`.
    """

    path: str
    name: str


@dataclass(frozen=True, kw_only=True)
class OpenContainer:
    """An open container.

    Attributes:
      stream: seekable stream of the unpacked bytes.
      bytes: size of the unpacked bytes.
      compression: compression of the file; see `Slice.compression`.
      mtime_ns: modification time of the file, in nanoseconds since the epoch.
    """

    stream: BinaryIO
    bytes: int
    compression: str
    mtime_ns: int


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern, and not an existing file whose name looks like one."""
    return bool(WILDCARD.search(path)) and (storage.is_remote(path) or not os.path.lexists(path))


def is_directory(path: str) -> bool:
    """Returns whether a path is a directory; in object stores, which have none, whether no file has that name."""
    if is_pattern(path):
        return False
    return not storage.exists(path) if storage.is_remote(path) else os.path.isdir(path)


def base_directory(path: str) -> str:
    """Returns the directory that the names of a path or pattern are relative to."""
    fixed = path[: WILDCARD.search(path).start()] if is_pattern(path) else path  # type: ignore[union-attr]
    directory, separator, _ = fixed.rpartition("/")
    return directory or separator or "."


def find(path: str, on_hidden: OnHidden = ignore) -> list[Container]:
    """Returns the files that a path or pattern names, sorted, each once.

    Patterns know `*`, `?`, `[ab]`, `**` for any depth, and the braces of `{000..012}` and `{train,val}`.

    Args:
      path: path of a file, or a pattern.
      on_hidden: called with each path that the pattern would match, or enter, if it were not hidden.

    Raises:
      SourceError: a file is missing, or the pattern matches none.
    """
    if not is_pattern(path):
        return [container_at(path, base_directory(path))]
    base = base_directory(path)
    found: set[str] = set()
    hidden: set[str] = set()
    for pattern in braced(path):
        with os_errors_as(SourceError, f"{pattern} cannot be read"):
            matched = list(_matches(pattern, hidden.add)) if WILDCARD.search(pattern) else [pattern]
        if not matched:
            raise SourceError(f"{pattern} matches no file; correct the pattern")
        found.update(matched)
    _report(hidden, base, on_hidden)
    return [container_at(name, base) for name in sorted(found)]


def container_at(path: str, base: str) -> Container:
    """Returns a file as a container.

    Args:
      path: path of the file; only local files are examined.
      base: directory that its name is relative to.

    Raises:
      SourceError: the file is missing or not a regular file, or its name is not UTF-8.
    """
    name = _relative(path, base)
    if printable(name) != name:
        raise SourceError(f"{printable(path)} has a name that is not UTF-8; rename it")
    if not storage.is_remote(path):
        _check_regular(path)
    return Container(path=path, name=name)


def below(directory: str, on_hidden: OnHidden = ignore) -> list[Container]:
    """Returns all files below a directory, sorted; names that start with `.` or `_` are skipped.

    Args:
      directory: path of the directory, local or remote.
      on_hidden: called with each path that is skipped.

    Raises:
      SourceError: the directory holds no such file.
    """
    hidden: set[str] = set()
    with os_errors_as(SourceError, f"{directory} cannot be read"):
        found = [container_at(name, directory) for name in _files_below(directory, hidden.add)]
    if not found:
        raise SourceError(f"{directory} holds no file; give a directory of TFRecord files")
    _report(hidden, directory, on_hidden)
    return sorted(found, key=lambda container: container.name)


def braced(pattern: str) -> list[str]:
    """Returns a pattern with its braces expanded: `{08..11}` is a range, padded as written; `{a,b}` a list.

    Raises:
      SourceError: the braces expand to more than a million paths.
    """
    parts = _BRACES.split(pattern)  # literal, inside of the innermost braces, literal, ...
    if len(parts) == 1:
        return [pattern]
    choices = [_choices(part) if index % 2 else [part] for index, part in enumerate(parts)]
    count = math.prod(map(len, choices))
    if count > _MAX_BRACED:
        raise SourceError(f"{pattern} stands for {count} files; at most {_MAX_BRACED} can be given")
    found = itertools.chain.from_iterable(braced("".join(parts)) for parts in itertools.product(*choices))
    return list(dict.fromkeys(found))


MAX_COMPRESSED_BYTES = 1 << 30  # of a source on a cluster


def check_for_workers(found: Iterable[Container], detect_compression: Callable[[Container], str]) -> None:
    """Checks that the files of a source are not too large to be unpacked by every worker process of a cluster.

    Args:
      found: files of the source.
      detect_compression: returns the compression of a file; see `Slice.compression`.

    Raises:
      OptionError: the compressed files have more than `MAX_COMPRESSED_BYTES`.
      SourceError: a file cannot be read.
    """
    total = 0
    for container in found:
        if detect_compression(container):
            with os_errors_as(SourceError, f"{container.path} cannot be read"):
                total += decompress.read_size_and_mtime(container.path)[0]
        if total > MAX_COMPRESSED_BYTES:
            raise OptionError(
                f"{container.path} is compressed, and with it the compressed files have {describe_size(total)}; on a "
                f"cluster every worker process unpacks them, so at most {describe_size(MAX_COMPRESSED_BYTES)} are "
                "allowed; decompress them first (`zcat a.tar.gz > a.tar`): JPEG and PNG hardly shrink, and of a plain "
                "file workers read only their images"
            )


@contextlib.contextmanager
def open_container(container: Container, compression: str) -> Iterator[OpenContainer]:
    """Opens a container, unpacked; for its compression see `Slice.compression`.

    Raises:
      SourceError: the file cannot be read or unpacked.
    """
    with os_errors_as(SourceError, f"{container.path} cannot be read"):
        size, mtime_ns = decompress.read_size_and_mtime(container.path)
        path = decompress.decompressed_path(container.path, compression) if compression else container.path
        stream = storage.open_read(path)
    with stream:
        unpacked = os.stat(path).st_size if compression else size
        yield OpenContainer(stream=stream, bytes=unpacked, compression=compression, mtime_ns=mtime_ns)


def read_head(container: Container, length: int = 10) -> bytes:
    """Returns the first `length` bytes of a file.

    Raises:
      SourceError: the file cannot be read.
    """
    with os_errors_as(SourceError, f"{container.path} cannot be read"), storage.open_read(container.path) as stream:
        return stream.read(length)


def _choices(inside: str) -> list[str]:
    counted = _RANGE.fullmatch(inside)
    if not counted:
        return inside.split(",")
    first, last = (int(number) for number in counted.groups())
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    if len(numbers) > _MAX_BRACED:
        raise SourceError(f"{{{inside}}} stands for {len(numbers)} files; at most {_MAX_BRACED} can be given")
    return [str(number).zfill(len(counted[1])) for number in numbers]


def _relative(path: str, base: str) -> str:
    folder = base.rstrip("/") + "/"
    return path.removeprefix(folder).lstrip("/") if path.startswith(folder) else path


def _report(hidden: set[str], base: str, on_hidden: OnHidden) -> None:
    for path in sorted(hidden):
        on_hidden(_relative(path, base))


def _matches(pattern: str, on_hidden: OnHidden) -> Iterator[str]:
    base = base_directory(pattern)
    below = pattern.removeprefix("./") if base == "." else pattern.removeprefix(base).lstrip("/")
    return _walk(base, below.split("/"), on_hidden)


def _walk(directory: str, parts: list[str], on_hidden: OnHidden) -> Iterator[str]:
    part, *rest = parts
    if part == "**":
        yield from _walk(directory, rest or ["*"], on_hidden)
        for folder in _subdirectories(directory, on_hidden):
            yield from _walk(folder, parts, on_hidden)
        return
    for name in storage.list_dirs(directory) if rest else storage.list_files(directory):
        path = storage.join(directory, name)
        if not _matches_pattern(name, part):
            continue
        if name.startswith(".") and not part.startswith("."):
            on_hidden(path + "/" * bool(rest))
        elif rest:
            yield from _walk(path, rest, on_hidden)
        else:
            yield path


def _files_below(directory: str, on_hidden: OnHidden) -> Iterator[str]:
    for name in storage.list_files(directory):
        if name.startswith(_HIDDEN):
            on_hidden(storage.join(directory, name))
        else:
            yield storage.join(directory, name)
    for folder in _subdirectories(directory, on_hidden):
        yield from _files_below(folder, on_hidden)


def _subdirectories(directory: str, on_hidden: OnHidden) -> Iterator[str]:
    """Yields the visible subdirectories; links are skipped, because they may lead back to a parent directory."""
    for name in storage.list_dirs(directory):
        path = storage.join(directory, name)
        if name.startswith(_HIDDEN):
            on_hidden(f"{path}/")
        elif not os.path.islink(path):
            yield path


def _check_regular(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from error
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise SourceError(f"{path} is {kind}; give a file, or a pattern such as {path.rstrip('/')}/*.tar")


State = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Pattern:
    """A pattern of paths below a directory, matched name by name.

    A state holds the position in each alternative that matches so far; so a tree is walked once, and only directories
    that may contain a match are entered. Hidden names match only parts that start with a dot.

    Attributes:
      alternatives: the parts of each expansion of the braces.
    """

    alternatives: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parses a pattern relative to the directory; a final slash or `**` matches all files there.

        Raises:
          SourceError: the braces expand to too many paths.
        """
        return cls(tuple(_parts(alternative) for alternative in braced(text)))

    def start(self) -> State:
        """Returns the state in the directory itself."""
        return self._skip_double_stars({(alternative, 0) for alternative in range(len(self.alternatives))})

    def enter(self, state: State, folder: str) -> State:
        """Returns the state in a subfolder; empty when nothing below it can match."""
        next_state = set()
        for alternative, index in state:
            part = self.alternatives[alternative][index]
            if part == "**":
                if not is_hidden(folder):
                    next_state.add((alternative, index))
            elif index + 1 < len(self.alternatives[alternative]) and _fits(folder, part):
                next_state.add((alternative, index + 1))
        return self._skip_double_stars(next_state)

    def holds(self, state: State, name: str) -> bool:
        """Returns whether a file of the directory matches."""
        for alternative, index in state:
            parts = self.alternatives[alternative]
            if index + 1 == len(parts) and _fits(name, parts[index]):
                return True
        return False

    def matches(self, folders: list[str], name: str) -> bool:
        """Returns whether a file matches, given the folders of its path."""
        state = self.start()
        for folder in folders:
            state = self.enter(state, folder)
            if not state:
                return False
        return self.holds(state, name)

    def hides(self, state: State, name: str, *, folder: bool) -> bool:
        """Returns whether a file would match, or a folder be entered, if its name were not hidden."""
        for alternative, index in state if is_hidden(name) else ():
            part, is_last = self.alternatives[alternative][index], index + 1 == len(self.alternatives[alternative])
            if (folder and part == "**") or (folder != is_last and _matches_pattern(name, part)):
                return True
        return False

    def hidden_part(self, folders: list[str], name: str) -> str:
        """Returns a path up to the hidden name that prevents a match, a folder with `/`; empty for other paths."""
        state = self.start()
        for depth, folder in enumerate(folders, 1):
            next_state = self.enter(state, folder)
            if not next_state:
                return "/".join([*folders[:depth], ""]) if self.hides(state, folder, folder=True) else ""
            state = next_state
        is_visible = self.holds(state, name) or not self.hides(state, name, folder=False)
        return "" if is_visible else "/".join([*folders, name])

    def _skip_double_stars(self, state: set[tuple[int, int]]) -> State:
        """Adds the states in which `**` matches no folder; `**` is never the last part."""
        added = state
        while added := {
            (alternative, index + 1) for alternative, index in added if self.alternatives[alternative][index] == "**"
        }:
            state |= added
        return frozenset(state)


def _parts(text: str) -> tuple[str, ...]:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.endswith("/") or not parts or parts[-1] == "**":
        parts.append("*")
    return tuple(parts)


def _fits(name: str, part: str) -> bool:
    return _matches_pattern(name, part) and (not is_hidden(name) or part.startswith("."))


def _matches_pattern(name: str, part: str) -> bool:
    return part == "*" or bool(_compiled(part)(name))


@functools.lru_cache(maxsize=4096)
def _compiled(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match


EVERYTHING = Pattern((("**", "*"),))


_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".json": "coco",
    **dict.fromkeys(_TAR_SUFFIXES, "tar"),
    ".zip": "zip",
    ".tfrecord": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    ".tfrecords": "tfrecord",
}


def guess_kind(path: str) -> str:
    """Returns the kind of a source, detected by its name and by what the path is on disk.

    Raises:
      SourceError: the path does not exist, or is not a source.
    """
    if os.path.isdir(path):
        return "tfds" if os.path.isfile(os.path.join(path, "features.json")) else "folder"
    kind = _kind_by_suffix(path)
    if kind and (storage.is_remote(path) or os.path.isfile(path) or WILDCARD.search(path)):
        return kind
    if WILDCARD.search(path):
        return "glob"
    if storage.is_remote(path):
        return "folder"
    expected = f"a folder with one sub-folder per class, a glob, or a file that ends in {', '.join(_SUFFIXES)}"
    if not os.path.isfile(path):
        raise SourceError(f"{path} does not exist; give {expected}")
    raise SourceError(f"{path} is not a source; give {expected}")


def _kind_by_suffix(path: str) -> str:
    """Returns the kind for the suffix of a name, without `-00000-of-00016`; empty for an unknown suffix."""
    name = path.rpartition("/")[2].lower()
    stem = name.partition("-of-")[0].rpartition("-")[0] if "-of-" in name else name
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix) or (kind == "tfrecord" and stem.endswith(suffix)):
            return kind
    return ""

"""Detects the kind of a source; lists container files by path, pattern or directory, and opens them decompressed."""

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

# The `base` of images that are not separate files, so that no files are searched for.
NO_FILES = "container://"

_MAX_PATHS = 1_000_000  # paths that the braces of a pattern may expand to
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
WILDCARD = re.compile(r"[*?\[{]")
_HIDDEN_PREFIXES = (".", "_")  # a Beam or Spark job writes `_SUCCESS` and similar files beside its output


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
      bytes: number of the unpacked bytes.
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
    fixed_part = path[: WILDCARD.search(path).start()] if is_pattern(path) else path  # type: ignore[union-attr]
    directory, separator, _ = fixed_part.rpartition("/")
    return directory or separator or "."


def find(path: str, on_hidden: OnHidden = ignore) -> list[Container]:
    """Returns the file of a path, or the files that match a pattern, sorted, each once.

    A pattern may contain `*`, `?`, `[ab]`, `**` for any depth, and braces as in `{000..012}` and `{train,val}`.

    Args:
      path: path of a file, or a pattern.
      on_hidden: called with each path that the pattern would match, or enter, if it were not hidden.

    Raises:
      SourceError: a file is missing, or the pattern matches none.
    """
    if not is_pattern(path):
        return [container_at(path, base_directory(path))]
    base = base_directory(path)
    paths: set[str] = set()
    hidden_paths: set[str] = set()
    for pattern in expand_braces(path):
        with os_errors_as(SourceError, f"{pattern} cannot be read"):
            matches = list(_matching_files(pattern, hidden_paths.add)) if WILDCARD.search(pattern) else [pattern]
        if not matches:
            raise SourceError(f"{pattern} matches no file; correct the pattern")
        paths.update(matches)
    _report_hidden(hidden_paths, base, on_hidden)
    return [container_at(match, base) for match in sorted(paths)]


def container_at(path: str, base: str) -> Container:
    """Returns a file as a container.

    Args:
      path: path of the file; only local files are examined.
      base: directory that the name of the container is relative to.

    Raises:
      SourceError: the file is missing or not a regular file, or its name is not UTF-8.
    """
    name = _relative(path, base)
    if printable(name) != name:
        raise SourceError(f"{printable(path)} has a name that is not UTF-8; rename it")
    if not storage.is_remote(path):
        _check_regular(path)
    return Container(path=path, name=name)


def list_below(directory: str, on_hidden: OnHidden = ignore) -> list[Container]:
    """Returns all files below a directory, sorted; files and folders whose names start with `.` or `_` are skipped.

    Args:
      directory: path of the directory, local or remote.
      on_hidden: called with each path that is skipped.

    Raises:
      SourceError: the directory holds no file that is not skipped.
    """
    hidden_paths: set[str] = set()
    with os_errors_as(SourceError, f"{directory} cannot be read"):
        files = [container_at(path, directory) for path in _files_below(directory, hidden_paths.add)]
    if not files:
        raise SourceError(f"{directory} holds no file; give a directory of TFRecord files")
    _report_hidden(hidden_paths, directory, on_hidden)
    return sorted(files, key=lambda container: container.name)


def expand_braces(pattern: str) -> list[str]:
    """Returns the expansions of a pattern: `{08..11}` is a range, with leading zeros as written; `{a,b}` is a list.

    Raises:
      SourceError: the braces expand to more than a million paths.
    """
    parts = _BRACES.split(pattern)  # literal, inside of the innermost braces, literal, ...
    if len(parts) == 1:
        return [pattern]
    choices = [_brace_choices(part) if index % 2 else [part] for index, part in enumerate(parts)]
    count = math.prod(map(len, choices))
    if count > _MAX_PATHS:
        raise SourceError(f"{pattern} stands for {count} files; at most {_MAX_PATHS} can be given")
    paths = itertools.chain.from_iterable(expand_braces("".join(parts)) for parts in itertools.product(*choices))
    return list(dict.fromkeys(paths))


MAX_COMPRESSED_BYTES = 1 << 30  # total of the compressed files of a source on a cluster


def check_for_workers(files: Iterable[Container], detect_compression: Callable[[Container], str]) -> None:
    """Checks that the files of a source are not too large to be unpacked by every worker process of a cluster.

    Args:
      files: files of the source.
      detect_compression: returns the compression of a file; see `Slice.compression`.

    Raises:
      OptionError: the compressed files have more than `MAX_COMPRESSED_BYTES`.
      SourceError: a file cannot be read.
    """
    total = 0
    for container in files:
        if detect_compression(container):
            with os_errors_as(SourceError, f"{container.path} cannot be read"):
                total += decompress.read_size_and_mtime(container.path)[0]
        if total > MAX_COMPRESSED_BYTES:
            raise OptionError(
                f"{container.path} is compressed, and with it the compressed files have {describe_size(total)}; on a "
                f"cluster every worker process unpacks them, so at most {describe_size(MAX_COMPRESSED_BYTES)} are "
                "allowed; decompress them first (`zcat a.tar.gz > a.tar`): JPEG and PNG hardly shrink, and from an "
                "uncompressed file each worker reads only its images"
            )


@contextlib.contextmanager
def open_container(container: Container, compression: str) -> Iterator[OpenContainer]:
    """Opens a container, unpacked; for its compression see `Slice.compression`.

    Raises:
      SourceError: the file cannot be read or unpacked.
    """
    with os_errors_as(SourceError, f"{container.path} cannot be read"):
        file_bytes, mtime_ns = decompress.read_size_and_mtime(container.path)
        path = decompress.decompressed_path(container.path, compression) if compression else container.path
        stream = storage.open_read(path)
    with stream:
        unpacked_bytes = os.stat(path).st_size if compression else file_bytes
        yield OpenContainer(stream=stream, bytes=unpacked_bytes, compression=compression, mtime_ns=mtime_ns)


def read_head(container: Container, length: int = 10) -> bytes:
    """Returns the first `length` bytes of a file.

    Raises:
      SourceError: the file cannot be read.
    """
    with os_errors_as(SourceError, f"{container.path} cannot be read"), storage.open_read(container.path) as stream:
        return stream.read(length)


def _brace_choices(content: str) -> list[str]:
    range_match = _RANGE.fullmatch(content)
    if not range_match:
        return content.split(",")
    first, last = (int(number) for number in range_match.groups())
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    if len(numbers) > _MAX_PATHS:
        raise SourceError(f"{{{content}}} stands for {len(numbers)} files; at most {_MAX_PATHS} can be given")
    return [str(number).zfill(len(range_match[1])) for number in numbers]


def _relative(path: str, base: str) -> str:
    folder = base.rstrip("/") + "/"
    return path.removeprefix(folder).lstrip("/") if path.startswith(folder) else path


def _report_hidden(hidden_paths: set[str], base: str, on_hidden: OnHidden) -> None:
    for path in sorted(hidden_paths):
        on_hidden(_relative(path, base))


def _matching_files(pattern: str, on_hidden: OnHidden) -> Iterator[str]:
    base = base_directory(pattern)
    relative_pattern = pattern.removeprefix("./") if base == "." else pattern.removeprefix(base).lstrip("/")
    return _walk_pattern(base, relative_pattern.split("/"), on_hidden)


def _walk_pattern(directory: str, parts: list[str], on_hidden: OnHidden) -> Iterator[str]:
    """Yields the files below a directory whose path matches the parts of a pattern; a final `**` matches all files."""
    part, *later_parts = parts
    if part == "**":
        yield from _walk_pattern(directory, later_parts or ["*"], on_hidden)
        for folder in _subdirectories(directory, on_hidden):
            yield from _walk_pattern(folder, parts, on_hidden)
        return
    for name in storage.list_dirs(directory) if later_parts else storage.list_files(directory):
        path = storage.join(directory, name)
        if not _matches_pattern(name, part):
            continue
        if name.startswith(".") and not part.startswith("."):
            on_hidden(path + "/" * bool(later_parts))
        elif later_parts:
            yield from _walk_pattern(path, later_parts, on_hidden)
        else:
            yield path


def _files_below(directory: str, on_hidden: OnHidden) -> Iterator[str]:
    for name in storage.list_files(directory):
        if name.startswith(_HIDDEN_PREFIXES):
            on_hidden(storage.join(directory, name))
        else:
            yield storage.join(directory, name)
    for folder in _subdirectories(directory, on_hidden):
        yield from _files_below(folder, on_hidden)


def _subdirectories(directory: str, on_hidden: OnHidden) -> Iterator[str]:
    """Yields the visible subdirectories; links are skipped, because they may lead back to a parent directory."""
    for name in storage.list_dirs(directory):
        path = storage.join(directory, name)
        if name.startswith(_HIDDEN_PREFIXES):
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


State = frozenset[tuple[int, int]]  # index of an alternative, and of the next part in it


@dataclass(frozen=True)
class Pattern:
    """A pattern of paths below a directory, matched name by name.

    A state is the set of the next parts, one of each alternative that matches so far. So a tree is listed once, and
    only directories that may contain a match are entered. Hidden names match only parts that start with a dot.

    Attributes:
      alternatives: the parts (between slashes) of each expansion of the braces.
    """

    alternatives: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parses a pattern relative to the directory; a final slash or `**` matches all files there.

        Raises:
          SourceError: the braces expand to too many paths.
        """
        return cls(tuple(_split_parts(alternative) for alternative in expand_braces(text)))

    def start(self) -> State:
        """Returns the state for the directory itself."""
        return self._skip_double_stars({(alternative, 0) for alternative in range(len(self.alternatives))})

    def enter(self, state: State, folder: str) -> State:
        """Returns the state for a subfolder of the directory of `state`; empty when no file below it can match."""
        next_state = set()
        for alternative, index in state:
            part = self.alternatives[alternative][index]
            if part == "**":
                if not is_hidden(folder):
                    next_state.add((alternative, index))
            elif index + 1 < len(self.alternatives[alternative]) and _matches_unless_hidden(folder, part):
                next_state.add((alternative, index + 1))
        return self._skip_double_stars(next_state)

    def matches_file(self, state: State, name: str) -> bool:
        """Returns whether a file in the directory of `state` matches."""
        for alternative, index in state:
            parts = self.alternatives[alternative]
            if index + 1 == len(parts) and _matches_unless_hidden(name, parts[index]):
                return True
        return False

    def matches(self, folders: list[str], name: str) -> bool:
        """Returns whether a file matches, given the folders of its path."""
        state = self.start()
        for folder in folders:
            state = self.enter(state, folder)
            if not state:
                return False
        return self.matches_file(state, name)

    def matches_hidden(self, state: State, name: str, *, folder: bool) -> bool:
        """Returns whether a file would match, or a folder be entered, if its name were not hidden."""
        for alternative, index in state if is_hidden(name) else ():
            part, is_last = self.alternatives[alternative][index], index + 1 == len(self.alternatives[alternative])
            # The last part matches files, the other parts match folders.
            if (folder and part == "**") or (folder != is_last and _matches_pattern(name, part)):
                return True
        return False

    def hidden_part(self, folders: list[str], name: str) -> str:
        """Returns the path up to the hidden name that prevents a match, with `/` after a folder; else an empty text."""
        state = self.start()
        for depth, folder in enumerate(folders, 1):
            next_state = self.enter(state, folder)
            if not next_state:
                return "/".join([*folders[:depth], ""]) if self.matches_hidden(state, folder, folder=True) else ""
            state = next_state
        is_visible = self.matches_file(state, name) or not self.matches_hidden(state, name, folder=False)
        return "" if is_visible else "/".join([*folders, name])

    def _skip_double_stars(self, state: set[tuple[int, int]]) -> State:
        """Returns the state with the parts after each `**`, which may match no folder; `**` is never the last part."""
        added = state
        while added := {
            (alternative, index + 1) for alternative, index in added if self.alternatives[alternative][index] == "**"
        }:
            state |= added
        return frozenset(state)


def _split_parts(text: str) -> tuple[str, ...]:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.endswith("/") or not parts or parts[-1] == "**":
        parts.append("*")
    return tuple(parts)


def _matches_unless_hidden(name: str, part: str) -> bool:
    return _matches_pattern(name, part) and (not is_hidden(name) or part.startswith("."))


def _matches_pattern(name: str, part: str) -> bool:
    return part == "*" or bool(_compile_part(part)(name))


@functools.lru_cache(maxsize=4096)
def _compile_part(part: str) -> Callable[[str], object]:
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
    """Returns the kind of a source, detected by its name and by the type of the file on disk.

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
    """Returns the kind for the suffix of a name, before any `-00000-of-00016`; empty for an unknown suffix."""
    name = path.rpartition("/")[2].lower()
    stem = name.partition("-of-")[0].rpartition("-")[0] if "-of-" in name else name
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix) or (kind == "tfrecord" and stem.endswith(suffix)):
            return kind
    return ""

"""Class folders, `ROOT/CLASS/**/image`, and patterns: the first folder is the class, the path is the key.

A directory tree or an object store is listed in a fixed order, with one directory in memory at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from beam_jobs import storage
from beam_jobs.common.strings import plural
from beam_jobs.errors import SourceError, os_errors_as
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources.base import OnHidden, ignore, is_hidden, links_outside, printable, reference, scan_reject
from beam_jobs.sources.containers import EVERYTHING, WILDCARD, Pattern, State
from beam_jobs.types import ImageRef

_CHECKED_ENTRIES = 10_000  # when all of these are rejects, `max_reject_ratio` limits the rejects later
_NAMELESS_PARTS = frozenset({"", ".", ".."})  # parts of a path that are not names


def walk_entries(
    base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden = ignore
) -> Iterator[ImageRef | Reject]:
    """Yields a reference or a reject for each matching file; the first folder below the base is its class.

    Local links are followed if they stay inside the base. A directory is entered only once.

    Args:
      base: directory, local or remote, that keys and uris are relative to.
      pattern: pattern of the files.
      label_kind: `single`, or `none` when the folders are not classes.
      on_hidden: called with each path that would match if it were not hidden; hidden folders are not entered.

    Raises:
      SourceError: a directory cannot be entered or listed.
    """
    walk = _walk_remote if storage.is_remote(base) else _walk_local
    return walk(base, pattern, label_kind, on_hidden)


def search_usable(entries: Iterator[ImageRef | Reject]) -> tuple[bool, Reject | None]:
    """Returns whether entries may have a reference (only the first 10,000 are checked), and the first reject before."""
    reject = None
    for number, entry in enumerate(entries):
        if isinstance(entry, ImageRef) or number >= _CHECKED_ENTRIES:
            return True, reject
        reject = reject or entry
    return False, reject


def check_directory(directory: str, root: str) -> None:
    """Checks a directory before it is listed. A bad one is an error, not a reject: it may contain a complete class.

    Raises:
      SourceError: the directory is a link to a path outside the (resolved) root, or cannot be read.
    """
    if links_outside(directory, root):
        raise SourceError(f"{printable(directory)} is a link that points outside the source; put the images inside it")
    try:
        os.scandir(directory).close()
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(directory: str, error: OSError) -> SourceError:
    return SourceError(f"{printable(directory)} cannot be read: {os.strerror(error.errno or 0)}")


def _walk_local(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
    root = os.path.realpath(base)
    visited: set[tuple[int, int, State]] = set()
    # A stack of the listings of nested directories, because a tree may be deeper than the recursion limit.
    listings = [_list_children(root, root, "", pattern.start(), visited)]
    while listings:
        entry = next(listings[-1], None)
        if entry is None:
            listings.pop()
            continue
        directory, key_prefix, state, (name, is_dir, is_link) = entry
        path = f"{directory}/{name}"
        if is_dir and (next_state := pattern.enter(state, name)):
            listings.append(_list_children(path, root, f"{key_prefix}{name}/", next_state, visited))
        elif not is_dir and pattern.matches_file(state, name):
            ref = _make_ref(key_prefix + name, label_kind)
            yield reference(path, ref, root if is_link else "", label_kind)
        elif pattern.matches_hidden(state, name, folder=is_dir):
            on_hidden(key_prefix + name + "/" * is_dir)


def _list_children(
    directory: str, root: str, key_prefix: str, state: State, visited: set[tuple[int, int, State]]
) -> Iterator[tuple[str, str, State, tuple[str, bool, bool]]]:
    """Yields directory, key prefix and state, with the name of each child, and whether it is a directory and a link."""
    check_directory(directory, root)
    try:
        status = os.stat(directory)
        if (status.st_dev, status.st_ino, state) in visited:
            return  # a link leads to a directory that has been listed
        visited.add((status.st_dev, status.st_ino, state))
        with os.scandir(directory) as entries:
            children = sorted((entry.name, is_dir(entry), entry.is_symlink()) for entry in entries)
    except OSError as error:  # the directory changed after the check
        raise _unreadable(directory, error) from error
    for child in children:
        yield directory, key_prefix, state, child


def is_dir(entry: os.DirEntry) -> bool:
    """Returns whether an entry is a directory, or a link to one."""
    with contextlib.suppress(OSError):  # such as a link to itself
        return entry.is_dir()
    return False


def _walk_remote(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
    with os_errors_as(SourceError, f"{base} cannot be listed"):
        for entry in storage.list_objects(base):
            key = entry.path
            parts = key.split("/")
            names = [part for part in parts if part not in _NAMELESS_PARTS]
            if not names:
                continue
            if not pattern.matches(names[:-1], names[-1]):
                if hidden_path := pattern.hidden_part(names[:-1], names[-1]):
                    on_hidden(hidden_path)
                continue
            if len(names) < len(parts):  # joined to the base, the key would name another object
                detail = "its name has a part that is empty, . or ..; rename it"
                yield scan_reject(key, key, RejectReason.OUTSIDE_ROOT, detail)
                continue
            ref = _make_ref(key, label_kind)
            ref = replace(ref, bytes=entry.bytes, mtime_ns=entry.mtime_ns, checksum=entry.checksum)
            yield reference(storage.join(base, key), ref, label_kind=label_kind)


def _make_ref(key: str, label_kind: str) -> ImageRef:
    label, separator, _ = key.partition("/")
    # The uri is relative, so that a dataset neither depends on nor contains the path of the source.
    return ImageRef(key=key, uri=key, label=label if separator and label_kind == "single" else "")


_REQUIREMENT = "it must hold one folder per class, with the images in them"
_TABLE = "give a table with a column image, such as labels.csv, and with --label-column '' if there are no classes"


@dataclass(frozen=True)
class ClassFolders:
    """A directory tree, local or in an object store; each file yields a reference or a reject unless it is hidden.

    Attributes:
      root: directory of the class folders; for object stores, the common prefix, such as `s3://bucket/photos`.
    """

    root: str

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        return self.root

    @property
    def label_kind(self) -> str:
        """Kind of the labels: every image has one class, its folder."""
        return "single"

    def check(self) -> None:
        """Raises `SourceError` unless a class folder holds a file, and all class folders can be entered."""
        if storage.is_remote(self.root):
            self._check_remote()
            return
        try:
            entries = list(os.scandir(self.root))
        except OSError as error:
            raise SourceError(f"{self.root} cannot be read: {os.strerror(error.errno or 0)}") from error
        classes = [entry for entry in entries if _is_class(entry)]
        if not classes:
            files = sum(not entry.name.startswith(".") for entry in entries)
            contents = (
                f"{plural(files, 'file')} and no folder" if files else "no visible folder" if entries else "nothing"
            )
            raise SourceError(f"{self.root} holds {contents}; {_REQUIREMENT}{f', or {_TABLE}' * bool(files)}")
        root = os.path.realpath(self.root)
        for entry in classes:
            check_directory(entry.path, root)
        if not any(isinstance(entry, ImageRef) for entry in self.entries()):
            raise SourceError(f"{self.root} has {len(classes)} class folders and all are empty; put the images there")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each file that is not hidden.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        return walk_entries(self.root, EVERYTHING, self.label_kind, on_hidden)

    def classes(self) -> tuple[str, ...]:
        """Returns the names of the class folders, also of empty ones; empty for an object store."""
        if storage.is_remote(self.root):
            return ()
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(printable(entry.name) for entry in entries if _is_class(entry)))
        except OSError:  # the directory changed after the check; reading the images raises the error
            return ()

    def _check_remote(self) -> None:
        has_usable, reject = search_usable(self.entries())
        if not has_usable:
            contents = "only files outside of folders" if reject else "nothing"
            raise SourceError(f"{self.root} holds {contents}; {_REQUIREMENT}")


def _is_class(entry: os.DirEntry) -> bool:
    return is_dir(entry) and not is_hidden(entry.name)


@dataclass(frozen=True)
class GlobSource:
    """The files that a pattern matches; a hidden one is skipped unless the part of the pattern starts with a dot, too.

    The base consists of the parts before the first wildcard. Key and uri are relative to it, and the first folder below
    it is the class.

    Attributes:
      path: the pattern.
      columns: the columns; with an empty `label` the folders are not classes.
    """

    path: str
    columns: TableColumns

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        directory, separator, _ = self._fixed_prefix.rpartition("/")
        return directory or separator or "."

    @property
    def label_kind(self) -> str:
        """Kind of the labels: one class per image, its folder, or none."""
        return "single" if self.columns.label else "none"

    def check(self) -> None:
        """Raises `SourceError` unless the pattern matches a usable file."""
        if not WILDCARD.search(self.path):
            raise SourceError(f"{self.path} is not a pattern; write * for names that differ, as in photos/*/*.jpg")
        if storage.is_remote(self.path) and not storage.is_remote(self.base):
            raise SourceError(f"{self.path} has a pattern for a bucket; name the bucket")
        if not storage.is_remote(self.base) and not os.path.isdir(self.base):
            raise SourceError(f"{self.path} matches nothing: there is no directory {self.base}")
        has_usable, reject = search_usable(self.entries())
        if has_usable:
            return
        if not reject:
            raise SourceError(f"{self.path} matches no file; correct the pattern")
        first = f"{reject.uri}: {reject.reason} ({reject.detail})"
        raise SourceError(
            f"{self.path} matches no usable file; the first is {first}. The class is the first folder "
            "below the part without wildcards, as in photos/*/*.jpg"
        )

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each matching file.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        relative_pattern = self.path[self._fixed_prefix.rfind("/") + 1 :]
        return walk_entries(self.base, Pattern.parse(relative_pattern), self.label_kind, on_hidden)

    @property
    def _fixed_prefix(self) -> str:
        return WILDCARD.split(self.path, maxsplit=1)[0]

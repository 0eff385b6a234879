"""Class folders, `ROOT/CLASS/**/image`, and patterns: the first folder is the class, the path the key.

A directory tree or an object store is walked along a pattern: a fixed order, one directory in memory at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs import storage
from beam_jobs.errors import RejectReason, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.base import OnHidden, ignore, is_hidden, leaves, printable, reference, scan_reject
from beam_jobs.sources.containers import EVERYTHING, WILDCARD, Pattern, State
from beam_jobs.types import ImageRef, Reject

_LOOKED_AT = 10_000  # rejects; a source that begins with more of them is judged by `max_reject_ratio`
_NO_NAMES = frozenset({"", ".", ".."})


def walk_entries(
    base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden = ignore
) -> Iterator[ImageRef | Reject]:
    """Yields a reference or a reject a matching file; the first folder below the base is its class.

    Local links are followed as long as they stay inside the base, and a directory is entered once however many links
    lead to it.

    Args:
      base: directory, local or remote, that keys and uris are relative to.
      pattern: which files.
      label_kind: `single`, or `none` when the folders are no classes.
      on_hidden: takes what would match were it not hidden; no hidden folder is entered.

    Raises:
      SourceError: a directory cannot be entered or listed.
    """
    found = _walk_remote if storage.is_remote(base) else _walk_local
    return found(base, pattern, label_kind, on_hidden)


def first_usable(found: Iterator[ImageRef | Reject]) -> tuple[bool, Reject | None]:
    """Returns whether one of the first entries is a reference, and the first reject before it."""
    first = None
    for number, entry in enumerate(found):
        if isinstance(entry, ImageRef) or number >= _LOOKED_AT:
            return True, first
        first = first or entry
    return False, first


def check_enterable(directory: str, root: str) -> None:
    """Looks at a directory before it is walked: passed over as one reject, it could stand for a whole class.

    Raises:
      SourceError: it is a link out of the (resolved) root, or cannot be read.
    """
    if leaves(directory, root):
        raise SourceError(f"{printable(directory)} is a link that leads out of the source; put the images inside it")
    try:
        os.scandir(directory).close()
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(directory: str, error: OSError) -> SourceError:
    return SourceError(f"{printable(directory)} cannot be read: {os.strerror(error.errno or 0)}")


def _walk_local(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
    root = os.path.realpath(base)
    for path, key, is_link in _files_in(root, pattern, on_hidden):
        yield reference(path, _reference(key, label_kind), root if is_link else "", label_kind)


def _files_in(root: str, pattern: Pattern, on_hidden: OnHidden) -> Iterator[tuple[str, str, bool]]:
    """Yields path, key and whether it is a link, of every matching file."""
    seen: set[tuple[int, int, State]] = set()
    # A stack, for a tree may be deeper than functions may call one another.
    levels = [_names_in(root, root, "", pattern.start(), seen)]
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
            continue
        directory, below, state, (name, is_dir, is_link) = found
        path = f"{directory}/{name}"
        if is_dir and (inside := pattern.enter(state, name)):
            levels.append(_names_in(path, root, f"{below}{name}/", inside, seen))
        elif not is_dir and pattern.holds(state, name):
            yield path, below + name, is_link
        elif pattern.hides(state, name, folder=is_dir):
            on_hidden(below + name + "/" * is_dir)


def _names_in(
    directory: str, root: str, below: str, state: State, seen: set[tuple[int, int, State]]
) -> Iterator[tuple[str, str, State, tuple[str, bool, bool]]]:
    check_enterable(directory, root)
    try:
        status = os.stat(directory)
        if (status.st_dev, status.st_ino, state) in seen:
            return  # a link leads back here: the images are already in
        seen.add((status.st_dev, status.st_ino, state))
        with os.scandir(directory) as found:
            names = sorted((entry.name, is_dir(entry), entry.is_symlink()) for entry in found)
    except OSError as error:  # it was there a moment ago
        raise _unreadable(directory, error) from error
    for name in names:
        yield directory, below, state, name


def is_dir(entry: os.DirEntry) -> bool:
    """Returns whether an entry is a directory, or a link to one."""
    with contextlib.suppress(OSError):  # a link that leads to itself, for one
        return entry.is_dir()
    return False


def _walk_remote(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
    try:
        for key, size, mtime_ns in storage.walk_files(base):
            parts = key.split("/")
            names = [part for part in parts if part not in _NO_NAMES]
            if not names:
                continue
            if not pattern.matches(names[:-1], names[-1]):
                if hidden := pattern.hidden_part(names[:-1], names[-1]):
                    on_hidden(hidden)
                continue
            if len(names) < len(parts):  # stores know no folders; joined to the base it would mean another place
                detail = "its name has an empty part, or . or .. for one; rename it"
                yield scan_reject(key, key, RejectReason.OUTSIDE_ROOT, detail)
                continue
            ref = _reference(key, label_kind, size, mtime_ns)
            yield reference(storage.join(base, key), ref, label_kind=label_kind)
    except OSError as error:
        raise SourceError(f"{base} cannot be listed: {error.strerror or error}") from error


def _reference(key: str, label_kind: str, size: int = 0, mtime_ns: int = 0) -> ImageRef:
    label, separator, _ = key.partition("/")
    # The uri is relative, so that a dataset does not depend on, or tell, where the source lay.
    return ImageRef(
        key=key,
        uri=key,
        label=label if separator and label_kind == "single" else "",
        bytes=size,
        mtime_ns=mtime_ns,
    )


_WANTED = "it must hold one folder a class, with the images in them"


@dataclass(frozen=True)
class ClassFolders:
    """A directory tree, local or in an object store; every file is a reference, a reject or hidden.

    Attributes:
      root: directory of the class folders; of object stores, what their names begin with, such as `s3://bucket/photos`.
    """

    root: str

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        return self.root

    @property
    def label_kind(self) -> str:
        """Every image has one class, its folder."""
        return "single"

    def check(self) -> None:
        """Raises `SourceError` unless there is at least one class folder with a file in it, and each can be entered."""
        if storage.is_remote(self.root):
            self._check_remote()
            return
        try:
            entries = list(os.scandir(self.root))
        except OSError as error:
            raise SourceError(f"{self.root} cannot be read: {os.strerror(error.errno or 0)}") from error
        classes = [entry for entry in entries if _is_class(entry)]
        if not classes:
            found = "no visible folder" if entries else "nothing"
            raise SourceError(f"{self.root} holds {found}; {_WANTED}")
        root = os.path.realpath(self.root)
        for entry in classes:
            check_enterable(entry.path, root)
        if not any(isinstance(entry, ImageRef) for entry in self.entries()):
            raise SourceError(f"{self.root} has {len(classes)} class folders and no file in any; put the images there")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a file that is not hidden.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        return walk_entries(self.root, EVERYTHING, self.label_kind, on_hidden)

    def classes(self) -> tuple[str, ...]:
        """Returns the names of the class folders, those without an image too; object stores have no such folders."""
        if storage.is_remote(self.root):
            return ()
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(printable(entry.name) for entry in entries if _is_class(entry)))
        except OSError:  # gone since it was checked; reading the images raises it
            return ()

    def _check_remote(self) -> None:
        usable, reject = first_usable(self.entries())
        if not usable:
            found = "files in no folder only" if reject else "nothing"
            raise SourceError(f"{self.root} holds {found}; {_WANTED}")


def _is_class(entry: os.DirEntry) -> bool:
    return is_dir(entry) and not is_hidden(entry.name)


@dataclass(frozen=True)
class GlobSource:
    """The files that a pattern matches; those that are hidden are passed over unless their part begins with a dot.

    The base is what stands before the first part that is a pattern. Key and uri are relative to it, and the first
    folder below it is the class.

    Attributes:
      path: the pattern.
      columns: with an empty `label` the folders are no classes.
    """

    path: str
    columns: TableColumns

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        directory, separator, _ = self._fixed.rpartition("/")
        return directory or separator or "."

    @property
    def label_kind(self) -> str:
        """One class an image, its folder, or none."""
        return "single" if self.columns.label else "none"

    def check(self) -> None:
        """Raises `SourceError` unless there is at least one file that matches and can be used."""
        if not WILDCARD.search(self.path):
            raise SourceError(f"{self.path} is no pattern; write * for the names that differ, as in photos/*/*.jpg")
        if storage.is_remote(self.path) and not storage.is_remote(self.base):
            raise SourceError(f"{self.path} has a pattern for a bucket; name the bucket")
        if not storage.is_remote(self.base) and not os.path.isdir(self.base):
            raise SourceError(f"{self.path} matches nothing: there is no directory {self.base}")
        usable, reject = first_usable(self.entries())
        if usable:
            return
        if not reject:
            raise SourceError(f"{self.path} matches no file; correct the pattern")
        first = f"{reject.uri}: {reject.reason} ({reject.detail})"
        raise SourceError(
            f"{self.path} matches only files that cannot be used, the first {first}. The class is the first folder "
            "below the part without wildcards, as in photos/*/*.jpg"
        )

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a matching file.

        Raises:
          SourceError: a directory cannot be entered or listed.
        """
        below = self.path[self._fixed.rfind("/") + 1 :]
        return walk_entries(self.base, Pattern.parse(below), self.label_kind, on_hidden)

    @property
    def _fixed(self) -> str:
        return WILDCARD.split(self.path, maxsplit=1)[0]

"""Walking a directory tree or an object store along a pattern: a fixed order, one directory in memory at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from beam_jobs import storage
from beam_jobs.errors import RejectReason, SourceError
from beam_jobs.sources.base import leaves, printable, reference, scan_reject
from beam_jobs.sources.containers import Pattern, State
from beam_jobs.sources.hidden import OnHidden, ignore
from beam_jobs.types import ImageRef, Reject

_LOOKED_AT = 10_000  # rejects; a source that begins with more of them is judged by `max_reject_ratio`
_NO_NAMES = frozenset({"", ".", ".."})


def entries(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
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
    found = _remote if storage.is_remote(base) else _local
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


def _local(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
    root = os.path.realpath(base)
    for path, key, is_link in _files(root, pattern, on_hidden):
        yield reference(path, _ref(key, label_kind), root if is_link else "", label_kind)


def _files(root: str, pattern: Pattern, on_hidden: OnHidden) -> Iterator[tuple[str, str, bool]]:
    """Yields path, key and whether it is a link, of every matching file."""
    seen: set[tuple[int, int, State]] = set()
    # A stack, for a tree may be deeper than functions may call one another.
    levels = [_names(root, root, "", pattern.start(), seen)]
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
            continue
        directory, below, state, (name, is_dir, is_link) = found
        path = f"{directory}/{name}"
        if is_dir and (inside := pattern.enter(state, name)):
            levels.append(_names(path, root, f"{below}{name}/", inside, seen))
        elif not is_dir and pattern.holds(state, name):
            yield path, below + name, is_link
        elif pattern.hides(state, name, folder=is_dir):
            on_hidden(below + name + "/" * is_dir)


def _names(
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


def _remote(base: str, pattern: Pattern, label_kind: str, on_hidden: OnHidden) -> Iterator[ImageRef | Reject]:
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
            ref = _ref(key, label_kind, size, mtime_ns)
            yield reference(storage.join(base, key), ref, label_kind=label_kind)
    except OSError as error:
        raise SourceError(f"{base} cannot be listed: {error.strerror or error}") from error


def _ref(key: str, label_kind: str, size: int = 0, mtime_ns: int = 0) -> ImageRef:
    label, separator, _ = key.partition("/")
    # The uri is relative, so that a dataset does not depend on, or tell, where the source lay.
    return ImageRef(
        key=key,
        uri=key,
        label=label if separator and label_kind == "single" else "",
        bytes=size,
        mtime_ns=mtime_ns,
    )

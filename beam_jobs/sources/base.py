"""Functions that all sources share: references and rejects of paths and URLs, and hidden names.

File managers, archivers and version control create hidden files. These are skipped, but counted and reported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace

from beam_jobs import storage
from beam_jobs.errors import BadImage
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.types import ImageRef

MAX_NAME_BYTES = 4096  # bytes of a path, URL, key, label, group or split: the limit of Linux for a path
_SHOWN_CHARACTERS = 200  # beginning of a longer name that is shown


def printable(name: str) -> str:
    """Returns a file name for tables and terminals; bytes that are not UTF-8 are escaped."""
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:  # half a surrogate pair from JSON, which no file name of this system contains
        raw = name.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def scan_reject(key: str, path: str, reason: RejectReason, detail: str) -> Reject:
    """Returns a reject of the scan stage; a key or path of more than `MAX_NAME_BYTES` is shortened."""
    return Reject(key=_short(key), uri=_short(path), stage="scan", reason=reason.value, detail=detail)


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def regular_file(path: str) -> os.stat_result:
    """Returns the status of a local file without opening it.

    Raises:
      BadImage: the file is missing, or is not a regular file.
      OSError: the file may exist, see `storage.is_no_file`; reading it later gives a more specific error.
    """
    try:
        status = os.stat(path)
    except ValueError as error:
        raise BadImage(RejectReason.UNREADABLE, "its path has a null character, which paths cannot contain") from error
    except OSError as error:
        if not storage.is_no_file(error):
            raise
        raise BadImage(RejectReason.UNREADABLE, error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(RejectReason.NOT_A_FILE, "it is a directory, pipe, socket or device")
    return status


def reference(path: str, ref: ImageRef, link_root: str = "", label_kind: str = "single") -> ImageRef | Reject:
    """Adds size and time to a reference, or rejects a file that must not be opened.

    Args:
      path: path or URL of the file; only local files are examined.
      ref: the reference without size and time.
      link_root: resolved directory in which the target of a link must lie; empty allows any target.
      label_kind: kind of the labels of the source, one of `types.LABEL_KINDS`; `single` requires a label.

    Returns:
      the completed reference, or a reject; `ref` itself for a remote file, and for a file that cannot be examined now.
    """
    if printable(ref.key) != ref.key:
        return scan_reject(ref.key, ref.uri, RejectReason.NAME_NOT_UTF8, "rename it; keys are stored as UTF-8")
    if label_kind == "single" and not ref.label:
        return scan_reject(ref.key, ref.uri, RejectReason.NO_LABEL, "it is in no class folder, or its label is empty")
    if storage.is_remote(path):
        return ref
    if link_root and links_outside(path, link_root):
        return scan_reject(ref.key, ref.uri, RejectReason.OUTSIDE_ROOT, "the link points outside the source folder")
    try:
        status = regular_file(path)
    except BadImage as bad:
        return scan_reject(ref.key, ref.uri, bad.reason, bad.detail)
    except OSError:
        status = None
    return replace(ref, bytes=status.st_size, mtime_ns=status.st_mtime_ns) if status else ref


def links_outside(path: str, root: str) -> bool:
    """Returns whether a path is a link that resolves to a path outside the (resolved) root."""
    return os.path.islink(path) and os.path.commonpath([os.path.realpath(path), root]) != root


_TOOL_FILES = ("Thumbs.db", "desktop.ini", "__MACOSX")  # created by file managers and archivers, never data
_HIDDEN_EXAMPLES = 5
OnHidden = Callable[[str], None]  # called with a hidden path, relative to the base of its source; a folder ends in `/`


def is_hidden(name: str) -> bool:
    """Returns whether files and directories of this name are skipped unless a pattern names them explicitly."""
    return name.startswith(".") or name in _TOOL_FILES


def hidden_part(names: Sequence[str]) -> str:
    """Returns a path up to its first hidden name, with `/` after a folder; empty when no name is hidden.

    Args:
      names: the parts of the path: folders, then the file.
    """
    for depth, name in enumerate(names, 1):
        if is_hidden(name):
            return "/".join(names[:depth]) + "/" * (depth < len(names))
    return ""


def ignore(path: str) -> None:
    """Ignores a hidden path."""


class HiddenNames:
    """Counts hidden names; a folder counts once for all files in it.

    Attributes:
      count: number of different folders, and of files outside of them.
      examples: the first paths, one for each name such as `.DS_Store`; at most five, folders before files.
    """

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._folder_hashes: set[int] = set()

    def add(self, path: str) -> None:
        """Counts a path; the path of a folder may be passed once for each file in it."""
        if path.endswith("/"):
            if hash(path) in self._folder_hashes:  # hashes need little memory; archives may have any number of folders
                return
            self._folder_hashes.add(hash(path))
        self.count += 1
        example = printable(path)
        if _last_part(example) not in map(_last_part, self.examples):
            # A folder may be a class, so folders are among the examples regardless of the number of files.
            examples = sorted([*self.examples, example], key=lambda name: not name.endswith("/"))
            self.examples = examples[:_HIDDEN_EXAMPLES]


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

"""What sources share: turning a directory entry, a path or a URL into a reference or a reject; and hidden names.

Hidden names are what file managers, archivers and version control leave behind: passed over, but counted and named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace

from beam_jobs import storage
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.types import ImageRef, Reject

MAX_NAME_BYTES = 4096  # of a path, URL, key, label, group or split: what Linux allows for a path
_SHOWN_CHARACTERS = 200  # of a longer one


def printable(name: str) -> str:
    """Returns a file name fit for tables and terminals; what is not UTF-8 appears as escapes."""
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:  # half a surrogate pair, out of JSON: no file name of this system has one
        raw = name.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def scan_reject(key: str, path: str, reason: RejectReason, detail: str) -> Reject:
    """Returns a reject of the scan stage; of a key or path of more than `MAX_NAME_BYTES` it has the beginning."""
    return Reject(key=_short(key), uri=_short(path), stage="scan", reason=reason.value, detail=detail)


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= MAX_NAME_BYTES else f"{shown[:_SHOWN_CHARACTERS]}... ({len(shown)} characters)"


def regular_file(path: str) -> os.stat_result:
    """Returns the status of a local file, which is not opened.

    Raises:
      BadImage: it is missing, or is no regular file.
      OSError: it may be there, see `storage.is_no_file`; what reads it later says more.
    """
    try:
        status = os.stat(path)
    except ValueError as error:
        raise BadImage(RejectReason.UNREADABLE, "its path has a null character, which no file has") from error
    except OSError as error:
        if not storage.is_no_file(error):
            raise
        raise BadImage(RejectReason.UNREADABLE, error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(RejectReason.NOT_A_FILE, "it is a directory, pipe, socket or device")
    return status


def reference(path: str, ref: ImageRef, link_root: str = "", label_kind: str = "single") -> ImageRef | Reject:
    """Completes a reference with size and time, or rejects what must not be opened.

    Args:
      path: the file; a remote one or a URL is not looked at.
      ref: the reference without size and time.
      link_root: resolved directory that a link may not leave; empty lets links lead anywhere.
      label_kind: what the source says of the class, one of `types.LABEL_KINDS`; `single` needs a label.

    Returns:
      the completed reference, or a reject for a missing, special or outside file; the reference as it is where the
      file cannot be looked at now.
    """
    if printable(ref.key) != ref.key:
        return scan_reject(ref.key, ref.uri, RejectReason.NAME_NOT_UTF8, "rename it; keys are stored as UTF-8")
    if label_kind == "single" and not ref.label:
        return scan_reject(ref.key, ref.uri, RejectReason.NO_LABEL, "it is in no class folder, or its label is empty")
    if storage.is_remote(path):
        return ref
    if link_root and leaves(path, link_root):
        return scan_reject(ref.key, ref.uri, RejectReason.OUTSIDE_ROOT, "the link leads out of the source folder")
    try:
        status = regular_file(path)
    except BadImage as bad:
        return scan_reject(ref.key, ref.uri, bad.reason, bad.detail)
    except OSError:
        status = None
    return replace(ref, bytes=status.st_size, mtime_ns=status.st_mtime_ns) if status else ref


def leaves(path: str, root: str) -> bool:
    """Returns whether a path is a link that resolves to a place outside the (resolved) root."""
    return os.path.islink(path) and os.path.commonpath([os.path.realpath(path), root]) != root


_LITTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # left by file managers and archivers, never data
_HIDDEN_EXAMPLES = 5

OnHidden = Callable[[str], None]  # takes the path of a hidden name below the base of its source; a folder ends in `/`


def is_hidden(name: str) -> bool:
    """Returns whether a file or directory is passed over unless it is asked for by name."""
    return name.startswith(".") or name in _LITTER


def hidden_part(names: Sequence[str]) -> str:
    """Returns the start of a path up to its first hidden name, a folder with `/`; empty when it has none.

    Args:
      names: of the folders of the path, then of the file.
    """
    for depth, name in enumerate(names, 1):
        if is_hidden(name):
            return "/".join(names[:depth]) + "/" * (depth < len(names))
    return ""


def ignore(path: str) -> None:
    """Takes a hidden name that is of no interest."""


class HiddenNames:
    """Counts hidden names; a folder counts once, whatever it holds.

    Attributes:
      count: of different folders, and of files outside of them.
      examples: the first paths, one for each last name such as `.DS_Store`; at most five.
    """

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._folders: set[int] = set()

    def add(self, path: str) -> None:
        """Takes a path, of a folder as often as there are files in it."""
        if path.endswith("/"):
            if hash(path) in self._folders:  # a few bytes each, where archives may have any number of them
                return
            self._folders.add(hash(path))
        self.count += 1
        shown = printable(path)
        if len(self.examples) < _HIDDEN_EXAMPLES and _last_part(shown) not in map(_last_part, self.examples):
            self.examples.append(shown)


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

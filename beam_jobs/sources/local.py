"""What sources of local files share: turning a directory entry or a path into a reference or a reject."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from beam_jobs.errors import RejectReason
from beam_jobs.types import ImageRef, Reject


def printable(name: str) -> str:
    """Returns a file name fit for tables and terminals; bytes that are not UTF-8 appear as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def scan_reject(key: str, path: str, reason: RejectReason, detail: str) -> Reject:
    """Returns a reject of the scan stage."""
    return Reject(key=printable(key), uri=printable(path), stage="scan", reason=reason.value, detail=detail)


def reference(path: str, ref: ImageRef, link_root: str = "") -> ImageRef | Reject:
    """Completes a reference with size and time, or rejects what must not be opened.

    Args:
      path: the file.
      ref: the reference without size and time.
      link_root: resolved directory that a link may not leave; empty lets links lead anywhere.

    Returns:
      the completed reference, or a reject for a missing, special or outside file.
    """
    if printable(ref.key) != ref.key:
        return scan_reject(ref.key, ref.uri, RejectReason.NAME_NOT_UTF8, "rename it; keys are stored as UTF-8")
    if not ref.label:
        return scan_reject(ref.key, ref.uri, RejectReason.NO_LABEL, "it is in no class folder, or its label is empty")
    if link_root and leaves(path, link_root):
        return scan_reject(ref.key, ref.uri, RejectReason.OUTSIDE_ROOT, "the link leads out of the source folder")
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return scan_reject(ref.key, ref.uri, RejectReason.UNREADABLE, getattr(error, "strerror", "") or str(error))
    if not stat.S_ISREG(status.st_mode):
        return scan_reject(ref.key, ref.uri, RejectReason.NOT_A_FILE, "it is a directory, pipe, socket or device")
    return replace(ref, bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def leaves(path: str, root: str) -> bool:
    """Returns whether a path is a link that resolves to a place outside the (resolved) root."""
    return os.path.islink(path) and os.path.commonpath([os.path.realpath(path), root]) != root

"""The output of an ingest before publication: checks, lock, work directory, progress, and estimates of disk space."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from beam_jobs import storage
from beam_jobs.common.system import Progress, rate_and_remaining, repeat
from beam_jobs.dataset import manifest, shards
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk, lock

if TYPE_CHECKING:
    from beam_jobs.options import IngestOptions
    from beam_jobs.planning.plan import Plan
    from beam_jobs.stages.scan import Scan

DIRECTORY = "_work"
PROGRESS_NAME = "progress.json"  # see `progress_file`
JOB_NAME = "job.json"  # see `beam_job.JobFile`
_PROGRESS_S = 10.0
_MARKER_NAME = "feedline.json"  # in the work directory; a `_work` without this file belongs to another program
_LOCK_NAME = ".feedline-lock"  # see `exclusive`
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # an unfinished file of `storage.atomic_writer`


@contextlib.contextmanager
def exclusive(
    out: str, report: Callable[[str], object] | None = None, command: str = ""
) -> Iterator[Callable[[], None]]:
    """Locks an output against other ingests for the duration of the block.

    The lock file of `DIR/NAME` is `DIR/.NAME.feedline-lock`, because a replacement renames `DIR/NAME` itself. In object
    stores, and where `DIR` is not writable, for example above a mounted disk, it is `DIR/NAME/.feedline-lock`.

    Args:
      out: directory of a dataset, or a work directory that several outputs share.
      report: function that gets a line of text while the lock of another machine is watched; see `lock.exclusive`.
      command: see `lock.Owner`.

    Yields:
      a function that raises `OptionError` if another ingest has taken the lock; see `lock.exclusive`.

    Raises:
      InUse: another ingest writes to the output.
      OptionError: the store cannot be written.
    """
    refusal = f"{out} is in use by another ingest: {lock.OWNER}; wait for its end"
    with contextlib.ExitStack() as stack:
        check_lock = None
        for path in _lock_paths(out):
            try:
                check_lock = stack.enter_context(lock.exclusive(path, refusal, report, command))
                break
            except OSError as error:
                if storage.is_remote(out):
                    raise _unwritable(out, error) from error
        # If neither file can be created, no dataset can be written: the first stage raises an error with the cause.
        yield check_lock or (lambda: None)


def _lock_paths(out: str) -> list[str]:
    inner_path = storage.join(out, _LOCK_NAME)
    if storage.is_remote(out):
        return [inner_path]
    folder, name = os.path.split(os.path.realpath(out))
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    return [os.path.join(folder, f".{name}{_LOCK_NAME}"), inner_path]


def check_out(source: str, out: str) -> None:
    """Raises `OptionError` unless `out` is new, empty, or contains only files of an unfinished ingest of a source."""
    if is_published(out):
        remove_leftovers(storage.join(out, DIRECTORY))
        raise OptionError(occupied_message(out))
    if storage.is_remote(out):
        return
    source_path, out_path = os.path.realpath(source), os.path.realpath(out)
    if os.path.isdir(source_path) and os.path.commonpath([source_path, out_path]) == source_path:
        raise OptionError(f"{out} lies inside the source {source}; the next run would ingest its files")
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise OptionError(f"{out} is a file; --out must be a new or empty directory")
    names = _list_names(out)
    foreign_names = sorted(name for name in names if not _is_feedline_name(name))
    if foreign_names or (names and not _is_unfinished(out)):
        fault = f"holds {foreign_names[0]!r}" if foreign_names else "is not empty"
        raise OptionError(f"{out} {fault} and is not an unfinished ingest; choose another --out")


def occupied_message(out: str) -> str:
    """Returns the message about an output that contains a dataset; only a local dataset can be replaced."""
    alternative = "" if storage.is_remote(out) else ", or replace it with --overwrite"
    return f"{out} already holds a dataset; choose another --out{alternative}"


def is_published(out: str) -> bool:
    """Returns whether an output contains a dataset.

    Raises:
      OptionError: its store cannot be accessed.
    """
    try:
        return manifest.is_published(out)
    except OSError as error:
        raise OptionError(f"{out} cannot be accessed: {error}; correct --out, or the credentials for it") from error


def remove(work: str) -> None:
    """Removes a work directory, its marker last, so that a killed removal leaves a directory with a marker."""
    if not storage.is_remote(work) and os.path.isdir(work):
        for entry in list(os.scandir(work)):
            if entry.is_dir(follow_symlinks=False):
                storage.remove_tree(entry.path)
            elif entry.name != _MARKER_NAME:
                with contextlib.suppress(OSError):  # the dataset is published, so a file may remain
                    storage.remove(entry.path)
    storage.remove_tree(work)


def remove_leftovers(work: str) -> None:
    """Removes the work directory of a killed run, if it has a marker or contains only an unfinished marker."""
    if not storage.is_remote(work) and (_has_marker(work) or _has_unfinished_marker(work)):
        remove(work)


def _has_marker(work: str) -> bool:
    return os.path.isfile(os.path.join(work, _MARKER_NAME))


def _has_unfinished_marker(work: str) -> bool:
    return os.path.isdir(work) and all(map(_TEMPORARY.fullmatch, os.listdir(work)))


def _is_unfinished(out: str) -> bool:
    """Returns whether a directory contains an unfinished ingest: a marker, or only an unfinished marker."""
    work = os.path.join(out, DIRECTORY)
    return _has_marker(work) or (_list_names(out) == [DIRECTORY] and _has_unfinished_marker(work))


def _list_names(out: str) -> list[str]:
    return [name for name in os.listdir(out) if name != _LOCK_NAME]


def _is_feedline_name(name: str) -> bool:
    from beam_jobs.dataset import tfds_metadata  # not needed to refuse a published dataset, which must be fast

    feedline_names = (DIRECTORY, manifest.IMAGES_DIR, manifest.IMAGES_NAME, manifest.REJECTS_NAME, *tfds_metadata.NAMES)
    return name in feedline_names or name.startswith(shards.SPLIT_PREFIX)


def remove_scan(refs: str) -> None:
    """Removes the files of a scan that failed; files of an earlier ingest remain."""
    storage.remove_tree(refs)
    work = os.path.dirname(refs)
    if storage.is_remote(refs) or not os.path.isdir(work):
        return
    if {*os.listdir(work)} <= {_MARKER_NAME, PROGRESS_NAME}:
        storage.remove_tree(work)
        with contextlib.suppress(OSError):  # it contains other files
            os.rmdir(os.path.dirname(work))


def create(out: str, work: str) -> None:
    """Creates the work directory with its marker.

    Raises:
      OptionError: the directory cannot be written.
      OSError: the disk is full.
    """
    try:
        _write_marker(work)
    except OSError as error:
        if error.errno in disk.FULL:
            raise
        raise _unwritable(out, error) from error


def _unwritable(out: str, error: OSError) -> OptionError:
    return OptionError(f"{out} cannot be written: {error.strerror or error}; choose another --out")


def restore_marker(out: str, work: str) -> None:
    """Writes the marker again if another program removed the work directory and a stage recreated parts of it."""
    if storage.is_remote(out) or os.path.exists(storage.join(work, _MARKER_NAME)):
        return
    if os.path.isdir(work) or disk.used_bytes(out):
        with contextlib.suppress(OSError):  # the disk accepts no writes
            _write_marker(work)


def _write_marker(work: str) -> None:
    # In an object store this copies and deletes, so that a missing permission is found before any work is done.
    with storage.atomic_writer(storage.join(work, _MARKER_NAME)) as stream:
        stream.write(b'{"made_by": "feedline ingest"}')


@contextlib.contextmanager
def progress_file(work: str, stage: str, total: Progress, read: Callable[[], Progress] | None = None) -> Iterator[None]:
    """Describes a stage in `WORK/progress.json` for monitors, when it begins and ends and every ten seconds.

    The file is a JSON object: `stage`; `of`, its number of images, 0 if unknown; `done` and `rejects`, in images, and
    `bytes`, which are null in a stage that does not count; `images_per_s` since the stage began, including units of
    work that an earlier run finished; `updated` and `estimated_end` of the stage, in UTC, as in
    `2026-01-31T12:00:00+00:00`. `estimated_end` is null while it cannot be estimated.

    Args:
      work: work directory; nothing is written while it does not exist.
      stage: name of the stage.
      total: progress at the end of the stage.
      read: function that returns the current progress; None if the stage does not count.
    """
    started = time.monotonic()
    path = storage.join(work, PROGRESS_NAME)

    def write() -> None:
        if not storage.is_remote(work) and not os.path.isdir(work):
            return
        values = _progress_values(stage, total, read() if read else None, time.monotonic() - started)
        with contextlib.suppress(OSError):  # the stage itself reports the cause
            storage.write_bytes(path, json.dumps(values).encode(), durable=False)

    write()
    with repeat(_PROGRESS_S, write):
        yield
    write()


def _progress_values(stage: str, total: Progress, current: Progress | None, elapsed_s: float) -> dict[str, object]:
    now = datetime.now(timezone.utc)
    rate, remaining_s = rate_and_remaining(current, total, elapsed_s) if current else (0.0, None)
    estimated_end = None if remaining_s is None else now + timedelta(seconds=remaining_s)
    return {
        "stage": stage,
        "done": current and current.images,
        "of": total.images,
        "rejects": current and current.rejects,
        "bytes": current and current.bytes,
        "images_per_s": round(rate, 3) if current else None,
        "updated": now.isoformat(timespec="seconds"),
        "estimated_end": estimated_end.isoformat(timespec="seconds") if estimated_end else None,
    }


BLOCK_BYTES = 4096  # minimum disk space of a file on most disks


def min_bytes_to_examine(options: IngestOptions, scan: Scan, work: str) -> int:
    """Returns the minimum number of bytes that an ingest still has to write; 0 if it depends on the image contents.

    With `copy`, images that are stored in another format count as 0: a BMP of one colour becomes a PNG of a few bytes.
    With `resize` the size of smaller images is unknown. If duplicates are dropped, the number of remaining images is
    unknown, but the spool contains the raw pixels of all images. Rejects are assumed to be as large as other images.

    Args:
      options: options of the ingest.
      scan: result of the scan; URLs and members of compressed archives may have no size yet, and count as 0.
      work: work directory.
    """
    if storage.is_remote(options.out):
        return 0
    accepted_share, pixels = 1 - options.max_reject_ratio, options.pixels
    drops_duplicates = "drop" in (options.duplicates, options.near_duplicates)
    if pixels.policy == "copy" and not drops_duplicates:
        return max(0, int(accepted_share * scan.copied_bytes) - _written_bytes(options.out))
    if pixels.policy == "raw":  # stored in the spool, then also in the shards
        copies = 1 if drops_duplicates else 2
        min_bytes = int(accepted_share * (scan.found - scan.reject_count) * copies * 3 * pixels.side_px**2)
        return max(0, min_bytes - _written_bytes(options.out) - disk.used_bytes(work))
    return 0


def bytes_to_write(options: IngestOptions, plan: Plan) -> int:
    """Returns an estimate of the bytes of shards that remain to be written; 0 for a remote output."""
    if storage.is_remote(options.out):
        return 0
    planned = sum(split.bytes for split in plan.splits)
    return max(0, planned - _written_bytes(options.out))


def _written_bytes(out: str) -> int:
    """Returns the size of the shards of an earlier run, in bytes."""
    folders = [name for name in storage.list_dirs(out) if name.startswith(shards.SPLIT_PREFIX)]
    return sum(disk.used_bytes(storage.join(out, name)) for name in folders)

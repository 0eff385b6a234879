"""The output of an ingest before it is published: whether it may be used, where what is unfinished lies, and its room.

How much room an ingest needs on the disk is estimated before the bytes are there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import manifest, shards, tfds_metadata
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import RECORD_OVERHEAD_BYTES, Plan
from beam_jobs.stages.publish import taken
from beam_jobs.stages.scan import Scan
from beam_jobs.storage import disk, lock

DIRECTORY = "_work"
_MARKER_NAME = "feedline.json"  # in the work directory: without it, a directory of that name is somebody else's
_LOCK_NAME = ".feedline-lock"  # see `alone`
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # a file that `storage.atomic_writer` has begun


@contextlib.contextmanager
def alone(out: str) -> Iterator[None]:
    """Keeps other ingests away from an output while the block runs.

    The lock of `DIR/NAME` is `DIR/.NAME.feedline-lock`, for `DIR/NAME` itself is renamed when it is replaced. Where
    `DIR` takes no files, as above a mounted disk, and in object stores, it is `DIR/NAME/.feedline-lock`.

    Raises:
      OptionError: another ingest writes there, or the store cannot be written.
    """
    with contextlib.ExitStack() as stack:
        for path in _lock_paths(out):
            try:
                stack.enter_context(lock.locked(path))
                break
            except lock.Locked as error:
                raise OptionError(f"{out} is in use by another ingest: {error}; wait for its end") from None
            except OSError as error:
                if storage.is_remote(out):
                    raise _not_written(out, error) from error
        # Where neither file can be created, no dataset can be written: the first stage says so, and why.
        yield


def _lock_paths(out: str) -> list[str]:
    inside = storage.join(out, _LOCK_NAME)
    if storage.is_remote(out):
        return [inside]
    folder, name = os.path.split(os.path.realpath(out))
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    return [os.path.join(folder, f".{name}{_LOCK_NAME}"), inside]


def check_out(options: IngestOptions) -> None:
    """Raises `OptionError` unless a dataset can be built in `out`: it is new, empty, or the rest of an ingest."""
    out = options.out
    if is_published(out):
        _remove_rest(storage.join(out, DIRECTORY))
        raise OptionError(taken(out))
    if storage.is_remote(out):
        return
    source, target = os.path.realpath(options.source), os.path.realpath(out)
    if os.path.isdir(source) and os.path.commonpath([source, target]) == source:
        raise OptionError(f"{out} lies inside the source {options.source}; the next run would take it for images")
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise OptionError(f"{out} is a file; --out must be a new or empty directory")
    names = _names(out)
    foreign = sorted(name for name in names if not _is_ours(name))
    if foreign or (names and not _is_rest(out)):
        fault = f"holds {foreign[0]!r}" if foreign else "is not empty"
        raise OptionError(f"{out} {fault} and is not the rest of an earlier ingest; choose another --out")


def is_published(out: str) -> bool:
    """Returns whether an output holds a dataset.

    Raises:
      OptionError: its store does not say.
    """
    try:
        return manifest.is_published(out)
    except OSError as error:
        raise OptionError(f"{out} cannot be looked at: {error}; correct --out, or what its store asks for") from error


def remove(work: str) -> None:
    """Removes a work directory; its mark goes last, so that what a kill leaves of it is known as ours."""
    if not storage.is_remote(work) and os.path.isdir(work):
        for entry in list(os.scandir(work)):
            if entry.is_dir(follow_symlinks=False):
                storage.remove_tree(entry.path)
            elif entry.name != _MARKER_NAME:
                with contextlib.suppress(OSError):  # the dataset is published, whatever becomes of this
                    storage.remove(entry.path)
    storage.remove_tree(work)


def _remove_rest(work: str) -> None:
    """Removes what a run that died in its last step left beside its dataset.

    Without its mark, a directory of that name is somebody else's, unless nothing is in it.
    """
    if storage.is_remote(work):
        return
    if os.path.isfile(os.path.join(work, _MARKER_NAME)):
        remove(work)
    else:
        with contextlib.suppress(OSError):  # there is none, or it is not empty
            os.rmdir(work)


def _is_rest(out: str) -> bool:
    """Returns whether a directory is what an ingest left: marked, or empty but for a mark that was not finished."""
    work = os.path.join(out, DIRECTORY)
    if os.path.isfile(os.path.join(work, _MARKER_NAME)):
        return True
    return _names(out) == [DIRECTORY] and os.path.isdir(work) and all(map(_TEMPORARY.fullmatch, os.listdir(work)))


def _names(out: str) -> list[str]:
    return [name for name in os.listdir(out) if name != _LOCK_NAME]


def _is_ours(name: str) -> bool:
    return name in (DIRECTORY, *manifest.TABLE_NAMES, *tfds_metadata.NAMES) or name.startswith(shards.SPLIT_PREFIX)


def take_back(refs: str) -> None:
    """Removes what a scan wrote before its source turned out to be wrong; the rest of an earlier ingest stays."""
    storage.remove_tree(refs)
    work = os.path.dirname(refs)
    if storage.is_remote(refs) or not os.path.isdir(work):
        return
    if os.listdir(work) == [_MARKER_NAME]:
        storage.remove_tree(work)
        with contextlib.suppress(OSError):  # it holds something else
            os.rmdir(os.path.dirname(work))


def open_at(out: str, work: str) -> None:
    """Makes the work directory, and marks it as ours.

    Raises:
      OptionError: nothing can be written there.
      OSError: the disk is full.
    """
    try:
        _mark(work)
    except OSError as error:
        if error.errno in disk.FULL:
            raise
        raise _not_written(out, error) from error


def _not_written(out: str, error: OSError) -> OptionError:
    return OptionError(f"{out} cannot be written: {error.strerror or error}; choose another --out")


def mark_again(out: str, work: str) -> None:
    """Marks the work directory as ours again when somebody removed it and a stage has made parts of it anew."""
    if storage.is_remote(out) or os.path.exists(storage.join(work, _MARKER_NAME)):
        return
    if os.path.isdir(work) or disk.used_bytes(out):
        with contextlib.suppress(OSError):  # of a disk that takes nothing
            _mark(work)


def _mark(work: str) -> None:
    storage.write_bytes(storage.join(work, _MARKER_NAME), b'{"made_by": "feedline ingest"}')


BLOCK_BYTES = 4096  # what even a small file takes on most disks


def room_to_examine(options: IngestOptions, scan: Scan, work: str) -> int:
    """Returns the least bytes that a whole ingest writes from here on; 0 when they depend on what is in the images.

    Of `copy`, what is stored in another format counts nothing: a BMP of one colour becomes a PNG of a few bytes. Of
    `resize` nothing is known: what a smaller image takes depends on what it shows. When duplicates are dropped, the
    number of images that are left is unknown; raw pixels of all of them lie in the spool nevertheless. What is rejected
    is taken to be as large as the rest.

    Args:
      options: of the ingest.
      scan: result of the scan; URLs and members of compressed archives may have no size yet, and count nothing.
      work: directory of what passes between the stages.
    """
    if storage.is_remote(options.out):
        return 0
    share, pixels = 1 - options.max_reject_ratio, options.pixels
    drops = "drop" in (options.duplicates, options.near_duplicates)
    if pixels.policy == "copy" and not drops:
        return max(0, int(share * scan.kept_bytes) - _written_bytes(options.out))
    if pixels.policy == "raw":  # first in the spool, then in the shards
        copies = 1 if drops else 2
        least = int(share * (scan.found - len(scan.rejects)) * copies * 3 * pixels.side_px**2)
        return max(0, least - _written_bytes(options.out) - disk.used_bytes(work))
    return 0


def room_to_write(options: IngestOptions, plan: Plan) -> int:
    """Returns about how many bytes of shards are still to be written; 0 to a remote output."""
    if storage.is_remote(options.out):
        return 0
    planned = sum(
        (pc.sum(split.images["bytes"]).as_py() or 0) + RECORD_OVERHEAD_BYTES * len(split.images)
        for split in plan.splits
    )
    return max(0, planned - _written_bytes(options.out))


def _written_bytes(out: str) -> int:
    """Returns the bytes of shards that an earlier run left."""
    folders = [name for name in storage.list_dirs(out) if name.startswith(shards.SPLIT_PREFIX)]
    return sum(disk.used_bytes(storage.join(out, name)) for name in folders)

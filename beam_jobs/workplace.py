"""The output of an ingest before it is published: whether it may be used, and where what is unfinished lies."""

from __future__ import annotations

import contextlib
import os
import re

from beam_jobs import disk, manifest, shards, storage, tfds_info
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.publish import taken

DIRECTORY = "_work"
_MARKER_NAME = "feedline.json"  # in the work directory: without it, a directory of that name is somebody else's
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")  # a file that `storage.atomic_writer` has begun


def check_out(options: IngestOptions) -> None:
    """Raises `OptionError` unless a dataset can be built in `out`: it is new, empty, or the rest of an ingest."""
    out = options.out
    try:
        published = manifest.is_published(out)
    except OSError as error:
        raise OptionError(f"{out} cannot be looked at: {error}; correct --out, or what its store asks for") from error
    if published:
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
    foreign = sorted(name for name in os.listdir(out) if not _is_ours(name))
    if foreign or (os.listdir(out) and not _is_rest(out)):
        held = f"holds {foreign[0]!r}" if foreign else "is not empty"
        raise OptionError(f"{out} {held} and is not the rest of an earlier ingest; choose another --out")


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
    return os.listdir(out) == [DIRECTORY] and os.path.isdir(work) and all(map(_TEMPORARY.fullmatch, os.listdir(work)))


def _is_ours(name: str) -> bool:
    return name in (DIRECTORY, *manifest.TABLE_NAMES, *tfds_info.NAMES) or name.startswith(shards.SPLIT_PREFIX)


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
        raise OptionError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error


def mark_again(out: str, work: str) -> None:
    """Marks the work directory as ours again when somebody removed it and a stage has made parts of it anew."""
    if storage.is_remote(out) or os.path.exists(storage.join(work, _MARKER_NAME)):
        return
    if os.path.isdir(work) or disk.used_bytes(out):
        with contextlib.suppress(OSError):  # of a disk that takes nothing
            _mark(work)


def _mark(work: str) -> None:
    storage.write_bytes(storage.join(work, _MARKER_NAME), b'{"made_by": "feedline ingest"}')

"""Datasets that TensorFlow cannot open where they lie: what is read of them is fetched to this machine, once.

    DIR/datasets/DIGEST/dataset.json, images.parquet, Split-train/...    as in the store; a file is whole or not there
    DIR/datasets/DIGEST.used      locked, shared, by every process that reads the copy, as long as it lives
    DIR/datasets/fetching         locked by the process that fetches; others wait for it and find what it fetched

The pipeline then reads a local dataset, so that order, resume and positions are those of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common.strings import size
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import IMAGES_NAME, Manifest
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from trainer.options import InputOptions

_BLOCK_BYTES = 8 << 20  # a request each
_LEFT_FREE_BYTES = 1 << 30  # checkpoints and the caches of others live on the same disk
_FOLDER, _USED, _FETCHING, _SCRATCH = "datasets", ".used", "fetching", "tmp"
_held: dict[str, int] = {}  # file -> descriptor whose shared lock this process keeps


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file to fetch: where from, where to, its size in bytes and its sha256, hex."""

    source: str
    target: str
    bytes: int
    sha256: str


def readable(path: str, dataset: Manifest, split: str, options: InputOptions) -> str:
    """Returns a directory that holds one split of a dataset and that TensorFlow can read.

    What TensorFlow knows, local paths and `gs://`, it reads where it lies: a dataset may be larger than any disk here.
    Of anything else, such as `s3://`, the shards of the split are fetched, each checked against the sha256 in
    `dataset.json`. They stay for the next run; what an interrupted one has fetched is not fetched again. When the disk
    is full, copies that no process reads make room, the one used least recently first.

    Args:
      path: directory of the dataset.
      dataset: its manifest.
      split: name of the split.
      options: `cache_dir` is where copies go, by default `feedline` in the cache directory of the user; `readers`
        files are fetched at a time.

    Raises:
      OptionError: there is no such split, no room for it or no directory to write to; or others are to read the files.
      SourceError: the store does not answer; what was fetched is kept.
      CorruptDataset: a file is not the one that was published.
    """
    if not storage.is_remote(path) or path.partition("://")[0].lower() in tf.io.gfile.get_registered_schemes():
        return path
    if options.service:
        raise OptionError(
            f"service is {options.service!r} and TensorFlow cannot open {path} on its workers; leave service empty, or "
            "copy the dataset to where all of them can read it"
        )
    root = os.path.join(options.cache_dir or _default_directory(), _FOLDER)
    here = os.path.join(root, dataset.digest[:32])
    try:
        os.makedirs(here, exist_ok=True)
        _hold(here + _USED)
        # The manifest comes last: without it another process is still at work, or was killed.
        if not manifest.is_published(here) or _missing(path, here, dataset, split):
            with _alone(os.path.join(root, _FETCHING)):
                _fetch(path, here, dataset, split, options)
    except OSError as error:
        raise OptionError(
            f"{root} cannot be written: {error.strerror or error}; {path} has to be copied there, name another "
            f"directory with {_option(options)}"
        ) from error
    return here


def _default_directory() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "feedline")


def _option(options: InputOptions) -> str:
    return "cache_dir" if options.cache_dir else "the environment variable XDG_CACHE_HOME"


def _missing(path: str, here: str, dataset: Manifest, split: str) -> list[_File]:
    """Returns what is not here yet. A name appears with the last byte, so a file of the right size is the file."""
    shards = dataset.split(split).shards
    places = zip(dataset.shard_paths(path, split), dataset.shard_paths(here, split), shards, strict=True)
    wanted = [_File(source=there, target=to, bytes=shard.bytes, sha256=shard.sha256) for there, to, shard in places]
    missing = [file for file in wanted if not os.path.exists(file.target) or storage.size(file.target) != file.bytes]
    table = os.path.join(here, IMAGES_NAME)
    if not os.path.exists(table):
        source = storage.join(path, IMAGES_NAME)
        with _source_errors(source):
            size = storage.size(source)
        missing.insert(0, _File(source=source, target=table, bytes=size, sha256=dataset.tables[IMAGES_NAME]))
    return missing


def _fetch(path: str, here: str, dataset: Manifest, split: str, options: InputOptions) -> None:
    root = os.path.dirname(here)
    scratch = os.path.join(root, _SCRATCH)
    storage.remove_tree(scratch)  # of a process that was killed
    files = _missing(path, here, dataset, split)  # another one may have fetched meanwhile
    needed = sum(file.bytes for file in files)
    if (room := _make_room(here, needed)) < needed:
        raise OptionError(
            f"split {split} of {path} needs {size(needed)} more in {root}, which has room for "
            f"{size(room)}; make room there, or name a directory on another disk with {_option(options)}"
        )
    for _ in map_ordered(lambda file: _copy(file, scratch), files, options.readers):
        pass
    if not manifest.is_published(here):
        manifest.write(dataset, here, scratch)


def _copy(file: _File, scratch: str) -> None:
    hasher = hashlib.sha256()
    with storage.atomic_writer(file.target, scratch) as out:
        for block in _blocks(file):
            hasher.update(block)
            out.write(block)
        if hasher.hexdigest() != file.sha256:
            raise CorruptDataset(
                f"{file.source} has changed since it was published: its sha256 is not the one in "
                f"{manifest.MANIFEST_NAME}; write the dataset again"
            )


def _blocks(file: _File) -> Iterator[bytes]:
    for offset in range(0, file.bytes, _BLOCK_BYTES):
        with _source_errors(file.source):
            block = storage.read_range(file.source, offset, min(_BLOCK_BYTES, file.bytes - offset))
        yield block


@contextlib.contextmanager
def _source_errors(source: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptDataset(f"{source} is missing; write the dataset again") from error
    except OSError as error:
        text = error.strerror or error
        raise SourceError(f"{source} cannot be read: {text}; what was fetched is kept, run it again") from error


def _make_room(here: str, needed: int) -> int:
    """Removes copies without a reader until there is room for some bytes more; returns how many there is room for."""
    root = os.path.dirname(here)
    for other in _least_recent_first(root):
        if _room(root) >= needed:
            break
        if other != here:
            _remove_unused(other)
    return _room(root)


def _room(root: str) -> int:
    return max(0, shutil.disk_usage(root).free - _LEFT_FREE_BYTES)


def _least_recent_first(root: str) -> Sequence[str]:
    used = [entry for entry in os.scandir(root) if entry.name.endswith(_USED)]
    return [entry.path.removesuffix(_USED) for entry in sorted(used, key=lambda entry: entry.stat().st_mtime)]


def _remove_unused(copy: str) -> None:
    with open(copy + _USED, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody reads it
            return
        storage.remove_tree(copy)


def _hold(path: str) -> None:
    """Marks a copy as read by this process, until it ends."""
    if path not in _held:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(number, fcntl.LOCK_SH)
        _held[path] = number
    os.utime(path)


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    with open(path, "wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

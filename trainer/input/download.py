"""Local copies of datasets in stores that TensorFlow cannot read; only the splits that are read are downloaded.

    DIR/datasets/DIGEST/dataset.json, images/..., Split-train/...    as in the store; files are complete or absent
    DIR/datasets/DIGEST.used      shared lock of every process that reads the copy
    DIR/datasets/fetching         exclusive lock of the process that downloads; others wait for it

The pipeline then reads a local dataset, with the same order and positions.
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
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from trainer.options import InputOptions

_BLOCK_BYTES = 8 << 20  # of one request
_RESERVED_BYTES = 1 << 30  # checkpoints and other caches need space on the same disk
_FOLDER, _USED, _FETCHING, _SCRATCH = "datasets", ".used", "fetching", "tmp"
_locks: dict[str, int] = {}  # path of a lock file -> descriptor with the shared lock of this process


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file to download: its source, its target, its size in bytes and its sha256, hex."""

    source: str
    target: str
    bytes: int
    sha256: str


def ensure_readable(path: str, dataset: Manifest, split: str, options: InputOptions) -> str:
    """Returns a directory that contains one split of a dataset and that TensorFlow can read.

    Local paths and `gs://` are returned unchanged. From other stores, such as `s3://`, the shards of the split are
    downloaded and checked against the sha256 in `dataset.json`. The copy remains for the next run; after an interrupted
    download, the next run fetches only the missing files. If the disk is full, copies that no process reads are
    removed, the least recently used first.

    Args:
      path: directory of the dataset.
      dataset: manifest of the dataset.
      split: name of the split.
      options: options of the pipeline: `cache_dir` is the directory of the copies, by default `feedline` in the cache
        directory of the user; `readers` is the number of parallel downloads.

    Raises:
      OptionError: the split does not exist, the disk is full, the directory is not writable, or `service` is set.
      SourceError: the store does not respond; the downloaded files remain.
      CorruptDataset: a file has changed since it was published.
    """
    if not storage.is_remote(path) or path.partition("://")[0].lower() in tf.io.gfile.get_registered_schemes():
        return path
    if options.service:
        raise OptionError(
            f"service is {options.service!r} and TensorFlow cannot open {path} on its workers; leave service empty, or "
            "copy the dataset to a store that all workers can read"
        )
    default_dir = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "feedline")
    root = os.path.join(options.cache_dir or default_dir, _FOLDER)
    copy = os.path.join(root, dataset.digest[:32])
    try:
        os.makedirs(copy, exist_ok=True)
        _lock_shared(copy + _USED)
        # The manifest is written last: without it another process is still downloading, or was killed.
        if not manifest.is_published(copy) or _list_missing(path, copy, dataset, split):
            with _lock_exclusively(os.path.join(root, _FETCHING)):
                _download(path, copy, dataset, split, options)
    except OSError as error:
        raise OptionError(
            f"{root} cannot be written: {error.strerror or error}; {path} must be copied there; name another "
            f"directory with {_directory_option(options)}"
        ) from error
    return copy


def _directory_option(options: InputOptions) -> str:
    return "cache_dir" if options.cache_dir else "the environment variable XDG_CACHE_HOME"


def _list_missing(path: str, copy: str, dataset: Manifest, split: str) -> list[_File]:
    """Returns the files that the copy lacks. A download gets its final name when it is complete."""
    shards = dataset.split(split).shards
    rows = zip(dataset.shard_paths(path, split), dataset.shard_paths(copy, split), shards, strict=True)
    files = [_File(source=uri, target=target, bytes=shard.bytes, sha256=shard.sha256) for uri, target, shard in rows]
    missing = [file for file in files if not os.path.exists(file.target) or storage.size(file.target) != file.bytes]
    tables = zip(dataset.image_paths(path), dataset.image_paths(copy), dataset.image_digests.values(), strict=True)
    for number, (source, table, sha256) in enumerate(tables):
        if not os.path.exists(table):
            length = _table_bytes(dataset, number, source)
            missing.insert(number, _File(source=source, target=table, bytes=length, sha256=sha256))
    return missing


def _table_bytes(dataset: Manifest, number: int, source: str) -> int:
    if dataset.images:
        return dataset.images[number].bytes
    with _convert_read_errors(source):  # a manifest of format 1 does not contain the size
        return storage.size(source)


def _download(path: str, copy: str, dataset: Manifest, split: str, options: InputOptions) -> None:
    root = os.path.dirname(copy)
    scratch = os.path.join(root, _SCRATCH)
    storage.remove_tree(scratch)  # files of a process that was killed
    files = _list_missing(path, copy, dataset, split)  # another process may have downloaded files meanwhile
    needed_bytes = sum(file.bytes for file in files)
    if (available_bytes := _free_space(copy, needed_bytes)) < needed_bytes:
        raise OptionError(
            f"split {split} of {path} needs {size(needed_bytes)} more in {root}, where {size(available_bytes)} "
            f"are available; free space there, or name a directory on another disk with {_directory_option(options)}"
        )
    for _ in map_ordered(lambda file: _download_file(file, scratch), files, options.readers):
        pass
    if not manifest.is_published(copy):
        manifest.write(dataset, copy, scratch)


def _download_file(file: _File, scratch: str) -> None:
    hasher = hashlib.sha256()
    with storage.atomic_writer(file.target, scratch) as out:
        for block in _read_blocks(file):
            hasher.update(block)
            out.write(block)
        if hasher.hexdigest() != file.sha256:
            raise CorruptDataset(
                f"{file.source} has changed since it was published: its sha256 is not the one in "
                f"{manifest.MANIFEST_NAME}; write the dataset again"
            )


def _read_blocks(file: _File) -> Iterator[bytes]:
    for offset in range(0, file.bytes, _BLOCK_BYTES):
        with _convert_read_errors(file.source):
            block = storage.read_range(file.source, offset, min(_BLOCK_BYTES, file.bytes - offset))
        yield block


@contextlib.contextmanager
def _convert_read_errors(source: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptDataset(f"{source} is missing; write the dataset again") from error
    except OSError as error:
        text = error.strerror or error
        raise SourceError(f"{source} cannot be read: {text}; try again, downloaded files are kept") from error


def _free_space(copy: str, needed_bytes: int) -> int:
    """Removes unused copies until `needed_bytes` bytes are free; returns the number of free bytes."""
    root = os.path.dirname(copy)
    for other_copy in _list_by_last_use(root):
        if _free_bytes(root) >= needed_bytes:
            break
        if other_copy != copy:
            _remove_unused(other_copy)
    return _free_bytes(root)


def _free_bytes(root: str) -> int:
    return max(0, shutil.disk_usage(root).free - _RESERVED_BYTES)


def _list_by_last_use(root: str) -> Sequence[str]:
    entries = [entry for entry in os.scandir(root) if entry.name.endswith(_USED)]
    return [entry.path.removesuffix(_USED) for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)]


def _remove_unused(copy: str) -> None:
    with open(copy + _USED, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a process reads it
            return
        storage.remove_tree(copy)


def _lock_shared(path: str) -> None:
    """Locks a copy until this process ends, so that no process removes it."""
    if path not in _locks:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _locks[path] = descriptor
    os.utime(path)


@contextlib.contextmanager
def _lock_exclusively(path: str) -> Iterator[None]:
    with open(path, "wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

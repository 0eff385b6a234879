"""The fingerprint of a source identifies it by keys, labels and content.

Names and times alone do not show whether images changed. Object stores have checksums, in the listing or in the
metadata of an object, and many web servers have ETags. An index, like that of git, stores the digests of local files,
so that only files whose status has changed since are read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from beam_jobs import storage
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.options import HttpOptions, IngestOptions
from beam_jobs.rejects import Reject
from beam_jobs.sources import http_fetch
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import ImageRef

# Not part of the fingerprint: time, size (the content hash covers it) and position in an archive.
_IGNORED_COLUMNS = ("mtime_ns", "bytes", "slice", "checksum")


def source_fingerprint(options: IngestOptions, index: str = "") -> str:
    """Returns the sha256, in hex, of the entries and image files of a source.

    Moving an image to another class, renaming it, or editing it with unchanged size and time changes the fingerprint; a
    new modification time does not. Another ETag of a web server or of an S3 object changes it, too, even for the same
    bytes, which an upload may cause, and so does another offset of an image in an archive in a store.

    Args:
      options: options of the ingest.
      index: local path of a `FileIndex`; when empty, every file is read.

    Raises:
      SourceError: the source cannot be ingested.
      Unreadable: an image may exist and cannot be read, unless `unreadable` is `reject`.
    """
    source = open_source(options)
    hasher = hashlib.sha256()
    base = source.base if storage.is_remote(source.base) else os.path.abspath(source.base)
    reader = Reader(base=base, max_bytes=options.limits.max_bytes, http=options.http)
    with FileIndex(index, options.limits.max_bytes) as files:
        describe = partial(
            _describe,
            reader=reader,
            files=files,
            stored_checksum=lru_cache(_CHECKSUMS)(partial(_stored_checksum, http=options.http)),
            may_reject=options.unreadable == "reject",
        )
        for line in map_ordered(describe, source.entries(), options.thread_count, _CHUNK_FILES):
            hasher.update(line)
        files.remove_unused()
    return hasher.hexdigest()


def dataset_fingerprint(dataset: Manifest) -> str:
    """Returns the sha256, in hex, of the manifest of a published dataset.

    It covers the digest of the shards, and the rejects, tables and options, which gates and reports read. It does not
    depend on the path of the dataset or the times of its files.
    """
    return dataset.to_json()["checksum"]


def _stored_checksum(path: str, http: HttpOptions) -> str:
    """Returns checksum and size of an object, from its store or web server; empty if the object must be read instead.

    Raises:
      Unreadable: the store does not answer. Reading the object instead would give another fingerprint.
    """
    if not storage.is_remote(path):
        return ""
    if http_fetch.is_url(path):
        try:
            return http_fetch.checksum(path, http)
        except BadImage:  # reading the URL reports whether the image is bad
            return ""
    try:
        status = storage.describe(path)
    except OSError as error:
        if storage.is_no_file(error):  # reading the object gives a more specific error
            return ""
        raise Unreadable(error.strerror or str(error)) from error
    return f"{status.checksum} {status.bytes}" if status.checksum else ""


def _describe(
    entry: ImageRef | Reject, reader: Reader, files: FileIndex, stored_checksum: Callable[[str], str], may_reject: bool
) -> bytes:
    """Returns the JSON of a reject, or of the columns of an image and the digests of its bytes and its mask."""
    if isinstance(entry, Reject):
        return json.dumps(schemas.reject_row(entry), sort_keys=True).encode()
    row = {name: value for name, value in schemas.ref_row(entry).items() if name not in _IGNORED_COLUMNS}
    mask = entry.annotations.mask if entry.annotations else ""
    listed = f"{entry.checksum} {entry.bytes}" if entry.checksum else ""

    def digest(uri: str, slice_text: str) -> str:
        path = reader.path(uri, slice_text)
        if stored_text := stored_checksum(path):
            return f"{stored_text} {slice_text}".rstrip()
        return files.digest(path, slice_text, lambda: reader.read(uri, slice_text))

    try:
        digests = listed or digest(entry.uri, entry.slice), digest(mask, "") if mask else hashlib.sha256().hexdigest()
    except BadImage as bad:
        return json.dumps([row, bad.detail], sort_keys=True).encode()
    except Unreadable as fault:
        if not may_reject:
            message = f"{entry.key} cannot be read: {fault}; repair the cause, or set unreadable to reject"
            raise Unreadable(message) from fault
        return json.dumps([row, str(fault)], sort_keys=True).encode()
    return json.dumps([row, *digests], sort_keys=True).encode()


class _Status(NamedTuple):
    """File status that changes with the content; on most file systems, a program can reset all values but the ctime."""

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


_TICK_NS = 2 * 10**9  # step of the coarsest file times, those of FAT
_COMMIT_ROWS = 1000
_CHECKSUMS = 1024  # archives with cached checksums; thousands of consecutive images may be in one archive
_CHUNK_FILES = 16  # files per task of a thread; most files take microseconds
_TABLE = """CREATE TABLE IF NOT EXISTS files (
    path BLOB, slice BLOB, bytes INT, mtime_ns INT, ctime_ns INT, inode INT, sha256 BLOB, run TEXT,
    PRIMARY KEY (path, slice)) WITHOUT ROWID"""
_CHECK_TABLE = "SELECT path, slice, bytes, mtime_ns, ctime_ns, inode, sha256, run FROM files LIMIT 0"


class FileIndex(contextlib.AbstractContextManager["FileIndex"]):
    """Digests of local files, and of images in containers, by the status of their file.

    A digest is valid as long as size, mtime, ctime and inode are the same. It is stored only for a file that was older
    than a tick of the file system clock when it was read, because a file can change twice within one tick. Without an
    index, or with one that is damaged or not writable, all files are read; that is never an error.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        """Opens or creates the index.

        Args:
          path: local path; when empty, all files are read.
          max_bytes: size of the largest file that `read` returns completely; digests of larger files are not stored.
        """
        self._path, self._max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._run = f"{time.time_ns()}"  # marks the digests that this run uses
        self._change_count = 0
        self._database: sqlite3.Connection | None = None
        if path:
            with self._continue_without_index():
                storage.make_dirs(os.path.dirname(path))
                self._database = sqlite3.connect(path, check_same_thread=False)
                self._database.execute(_TABLE)
                self._database.execute(_CHECK_TABLE)  # raises an error if the index has other columns

    def __exit__(self, *_: object) -> None:
        """Saves the digests, also after an error; threads that still read continue without the index."""
        with self._lock, self._continue_without_index():
            if self._database:
                self._database.commit()
                self._database.close()
                self._database = None

    def digest(self, path: str, slice_text: str, read: Callable[[], bytes]) -> str:
        """Returns the sha256, in hex, of a file or of an image in it.

        Args:
          path: path or URL of the file.
          slice_text: `Slice.text` of an image in a container; empty for the file.
          read: reads the bytes.

        Raises:
          BadImage, Unreadable: see `Reader.read`.
        """
        status_before = self._status(path)
        if status_before and (stored_digest := self._stored_digest(path, slice_text, status_before)):
            return stored_digest
        now_ns = time.time_ns()
        data = read()
        digest = hashlib.sha256(data)
        is_old = status_before is not None and max(status_before.mtime_ns, status_before.ctime_ns) < now_ns - _TICK_NS
        if status_before and is_old and len(data) <= self._max_bytes and status_before == self._status(path):
            self._store_digest(path, slice_text, status_before, digest.digest())
        return digest.hexdigest()

    def remove_unused(self) -> None:
        """Removes the digests that `digest` has not returned since the index was opened."""
        with self._lock, self._continue_without_index():
            if self._database:
                self._database.execute("DELETE FROM files WHERE run != ?", (self._run,))

    def _status(self, path: str) -> _Status | None:
        if self._database is None or storage.is_remote(path):
            return None
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # reading the file gives a more specific error
            return None
        return _Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def _stored_digest(self, path: str, slice_text: str, status: _Status) -> str:
        key = (os.fsencode(path), os.fsencode(slice_text))
        statement = """SELECT sha256 FROM files
            WHERE path = ? AND slice = ? AND bytes = ? AND mtime_ns = ? AND ctime_ns = ? AND inode = ?"""
        with self._lock, self._continue_without_index():
            if self._database:
                row = self._database.execute(statement, (*key, *status)).fetchone()
                if row:
                    self._database.execute("UPDATE files SET run = ? WHERE path = ? AND slice = ?", (self._run, *key))
                    self._commit_some()
                    return row[0].hex()
        return ""

    def _store_digest(self, path: str, slice_text: str, status: _Status, digest: bytes) -> None:
        row = (os.fsencode(path), os.fsencode(slice_text), *status, digest, self._run)
        with self._lock, self._continue_without_index():
            if self._database:
                self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._commit_some()

    def _commit_some(self) -> None:
        """Ends the transaction after many changes: other runs wait for it, and a killed run loses its digests."""
        self._change_count += 1
        if self._database and self._change_count % _COMMIT_ROWS == 0:
            self._database.commit()

    @contextlib.contextmanager
    def _continue_without_index(self) -> Iterator[None]:
        """Continues without an index that fails; a damaged one is removed, so that the next run creates one."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if self._database:
                self._database.close()
            self._database = None
            # Other errors, such as that of a full disk, are of a subclass of `DatabaseError`.
            if type(error) is sqlite3.DatabaseError or "no such column" in str(error):
                with contextlib.suppress(OSError):
                    storage.remove(f"{self._path}-journal")  # otherwise it would be applied to the next index
                    storage.remove(self._path)

"""The fingerprint of a source identifies it by keys, labels and content.

Names and times alone do not show whether images changed. Object stores have checksums, in the listing or in the
metadata of an object, and many web servers have ETags; an index, like that of git, remembers the digests of local
files, so that only files are read whose status has changed since.
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
    new modification time does not. An object of S3 that is uploaded again may have another ETag, which does, and so
    does another ETag of a web server, and another position of an image in an archive in a store.

    Args:
      options: options of the ingest.
      index: local path of a `FileIndex`; every file is read when empty.

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
            rejecting=options.unreadable == "reject",
        )
        for line in map_ordered(describe, source.entries(), options.thread_count, _CHUNK_FILES):
            hasher.update(line)
        files.forget_others()
    return hasher.hexdigest()


def dataset_fingerprint(dataset: Manifest) -> str:
    """Returns the sha256, in hex, of the manifest of a published dataset.

    It covers the digest of the shards, and what gates and reports read besides them: rejects, tables and options. It
    does not depend on the path of the dataset or the times of its files.
    """
    return dataset.to_json()["checksum"]


def _stored_checksum(path: str, http: HttpOptions) -> str:
    """Returns checksum and size of an object as its store or web server knows them; empty if it must be read.

    Raises:
      Unreadable: the store gives no answer. Reading the object instead would give another fingerprint.
    """
    if not storage.is_remote(path):
        return ""
    if http_fetch.is_url(path):
        try:
            return http_fetch.checksum(path, http)
        except BadImage:  # reading it says whether it is one
            return ""
    try:
        found = storage.describe(path)
    except OSError as error:
        if storage.is_no_file(error):  # the reader says more
            return ""
        raise Unreadable(error.strerror or str(error)) from error
    return f"{found.checksum} {found.bytes}" if found.checksum else ""


def _describe(
    entry: ImageRef | Reject, reader: Reader, files: FileIndex, stored_checksum: Callable[[str], str], rejecting: bool
) -> bytes:
    if isinstance(entry, Reject):
        return json.dumps(schemas.reject_row(entry), sort_keys=True).encode()
    row = {name: value for name, value in schemas.ref_row(entry).items() if name not in _IGNORED_COLUMNS}
    mask = entry.annotations.mask if entry.annotations else ""

    listed = f"{entry.checksum} {entry.bytes}" if entry.checksum else ""

    def digest(uri: str, slice_text: str) -> str:
        path = reader.path(uri, slice_text)
        if stored := stored_checksum(path):
            return f"{stored} {slice_text}".rstrip()
        return files.digest(path, slice_text, lambda: reader.read(uri, slice_text))

    try:
        digests = (listed or digest(entry.uri, entry.slice), digest(mask, "") if mask else hashlib.sha256().hexdigest())
    except BadImage as bad:
        return json.dumps([row, bad.detail], sort_keys=True).encode()
    except Unreadable as fault:
        if not rejecting:
            message = f"{entry.key} cannot be read: {fault}; repair the cause, or set unreadable to reject"
            raise Unreadable(message) from fault
        return json.dumps([row, str(fault)], sort_keys=True).encode()
    return json.dumps([row, *digests], sort_keys=True).encode()


class _Status(NamedTuple):
    """What changes when the content of a file does; on most file systems, a program can set back all but the ctime."""

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


_TICK_NS = 2 * 10**9  # FAT has the coarsest times
_COMMIT_ROWS = 1000
_CHECKSUMS = 1024  # of archives; thousands of images in a row may be in one
_CHUNK_FILES = 16  # of a thread at a time; most take microseconds
_TABLE = """CREATE TABLE IF NOT EXISTS files (
    path BLOB, slice BLOB, bytes INT, mtime_ns INT, ctime_ns INT, inode INT, sha256 BLOB, run TEXT,
    PRIMARY KEY (path, slice)) WITHOUT ROWID"""
_CHECK_TABLE = "SELECT path, slice, bytes, mtime_ns, ctime_ns, inode, sha256, run FROM files LIMIT 0"


class FileIndex(contextlib.AbstractContextManager["FileIndex"]):
    """Digests of local files, and of images in containers, by the status of their file.

    A digest counts as long as size, mtime, ctime and inode are the same. It is recorded only for a file that was older
    than the tick of the clock when it was read, because a file can change twice within one. An index that is missing,
    damaged or not writable means that files are read; it is never an error.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        """Opens or creates the index.

        Args:
          path: local path; when empty, all files are read.
          max_bytes: number of bytes from which on `read` gives only a part of a file, whose digest is not recorded.
        """
        self._path, self._max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._run = f"{time.time_ns()}"
        self._changes = 0
        self._database: sqlite3.Connection | None = None
        if path:
            with self._or_without():
                storage.make_dirs(os.path.dirname(path))
                self._database = sqlite3.connect(path, check_same_thread=False)
                self._database.execute(_TABLE)
                self._database.execute(_CHECK_TABLE)

    def __exit__(self, *_: object) -> None:
        """Saves what was read, also after an error; threads that still read then go on without."""
        with self._lock, self._or_without():
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
        before = self._status(path)
        if before and (known := self._find(path, slice_text, before)):
            return known
        now_ns = time.time_ns()
        data = read()
        digest = hashlib.sha256(data)
        is_old = before is not None and max(before.mtime_ns, before.ctime_ns) < now_ns - _TICK_NS
        if before and is_old and len(data) <= self._max_bytes and before == self._status(path):
            self._add(path, slice_text, before, digest.digest())
        return digest.hexdigest()

    def forget_others(self) -> None:
        """Removes the files that were not asked for since the index was opened."""
        with self._lock, self._or_without():
            if self._database:
                self._database.execute("DELETE FROM files WHERE run != ?", (self._run,))

    def _status(self, path: str) -> _Status | None:
        if self._database is None or storage.is_remote(path):
            return None
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # reading it says more
            return None
        return _Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def _find(self, path: str, slice_text: str, status: _Status) -> str:
        key = (os.fsencode(path), os.fsencode(slice_text))
        statement = """SELECT sha256 FROM files
            WHERE path = ? AND slice = ? AND bytes = ? AND mtime_ns = ? AND ctime_ns = ? AND inode = ?"""
        with self._lock, self._or_without():
            if self._database:
                row = self._database.execute(statement, (*key, *status)).fetchone()
                if row:
                    self._database.execute("UPDATE files SET run = ? WHERE path = ? AND slice = ?", (self._run, *key))
                    self._commit_some()
                    return row[0].hex()
        return ""

    def _add(self, path: str, slice_text: str, status: _Status, digest: bytes) -> None:
        row = (os.fsencode(path), os.fsencode(slice_text), *status, digest, self._run)
        with self._lock, self._or_without():
            if self._database:
                self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._commit_some()

    def _commit_some(self) -> None:
        """Ends the transaction now and then: other runs wait for it, and a killed run loses what it has read."""
        self._changes += 1
        if self._database and self._changes % _COMMIT_ROWS == 0:
            self._database.commit()

    @contextlib.contextmanager
    def _or_without(self) -> Iterator[None]:
        """Goes on without an index that fails; a damaged one is removed, so that the next run makes a new one."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if self._database:
                self._database.close()
            self._database = None
            # Errors such as that of a full disk are of a class below it.
            if type(error) is sqlite3.DatabaseError or "no such column" in str(error):
                with contextlib.suppress(OSError):
                    storage.remove(f"{self._path}-journal")  # of another database, it would be applied to the new one
                    storage.remove(self._path)

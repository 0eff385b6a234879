"""Google Storage, on one client a thread: Google promises nothing of clients that threads share.

Whether there are credentials is asked once and with an end. Without any, Google's library asks whether this is a
machine of Google's, and Beam asks it five times and then goes on without; the first request runs into a time-out of
minutes that says nothing of credentials.
"""

from __future__ import annotations

import base64
import errno
import io
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import google.auth
import google_crc32c
from apache_beam.io.gcp.gcsio import BeamBlobWriter, GcsIO, create_storage_client, parse_gcs_path
from google.api_core.exceptions import (
    PreconditionFailed,
    RequestRangeNotSatisfiable,
    RetryError,
    from_http_response,
)
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.retry import DEFAULT_RETRY
from urllib3.exceptions import HTTPError

from beam_jobs.storage.object_stores.store import Listed, Store, already_exists, no_name

LOGIN = "gcloud auth application-default login"
LOGIN_REMEDY = f"make some with `{LOGIN}`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGGER = logging.getLogger("google.auth")
_WAIT_S = 10.0  # Google's library asks its metadata server three times for three seconds


def missing_login() -> str:
    """Returns why there are no credentials here, in a line that ends with what to do; empty when there are some."""
    answers: list[Any] = []

    def look() -> None:
        level = _LOGGER.level
        _LOGGER.setLevel(logging.ERROR)  # or it warns that there is no metadata server
        try:
            answers.append(google.auth.default(scopes=[_SCOPE]))
        except GoogleAuthError as error:
            answers.append(error)
        finally:
            _LOGGER.setLevel(level)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_WAIT_S)
    if answers and not isinstance(answers[0], Exception):
        return ""
    reason = _login_reason(answers[0]) if answers else f" (no answer from the metadata server in {_WAIT_S:g} s)"
    return f"there are no Google Cloud credentials here{reason}; {LOGIN_REMEDY}"


def _login_reason(error: Exception) -> str:
    """Returns what is wrong with credentials that are named; that there are none at all needs no reason."""
    words = " ".join(str(error.args[0] if error.args else error).split())
    return "" if words.startswith("Your default credentials were not found") else f" ({words[:200]})"


_READ_BYTES = 1 << 20  # Beam's 16 MiB would be read for every jump in an object
_BODY_ATTEMPTS = 3  # for a body that breaks off: older clients repeat only what comes before it
_RETRY = DEFAULT_RETRY  # of the client: two minutes, with growing waits
_EMULATOR = "STORAGE_EMULATOR_HOST"  # Google's client reads it

_thread = threading.local()
_looking = threading.Lock()
_found: list[bool] = []  # whether there are credentials, or an emulator goes without


def store(options: Any) -> GcsStore:
    """Returns the store of this thread; a new one when the options of the pipeline are others.

    Raises:
      OSError: there are no credentials; the message says how to make some. An emulator needs none.
    """
    cached: tuple[Any, GcsStore] | None = getattr(_thread, "cached", None)
    if cached is None or cached[0] is not options:
        client = create_storage_client(options, use_credentials=_has_credentials())
        cached = _thread.cached = (options, GcsStore(GcsIO(client, options)))
    return cached[1]


def _has_credentials() -> bool:
    """Asks for credentials, until there are some: on a machine of Google's they may come late."""
    with _looking:
        if not _found:
            reason = missing_login()
            if reason and not os.environ.get(_EMULATOR):
                raise OSError(reason)
            _found.append(not reason)
        return _found[0]


class GcsStore(Store):
    """Google Storage by Beam's client for it."""

    def __init__(self, gcsio: GcsIO) -> None:
        self._gcsio = gcsio

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return io.BufferedReader(_Reader(self, path), _READ_BYTES)

    def create(self, path: str) -> BinaryIO:
        """See `Store`."""
        return _Writer(self._blob(path), "application/octet-stream")

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `Store`. The store decides; generation 0 is that of an object that is not there."""
        try:
            self._blob(path).upload_from_string(data, "application/octet-stream", if_generation_match=0)
        except PreconditionFailed as error:
            raise already_exists(path) from error

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See `Store`. It is one request, and one for the size where less came and no checksum tells that it is all."""
        for _ in range(_BODY_ATTEMPTS):
            blob = self._blob(path)
            try:
                data = blob.download_as_bytes(start=offset, end=offset + length - 1, raw_download=True, retry=_RETRY)
            except RequestRangeNotSatisfiable:  # it ends before the range begins
                return b""
            except RetryError as error:  # newer clients ask again themselves for a body that breaks off
                if isinstance(error.cause, HTTPError):
                    break
                response = getattr(error.cause, "response", None)
                if response is None:
                    raise
                raise from_http_response(response) from error  # with the words of the store, as older clients do
            if len(data) == length or _ends_there(blob, offset, data):
                return data
        raise ConnectionError(errno.ECONNRESET, "the connection broke in the middle of the object", path)

    def exists(self, path: str) -> bool:
        """See `Store`."""
        return self._gcsio.exists(path)

    def size(self, path: str) -> int:
        """See `Store`."""
        blob = self._blob(path)
        blob.reload()
        return blob.size

    def delete(self, path: str) -> None:
        """See `Store`. Beam's filesystem would take the name for a pattern."""
        self._gcsio.delete(path, recursive=path.endswith("/"))

    def rename(self, path: str, target: str) -> None:
        """See `Store`. Of what fails, Beam's filesystem tells the status alone."""
        self._gcsio.copy(path, target)
        self._gcsio.delete(path)

    def list(self, prefix: str) -> Iterator[Listed]:
        """See `Store`. One page is in memory at a time; Beam's listing remembers every name."""
        bucket, start = parse_gcs_path(prefix, object_optional=True)
        fields = "items(name,size,updated),nextPageToken"
        for blob in self._gcsio.client.list_blobs(bucket, prefix=start, fields=fields):
            yield Listed(f"gs://{bucket}/{blob.name}", blob.size, int(blob.updated.timestamp() * 1e9))

    def _blob(self, path: str) -> Any:
        try:
            bucket, name = parse_gcs_path(path)
        except ValueError as error:
            raise no_name(path, error) from error
        return self._gcsio.client.bucket(bucket).blob(name)


def _ends_there(blob: Any, offset: int, data: bytes) -> bool:
    """Returns whether an object ends where a body did: the client takes one that breaks off for a whole one."""
    if not offset and blob.crc32c:
        return blob.crc32c == base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    blob.reload()
    return offset + len(data) >= blob.size


class _Reader(io.RawIOBase):
    """An object as a stream; Google's takes a body that breaks off for the end of the object."""

    def __init__(self, store: GcsStore, path: str) -> None:
        super().__init__()
        self._store, self._path, self._size = store, path, store.size(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self._size - self._position))
        data = self._store.read_range(self._path, self._position, length) if length else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position


class _Writer(BeamBlobWriter):
    """A writer that keeps to the contract of streams, and tries once to finish its object."""

    _closed = False  # of the class, for an object that was not made to its end is collected too

    def write(self, data: Any) -> int:
        # Google's returns where it is in the object, which a buffer in front of it takes for a mistake.
        super().write(data)
        return len(data)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        # Google's stays open after a failure, and tries again when it is collected, for minutes and in the middle of
        # anything else.
        if not self._closed:
            self._closed = True
            super().close()

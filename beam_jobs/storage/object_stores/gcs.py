"""Google Storage, with one client per thread: Google does not document its clients as thread-safe.

The credentials are checked once, with a time limit. Without credentials, Google's library asks the metadata server of
Google's machines, and Beam repeats that five times and continues; then the first request times out after minutes with
an error that does not mention credentials.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import logging
import os
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, BinaryIO

import google.auth
import google_crc32c
import requests
from apache_beam.internal.gcp.auth import get_service_credentials
from apache_beam.io.gcp.gcsio import BeamBlobWriter, GcsIO, create_storage_client, parse_gcs_path
from google.api_core.exceptions import PreconditionFailed, RetryError, from_http_response
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage.retry import DEFAULT_RETRY
from urllib3.exceptions import HTTPError

from beam_jobs.storage.object_stores.store import ListedObject, SortedStore, already_exists, invalid_path

LOGIN = "gcloud auth application-default login"
LOGIN_REMEDY = f"make some with `{LOGIN}`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGGER = logging.getLogger("google.auth")
_WAIT_S = 10.0  # Google's library asks its metadata server three times for three seconds


def missing_login() -> str:
    """Returns one line with the reason and the remedy when there are no credentials; empty when there are some."""
    results: list[Any] = []

    def request_credentials() -> None:
        level = _LOGGER.level
        _LOGGER.setLevel(logging.ERROR)  # otherwise it warns about the missing metadata server
        try:
            results.append(google.auth.default(scopes=[_SCOPE]))
        except GoogleAuthError as error:
            results.append(error)
        finally:
            _LOGGER.setLevel(level)

    thread = threading.Thread(target=request_credentials, daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    if results and not isinstance(results[0], Exception):
        return ""
    reason = _login_reason(results[0]) if results else f" (no answer from the metadata server in {_WAIT_S:g} s)"
    return f"there are no Google Cloud credentials here{reason}; {LOGIN_REMEDY}"


def _login_reason(error: Exception) -> str:
    """Returns the error of configured credentials in brackets; empty when none are configured."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    return "" if text.startswith("Your default credentials were not found") else f" ({text[:200]})"


_READ_BYTES = 1 << 20  # Beam would read 16 MiB after every seek
_BODY_ATTEMPTS = 3  # to read a body that is incomplete: older clients retry only until the body begins
_TIMEOUT_S = 60.0  # longest wait for an answer, as in the client
_RETRY = DEFAULT_RETRY  # of the client: two minutes, with growing delays
_EMULATOR = "STORAGE_EMULATOR_HOST"  # Google's client reads it

_thread = threading.local()
_credentials_lock = threading.Lock()
_credentials_exist: list[bool] = []  # at most one item, the result of the check; False for an emulator without them


def store(options: Any) -> GcsStore:
    """Returns the store of this thread; a new store for other options of the pipeline.

    Raises:
      OSError: there are no credentials; the message has a remedy. An emulator needs none.
    """
    cached: tuple[Any, GcsStore] | None = getattr(_thread, "cached", None)
    if cached is None or cached[0] is not options:
        has_credentials = _has_credentials()
        client = create_storage_client(options, use_credentials=has_credentials)
        credentials = get_service_credentials(options) if has_credentials else None
        session = AuthorizedSession(credentials.get_google_auth_credentials()) if credentials else requests.Session()
        cached = _thread.cached = (options, GcsStore(GcsIO(client, options), session))
    return cached[1]


def _has_credentials() -> bool:
    """Returns whether there are credentials. A failed check is repeated: Google's machines may provide them late."""
    with _credentials_lock:
        if not _credentials_exist:
            reason = missing_login()
            if reason and not os.environ.get(_EMULATOR):
                raise OSError(reason)
            _credentials_exist.append(not reason)
        return _credentials_exist[0]


class GcsStore(SortedStore):
    """Google Storage with Beam's client for it."""

    has_crc32c = True

    def __init__(self, gcsio: GcsIO, session: requests.Session) -> None:
        self._gcsio = gcsio
        self._session = session  # with the credentials of the client

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return io.BufferedReader(_Reader(self, path), _READ_BYTES)

    def create(self, path: str) -> BinaryIO:
        """See `Store`."""
        return _Writer(self._blob(path), "application/octet-stream")

    def write(self, path: str, data: bytes) -> None:
        """See `Store`. It takes one request up to 8 MB."""
        self._blob(path).upload_from_string(data, "application/octet-stream", retry=_RETRY)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `Store`. The store decides; generation 0 means that the object does not exist."""
        try:
            self._blob(path).upload_from_string(data, "application/octet-stream", if_generation_match=0)
        except PreconditionFailed as error:
            raise already_exists(path) from error

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See `Store`. It takes one request, and one for the size of the object when the body is short."""
        # Google's client reads a body in steps of 8 kB, which takes four times the processor time of one step.
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "gzip"}  # bytes as stored

        def fetch(blob: Any) -> bytes:
            url = f"{self._gcsio.client.api_endpoint}/download/storage/v1{blob.path}?alt=media"
            with self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
                if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # the object is shorter
                    return b""
                if not response.ok:
                    raise from_http_response(response)
                try:
                    return bytes(response.raw.read(length, decode_content=False))
                except HTTPError as error:
                    raise ConnectionError(str(error)) from error  # `_RETRY` then repeats the request

        return self._fetch_complete(path, offset, length, _RETRY(fetch))

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """See `Store`. The store gives the checksum of an object only in the answer to a request without a range."""

        def fetch(blob: Any) -> bytes:
            body = _FirstBytes(most_bytes)
            with contextlib.suppress(_EnoughBytes):
                blob.download_to_file(body, raw_download=True, checksum=None, retry=_RETRY)
            return body.getvalue()

        return self._fetch_complete(path, 0, most_bytes, fetch)

    def _fetch_complete(self, path: str, offset: int, length: int, fetch: Callable[[Any], bytes]) -> bytes:
        """Returns the bytes that `fetch` reads of an object; repeats the request if they are incomplete."""
        for _ in range(_BODY_ATTEMPTS):
            blob = self._blob(path)
            try:
                data = fetch(blob)
            except RetryError as error:  # newer clients retry an incomplete body themselves
                if isinstance(error.cause, (HTTPError, ConnectionError)):
                    break
                response = getattr(error.cause, "response", None)
                if response is None:
                    raise
                raise from_http_response(response) from error  # as older clients do, with the message of the store
            if len(data) == length or _is_complete(blob, offset, data):
                return data
        raise ConnectionError(errno.ECONNRESET, "the connection broke in the middle of the object", path)

    def exists(self, path: str) -> bool:
        """See `Store`."""
        return self._gcsio.exists(path)

    def describe(self, path: str) -> ListedObject:
        """See `Store`."""
        blob = self._blob(path)
        blob.reload()
        return _to_listed_object(blob)._replace(path=path)

    def delete(self, path: str) -> None:
        """See `Store`. Beam's filesystem would treat the name as a pattern."""
        self._gcsio.delete(path, recursive=path.endswith("/"))

    def rename(self, path: str, target: str) -> None:
        """See `Store`. Errors of Beam's filesystem contain only the status."""
        self._gcsio.copy(path, target)
        self._gcsio.delete(path)

    def pages(self, prefix: str, after: str) -> Iterator[list[ListedObject]]:
        """See `SortedStore`."""
        bucket, name_prefix = parse_gcs_path(prefix, object_optional=True)
        fields = "items(name,size,updated,crc32c,md5Hash),nextPageToken"
        first_name = name_prefix + after if after else None
        blobs = self._gcsio.client.list_blobs(bucket, prefix=name_prefix, start_offset=first_name, fields=fields)
        for page in blobs.pages:  # may include `first_name` itself; emulators ignore the offset
            objects = [_to_listed_object(blob) for blob in page if first_name is None or blob.name > first_name]
            yield [entry._replace(path=entry.path.removeprefix(name_prefix)) for entry in objects]

    def _blob(self, path: str) -> Any:
        try:
            bucket, name = parse_gcs_path(path)
        except ValueError as error:
            raise invalid_path(path, error) from error
        return self._gcsio.client.bucket(bucket).blob(name)


def _is_complete(blob: Any, offset: int, data: bytes) -> bool:
    """Returns whether a short body ends at the end of the object; the client does not report an incomplete body."""
    if not offset and blob.crc32c:
        return _crc32c(blob) == google_crc32c.value(data)
    blob.reload()
    return offset + len(data) >= blob.size


def _to_listed_object(blob: Any) -> ListedObject:
    mtime_ns = int(blob.updated.timestamp() * 1e9)
    checksum = blob.md5_hash or blob.crc32c or ""  # an object that was composed of other objects has no MD5
    return ListedObject(blob.name, blob.size, mtime_ns, checksum, _crc32c(blob))


def _crc32c(blob: Any) -> int | None:
    return int.from_bytes(base64.b64decode(blob.crc32c), "big") if blob.crc32c else None


class _EnoughBytes(Exception):
    """A `_FirstBytes` has all its bytes."""


class _FirstBytes(io.BytesIO):
    """Stores the first bytes of a download, and ends the download by raising `_EnoughBytes`."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        size = super().write(data[: self._most_bytes - self.tell()])
        if self.tell() == self._most_bytes:
            raise _EnoughBytes
        return size


class _Reader(io.RawIOBase):
    """An object as a stream; Google's own stream treats an incomplete body as the end of the object."""

    def __init__(self, store: GcsStore, path: str) -> None:
        super().__init__()
        self._store, self._path, self._size = store, path, store.describe(path).bytes
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
    """A writer with the return values of a Python stream, which makes one attempt to complete its object."""

    _closed = False  # a class attribute: the garbage collector also closes an object whose `__init__` failed

    def write(self, data: Any) -> int:
        # Google's writer returns the position in the object, which `BufferedWriter` rejects.
        super().write(data)
        return len(data)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        # Google's writer stays open after a failure, and retries for minutes when it is garbage-collected.
        if not self._closed:
            self._closed = True
            super().close()

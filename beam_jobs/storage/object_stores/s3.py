"""S3 and what speaks like it, on one client a process."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import boto3  # type: ignore[import-untyped]
from apache_beam.io.aws import s3io
from apache_beam.io.aws.clients.s3.boto3_client import Client
from apache_beam.io.aws.clients.s3.messages import GetRequest
from apache_beam.io.filesystemio import Uploader, UploaderStream
from apache_beam.options.pipeline_options import S3Options
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from beam_jobs.storage.object_stores.store import Listed, Store, already_exists, no_name, status_of

_READ_BYTES = 1 << 20  # Beam's 16 MiB would be read for every jump in an object
_WRITE_BYTES = 1 << 17
_PART_BYTES = 16 << 20  # S3 takes 10,000 parts, so objects up to 160 GiB
_BODY_ATTEMPTS = 3  # for a body that breaks off: the client repeats only what comes before it

_making = threading.Lock()
_made: list[tuple[Any, S3Store]] = []


def store(options: Any) -> S3Store:
    """Returns the store of this process; a new one when the options of the pipeline are others.

    Raises:
      OSError: there are no credentials; the message says where to put some.
    """
    with _making:
        if not _made or _made[0][0] is not options:
            _check_credentials(options)
            _made[:] = [(options, S3Store(Client(options)))]
        return _made[0][1]


def _check_credentials(options: Any) -> None:
    if not options.view_as(S3Options).s3_access_key_id and boto3.Session().get_credentials() is None:
        raise OSError(
            "there are no AWS credentials here; make some with `aws configure`, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )


class S3Store(Store):
    """S3 by Beam's client for it, where what Beam makes of that client costs too much by the same client directly."""

    def __init__(self, client: Client) -> None:
        """Takes a client that nothing is read with: it would hold on to the place."""
        self._client = client
        self._boto = client.client  # any number of threads may use it
        self._verbs = s3io.S3IO(client=client)

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return s3io.S3IO(client=copy.copy(self._client)).open(path, "rb", read_buffer_size=_READ_BYTES)

    def create(self, path: str) -> BinaryIO:
        """See `Store`."""
        return io.BufferedWriter(UploaderStream(_Upload(self._boto, path)), _WRITE_BYTES)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `Store`. The store decides; 409 is its answer while another request creates the same object."""
        bucket, key = s3io.parse_s3_path(path)
        try:
            self._boto.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as error:
            if status_of(error) in (409, 412):
                raise already_exists(path) from error
            raise

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See `Store`. It is one request."""
        for _ in range(_BODY_ATTEMPTS - 1):
            with contextlib.suppress(BotoCoreError):
                return self._read_once(path, offset, length)
        return self._read_once(path, offset, length)

    def exists(self, path: str) -> bool:
        """See `Store`."""
        try:
            self.size(path)
        except Exception as error:
            if status_of(error) == 404:
                return False
            raise
        return True

    def size(self, path: str) -> int:
        """See `Store`."""
        return self._client.get_object_metadata(GetRequest(*s3io.parse_s3_path(path))).size

    def delete(self, path: str) -> None:
        """See `Store`."""
        _raise_first(self._verbs.delete_paths([path]).values())

    def rename(self, path: str, target: str) -> None:
        """See `Store`."""
        _raise_first(error for _, _, error in self._verbs.rename_files([(path, target)]))

    def list(self, prefix: str) -> Iterator[Listed]:
        """See `Store`. One page is in memory at a time; Beam's listing remembers every name."""
        bucket, start = s3io.parse_s3_path(prefix, object_optional=True)
        for page in self._boto.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start):
            for item in page.get("Contents", ()):
                mtime_ns = int(item["LastModified"].timestamp() * 1e9)
                yield Listed(f"s3://{bucket}/{item['Key']}", item["Size"], mtime_ns)

    def _read_once(self, path: str, offset: int, length: int) -> bytes:
        try:
            bucket, key = s3io.parse_s3_path(path)
        except ValueError as error:
            raise no_name(path, error) from error
        try:
            found = self._boto.get_object(Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}")
            return found["Body"].read()
        except ClientError as error:
            if status_of(error) == 416:  # it ends before the range begins
                return b""
            raise
        except ParamValidationError as error:
            raise no_name(path, error) from error


class _Upload(Uploader):
    """An upload that takes one request while it is small, and parts when it grows.

    Beam's takes three requests whatever the size, cannot store an object without bytes, and logs tracebacks.
    """

    def __init__(self, boto: Any, path: str) -> None:
        self._boto = boto
        self._place = dict(zip(("Bucket", "Key"), s3io.parse_s3_path(path), strict=True))
        self._upload_id = ""
        self._parts: list[dict[str, Any]] = []
        self._buffer = bytearray()
        self._finished = False

    def put(self, data: Any) -> None:
        self._buffer += data
        if len(self._buffer) >= _PART_BYTES:
            self._send()

    def finish(self) -> None:
        if self._finished:  # Beam's stream asks again when it is collected after a failure
            return
        self._finished = True
        if not self._upload_id:
            self._boto.put_object(**self._place, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send()
        self._boto.complete_multipart_upload(
            **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
        )

    def _send(self) -> None:
        if not self._upload_id:
            self._upload_id = self._boto.create_multipart_upload(**self._place)["UploadId"]
        part = {**self._place, "UploadId": self._upload_id, "PartNumber": len(self._parts) + 1}
        sent = self._boto.upload_part(**part, Body=bytes(self._buffer))
        self._parts.append({"ETag": sent["ETag"], "PartNumber": part["PartNumber"]})
        self._buffer.clear()


def _raise_first(errors: Any) -> None:
    for error in errors:
        if error is not None:
            raise error

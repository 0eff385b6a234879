"""S3 and compatible stores, with one client per process."""

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

from beam_jobs.storage.object_stores.store import ListedObject, SortedStore, already_exists, http_status, invalid_path

_READ_BYTES = 1 << 20  # Beam would read 16 MiB after every seek
_WRITE_BYTES = 1 << 17
_PART_BYTES = 16 << 20  # S3 allows 10,000 parts, so objects of up to 160 GiB
_BODY_ATTEMPTS = 3  # to read a body that is incomplete: the client retries only until the body begins

_stores_lock = threading.Lock()
_stores: list[tuple[Any, S3Store]] = []  # at most one item: options of the pipeline and their store


def store(options: Any) -> S3Store:
    """Returns the store of this process; a new store for other options of the pipeline.

    Raises:
      OSError: there are no credentials; the message has a remedy.
    """
    with _stores_lock:
        if not _stores or _stores[0][0] is not options:
            if not options.view_as(S3Options).s3_access_key_id and boto3.Session().get_credentials() is None:
                raise OSError(
                    "there are no AWS credentials here; make some with `aws configure`, or set AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                )
            _stores[:] = [(options, S3Store(Client(options)))]
        return _stores[0][1]


class S3Store(SortedStore):
    """S3 with Beam's client for it; operations that Beam makes slow use the boto3 client directly."""

    def __init__(self, client: Client) -> None:
        """Stores a client; streams read with copies of it, because a client stores the position of a read."""
        self._client = client
        self._boto = client.client  # thread-safe
        self._s3io = s3io.S3IO(client=client)

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return s3io.S3IO(client=copy.copy(self._client)).open(path, "rb", read_buffer_size=_READ_BYTES)

    def create(self, path: str) -> BinaryIO:
        """See `Store`."""
        return io.BufferedWriter(UploaderStream(_Upload(self._boto, path)), _WRITE_BYTES)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `Store`. The store decides; it answers 409 while another request creates the same object."""
        bucket, key = s3io.parse_s3_path(path)
        try:
            self._boto.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as error:
            if http_status(error) in (409, 412):
                raise already_exists(path) from error
            raise

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See `Store`. It takes one request."""
        for _ in range(_BODY_ATTEMPTS - 1):
            with contextlib.suppress(BotoCoreError):
                return self._read_once(path, offset, length)
        return self._read_once(path, offset, length)

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """See `Store`."""
        return self.read_range(path, 0, most_bytes)

    def exists(self, path: str) -> bool:
        """See `Store`."""
        try:
            self.describe(path)
        except Exception as error:
            if http_status(error) == 404:
                return False
            raise
        return True

    def describe(self, path: str) -> ListedObject:
        """See `Store`."""
        item = self._client.get_object_metadata(GetRequest(*s3io.parse_s3_path(path)))
        return ListedObject(path, item.size, int(item.last_modified.timestamp() * 1e9), item.etag or "")

    def delete(self, path: str) -> None:
        """See `Store`."""
        _raise_first_error(self._s3io.delete_paths([path]).values())

    def rename(self, path: str, target: str) -> None:
        """See `Store`."""
        _raise_first_error(error for _, _, error in self._s3io.rename_files([(path, target)]))

    def pages(self, prefix: str, after: str) -> Iterator[list[ListedObject]]:
        """See `SortedStore`."""
        bucket, key_prefix = s3io.parse_s3_path(prefix, object_optional=True)
        options = {"StartAfter": key_prefix + after} if after else {}
        for page in self._boto.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key_prefix, **options):
            yield [
                ListedObject(
                    item["Key"].removeprefix(key_prefix),
                    item["Size"],
                    int(item["LastModified"].timestamp() * 1e9),
                    item.get("ETag", ""),
                )
                for item in page.get("Contents", ())
            ]

    def _read_once(self, path: str, offset: int, length: int) -> bytes:
        try:
            bucket, key = s3io.parse_s3_path(path)
        except ValueError as error:
            raise invalid_path(path, error) from error
        try:
            response = self._boto.get_object(Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}")
            return response["Body"].read()
        except ClientError as error:
            if http_status(error) == 416:  # the object ends before the range begins
                return b""
            raise
        except ParamValidationError as error:
            raise invalid_path(path, error) from error


class _Upload(Uploader):
    """An upload in one request for a small object, and in parts for a large one.

    Beam's upload always takes three requests, cannot store an empty object, and logs tracebacks.
    """

    def __init__(self, boto: Any, path: str) -> None:
        self._boto = boto
        self._address = dict(zip(("Bucket", "Key"), s3io.parse_s3_path(path), strict=True))
        self._upload_id = ""
        self._parts: list[dict[str, Any]] = []
        self._buffer = bytearray()
        self._finished = False

    def put(self, data: Any) -> None:
        self._buffer += data
        if len(self._buffer) >= _PART_BYTES:
            self._send()

    def finish(self) -> None:
        if self._finished:  # Beam's stream calls this again when it is garbage-collected after a failure
            return
        self._finished = True
        if not self._upload_id:
            self._boto.put_object(**self._address, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send()
        self._boto.complete_multipart_upload(
            **self._address, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
        )

    def _send(self) -> None:
        if not self._upload_id:
            self._upload_id = self._boto.create_multipart_upload(**self._address)["UploadId"]
        part = {**self._address, "UploadId": self._upload_id, "PartNumber": len(self._parts) + 1}
        response = self._boto.upload_part(**part, Body=bytes(self._buffer))
        self._parts.append({"ETag": response["ETag"], "PartNumber": part["PartNumber"]})
        self._buffer.clear()


def _raise_first_error(errors: Any) -> None:
    for error in errors:
        if error is not None:
            raise error

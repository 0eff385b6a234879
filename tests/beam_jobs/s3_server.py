"""An S3 server on loopback, one a process, that Beam's real client talks to."""

from __future__ import annotations

import functools
import uuid
from pathlib import Path
from typing import Any

import pytest

_made: list[Any] = []


@functools.cache
def _endpoint() -> str:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()  # its thread is a daemon
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def use_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment that the clients of S3 customarily read, and nothing else."""
    from beam_jobs.storage.object_stores import s3

    for name, value in {
        "AWS_ENDPOINT_URL": _endpoint(),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "_stores", _made)  # a client of another test may have read another environment


@functools.cache
def _client() -> Any:
    import boto3

    return boto3.client("s3")


def new_bucket(monkeypatch: pytest.MonkeyPatch, name: str = "") -> str:
    """Returns `s3://NAME` of an empty bucket, of a name of its own when none is given."""
    use_server(monkeypatch)  # first, for the client reads the environment when it is made
    name = name or f"test-{uuid.uuid4().hex}"
    _client().create_bucket(Bucket=name)
    return f"s3://{name}"


def put(bucket: str, key: str, data: bytes) -> None:
    """Stores an object as any other program would."""
    _client().put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=data)


def put_tree(bucket: str, prefix: str, root: Path) -> None:
    """Stores every file of a local directory."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            put(bucket, f"{prefix}/{path.relative_to(root)}", path.read_bytes())

"""S3 and Google Storage on loopback, behind a tap, reached by the environment variables that their clients read."""

from __future__ import annotations

import functools
import json
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import HTTPServer
from pathlib import Path

import pytest

from beam_jobs import storage
from tests.beam_jobs import s3_server
from tests.stores.tap import Tap, tapped


@dataclass(frozen=True)
class Bucket:
    """An empty bucket.

    Attributes:
      url: `s3://NAME` or `gs://NAME`.
      tap: what all requests of the clients pass through.
    """

    url: str
    tap: Tap

    def put_tree(self, prefix: str, root: Path) -> str:
        """Stores every file of a local directory and returns where."""
        for path in sorted(root.rglob("*")):
            if path.is_file():
                storage.write_bytes(f"{self.url}/{prefix}/{path.relative_to(root)}", path.read_bytes())
        return f"{self.url}/{prefix}"

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names of the objects below a prefix."""
        return sorted(name for name, *_ in storage.list_objects(f"{self.url}/{prefix}".rstrip("/")))


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Makes a bucket on the S3 server of the other tests."""
    from beam_jobs.storage.object_stores import s3 as client

    url = s3_server.new_bucket(monkeypatch)
    with tapped(os.environ["AWS_ENDPOINT_URL"]) as tap:
        monkeypatch.setenv("AWS_ENDPOINT_URL", tap.url)
        monkeypatch.setattr(client, "_stores", [])  # the clients of others go past the tap
        yield Bucket(url, tap)


@contextmanager
def gcs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[Bucket]:
    """Makes a bucket on an emulator of Google Storage."""
    from apache_beam.internal.gcp import auth

    from beam_jobs.storage.object_stores import gcs as client

    with tapped(_gcs_emulator()) as tap:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", tap.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(_account(directory)))
        monkeypatch.setattr(auth._Credentials, "_credentials_init", False)  # Beam looks for them once a process
        monkeypatch.setattr(auth._Credentials, "_credentials", None)
        monkeypatch.setattr(client, "_thread", threading.local())  # nor are the clients of an earlier test kept
        name = f"test-{uuid.uuid4().hex}"
        _new_gcs_bucket(tap, name)
        yield Bucket(f"gs://{name}", tap)


@functools.cache
def _gcs_emulator() -> str:
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    class Emulator(HTTPServer):
        request_queue_size = 64  # see `Tap`

    server = Emulator(("127.0.0.1", 0), partial(RequestHandler, Storage(use_memory_fs=True)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def _new_gcs_bucket(tap: Tap, name: str) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google_storage

    client = google_storage.Client(
        project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": tap.url}
    )
    client.create_bucket(name)


def _account(directory: Path) -> Path:
    """Writes credentials of a person whose token is good for years, so that nobody has to be asked for another."""
    values = dict.fromkeys(("client_id", "client_secret", "refresh_token", "token"), "test")
    path = directory / "account.json"
    path.write_text(json.dumps({"type": "authorized_user", "expiry": "2100-01-01T00:00:00Z", **values}))
    return path

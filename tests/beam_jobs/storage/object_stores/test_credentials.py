"""Stores without credentials: told at once and in one line, but for emulators, which need none."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest

from beam_jobs import storage
from beam_jobs.storage import object_stores
from beam_jobs.storage.object_stores import gcs, s3
from tests.beam_jobs import gcs_server
from tests.command import feedline, python

NAMES = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "AWS_PROFILE", "AWS_ENDPOINT_URL")
GOOGLE = (
    "there are no Google Cloud credentials here; make some with `gcloud auth application-default login`, or name a key "
    "file in GOOGLE_APPLICATION_CREDENTIALS"
)
LONGEST_S = 90  # requests without credentials ended after 120


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user without credentials of any store."""
    for name in (*NAMES, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CLOUDSDK_CONFIG", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(gcs, "_credentials_exist", [])
    monkeypatch.setattr(gcs, "_thread", threading.local())


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [("gs://bucket/photos", "out", GOOGLE), (None, "s3://bucket/out", "there are no AWS credentials here; make some")],
    ids=["source", "out"],
)
def test_a_command_without_credentials_ends_at_once_with_the_remedy(source, out, said, nobody, photos, tmp_path):
    done = feedline("ingest", source or photos, "--out", f"{tmp_path}/out" if source else out, timeout=LONGEST_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_key_file_that_is_not_there_is_named(nobody, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none/key.json")
    assert gcs.missing_login().startswith(
        "there are no Google Cloud credentials here (File /none/key.json was not found.); make some with `gcloud"
    )


def test_a_metadata_server_that_says_nothing_is_not_waited_for(nobody, monkeypatch):
    """Only a process of its own can be told where the server is."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        asks = "from beam_jobs.storage.object_stores import gcs as g; g._WAIT_S = 1.0; print(g.missing_login())"
        server = {"NO_GCE_CHECK": "false", "GCE_METADATA_IP": place, "GCE_METADATA_TIMEOUT": "600"}
        done = python(asks, env={**os.environ, **server}, timeout=LONGEST_S)
    assert done.stdout.startswith(
        "there are no Google Cloud credentials here (no answer from the metadata server in 1 s); make some with"
    ), done.stderr


def test_an_emulator_needs_no_credentials(nobody, monkeypatch, tmp_path):
    with gcs_server.serving(monkeypatch, tmp_path) as server:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        server.objects = {"x": b"data"}
        assert storage.read_bytes("gs://bucket/x") == b"data"


def test_credentials_that_come_late_are_found(nobody, monkeypatch, tmp_path):
    with pytest.raises(OSError, match="there are no Google Cloud credentials here"):
        storage.exists("gs://bucket/x")
    with gcs_server.serving(monkeypatch, tmp_path) as server:
        server.objects = {"x": b"data"}
        assert storage.exists("gs://bucket/x")
        assert gcs._credentials_exist == [True]


def test_credentials_of_the_pipeline_will_do_for_s3(nobody, monkeypatch):
    from apache_beam.options.pipeline_options import PipelineOptions

    monkeypatch.setattr(s3, "_stores", [])
    given = ["--s3_access_key_id=key", "--s3_secret_access_key=secret", "--s3_region_name=us-east-1"]
    assert s3.store(PipelineOptions(given))
    with pytest.raises(OSError, match="there are no AWS credentials here"):
        s3.store(PipelineOptions([]))


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "aws"), ("gs", "gcp")])
def test_a_client_that_is_not_installed_is_said_with_the_command(scheme, extra, monkeypatch):
    name = {"s3": "s3", "gs": "gcs"}[scheme]
    monkeypatch.setitem(sys.modules, f"beam_jobs.storage.object_stores.{name}", None)
    monkeypatch.delattr(object_stores, name)
    with pytest.raises(
        OSError, match=rf"in the checkout of Feedline: pip install -c constraints/(current|legacy).txt '.\[{extra}\]'$"
    ):
        storage.exists(f"{scheme}://bucket/x")

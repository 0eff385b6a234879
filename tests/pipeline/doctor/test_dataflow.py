"""The doctor of Dataflow, against answers of the form that the services of Google Cloud give."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from google.auth.credentials import CredentialsWithRegionalAccessBoundary

from pipeline import doctor
from pipeline.doctor import Check, dataflow
from tests.beam_jobs import gcs_server
from tests.beam_jobs.runners.test_dataflow import NEEDED
from tests.engines.dataflow_service import answer

JOBS = "/v1b3/projects/my-project-1/locations/us-central1/jobs"
BUCKET = "/storage/v1/b/bucket"
REGION = "/compute/v1/projects/my-project-1/regions/us-central1"
SETTINGS = {"engine": {"runner": "dataflow", **NEEDED}}
QUOTAS = [
    {"metric": "CPUS", "limit": 48.0, "usage": 0.0},
    {"metric": "DISKS_TOTAL_GB", "limit": 4096.0, "usage": 10.0},
    {"metric": "IN_USE_ADDRESSES", "limit": 16.0, "usage": 0.0},
]


@pytest.fixture
def google(monkeypatch, tmp_path) -> Iterator[dict[str, tuple[int, dict]]]:
    """Path -> status and content of what the services answer."""
    said = {
        JOBS: (200, {"jobs": []}),
        BUCKET: (200, {"name": "bucket", "location": "US-CENTRAL1"}),
        REGION: (200, {"quotas": QUOTAS}),
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            status, content = said[urlsplit(self.path).path]
            answer(self, content, status)

        def log_message(self, *_):
            """Keeps quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with gcs_server.serving(monkeypatch, tmp_path):  # gives out the tokens
        for name in ("_DATAFLOW", "_COMPUTE"):
            monkeypatch.setattr(dataflow, name, url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        monkeypatch.setattr(
            CredentialsWithRegionalAccessBoundary, "_is_regional_access_boundary_lookup_required", lambda _: False
        )
        yield said
    server.shutdown()
    server.server_close()


def found(settings=SETTINGS) -> dict[str, Check]:
    return {check.name: check for check in doctor.run("dataflow", settings)}


def error(status: int, message: str) -> tuple[int, dict]:
    return status, {"error": {"code": status, "message": message}}


def test_all_is_well(google):
    checks = found()
    assert [check for check in checks.values() if not check.ok] == []
    assert checks["temp_location"].detail == "gs://bucket in us-central1"
    assert checks["quota"].detail == "enough for 10 workers of 4 cores"
    assert checks["credentials"].detail == "test@test"
    assert checks["package"].detail.startswith("feedline-0.1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    ("path", "answer", "name", "remedy"),
    [
        (JOBS, error(403, "Dataflow API has not been used"), "Dataflow API", "gcloud services enable dataflow"),
        (JOBS, error(403, "Permission denied"), "Dataflow API", "--role roles/dataflow.admin"),
        (JOBS, error(404, "not found"), "Dataflow API", "gcloud projects list"),
        (JOBS, (500, {}), "Dataflow API", "gcloud auth"),
        (BUCKET, error(404, "The bucket does not exist"), "temp_location", "buckets create gs://bucket --project"),
        (BUCKET, error(403, "no access"), "temp_location", "--role roles/storage.admin"),
        (REGION, error(403, "Compute Engine API has not been used"), "quota", "services enable compute"),
        (REGION, (200, {"quotas": [QUOTAS[0] | {"usage": 24.0}]}), "quota", "max_num_workers to 6"),
    ],
)
def test_what_is_missing_comes_with_its_remedy(google, path, answer, name, remedy):
    google[path] = answer
    check = found()[name]
    assert not check.ok
    assert remedy in check.remedy


def test_workers_without_public_addresses_need_an_image(google):
    private = {**SETTINGS["engine"], "use_public_ips": False}
    check = found({"engine": private})["worker image"]
    assert (check.mark, "then engine.sdk_container_image: us-central1-docker" in check.remedy) == ("warn", True)
    assert found({"engine": {**private, "sdk_container_image": "registry/worker:1"}})["worker image"].ok
    assert "worker image" not in found()


def test_without_credentials_nothing_more_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    checks = found()
    assert checks["credentials"].detail.startswith(f"File {tmp_path}/none.json was not found")
    assert checks["credentials"].remedy == "gcloud auth application-default login"
    assert "Dataflow API" not in checks


def test_without_settings_it_says_where_they_belong(google):
    check = found({})["section engine"]
    assert check.detail.startswith("engine.project is missing")
    assert "engine: {runner: dataflow, project: P" in check.remedy


def test_settings_that_cannot_be_right_are_told(google):
    wrong = {"engine": {**SETTINGS["engine"], "region": "us-central1-a"}}
    assert "which is a zone" in found(wrong)["section engine"].detail
    assert "not dataflow" in found({"engine": {"runner": "flink"}})["section engine"].detail

from __future__ import annotations

import pytest

from tests.stores import emulators


@pytest.fixture(params=["s3", "gs"])
def bucket(request, monkeypatch, tmp_path):
    """An empty bucket, of each of the stores."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # what does not answer twice will not answer in this test
    kind = emulators.s3(monkeypatch) if request.param == "s3" else emulators.gcs(monkeypatch, tmp_path)
    with kind as made:
        yield made


@pytest.fixture
def s3_bucket(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with emulators.s3(monkeypatch) as made:
        yield made


@pytest.fixture
def gs_bucket(monkeypatch, tmp_path):
    with emulators.gcs(monkeypatch, tmp_path) as made:
        yield made

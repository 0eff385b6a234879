from __future__ import annotations

import pytest

from beam_jobs import storage
from tests.beam_jobs import gcs_server

pytest.importorskip("google.cloud.storage")

from google.cloud.storage.retry import DEFAULT_RETRY

from beam_jobs.storage.object_stores import gcs


@pytest.fixture
def server(monkeypatch, tmp_path):
    with gcs_server.serving(monkeypatch, tmp_path) as running:
        yield running


def test_a_listing_follows_its_pages(server):
    server.objects = {f"d/{name}": name.encode() for name in ("a", "b c", "deep/ä", "z")} | {"d/": b"", "d2/x": b"x"}
    updated = 1704164645 * 10**9 + 5 * 10**8
    assert [entry[:3] for entry in storage.list_objects("gs://bucket/d")] == [
        ("a", 1, updated),
        ("b c", 3, updated),
        ("deep/ä", 7, updated),
        ("z", 1, updated),
    ]
    assert len(server.asked) == 3
    assert list(storage.list_objects("gs://bucket/none")) == []


def test_a_byte_range_is_read_by_one_request_for_these_bytes(server):
    server.objects = {"x": b"0123456789", "empty": b""}
    assert storage.read_range("gs://bucket/x", 7, 2) == b"78"
    assert server.asked == ["/download/storage/v1/b/bucket/o/x?alt=media bytes=7-8"]
    assert storage.read_range("gs://bucket/x", 7, 99) == b"789"
    assert storage.read_range("gs://bucket/x", 99, 1) == b""
    assert storage.read_range("gs://bucket/empty", 0, 1) == b""


@pytest.mark.parametrize(("offset", "length"), [(0, 99), (2, 3)])
def test_a_body_that_breaks_off_is_asked_for_again(server, offset, length, monkeypatch):
    server.objects = {"x": b"0123456789"}
    server.cuts = 2
    assert storage.read_range("gs://bucket/x", offset, length) == b"0123456789"[offset : offset + length]
    server.cuts = 2
    assert storage.read_bytes("gs://bucket/x") == b"0123456789"
    server.cuts = 99
    monkeypatch.setattr(gcs, "_RETRY", DEFAULT_RETRY.with_timeout(1))
    with pytest.raises(OSError, match="the connection broke in the middle of the object") as broken:
        storage.read_range("gs://bucket/x", offset, length)
    assert not storage.is_no_file(broken.value)


def test_streams_are_read_and_moved_about_in(server):
    server.objects = {"x": b"0123456789" * 200_000}
    with storage.open_read("gs://bucket/x") as stream:
        stream.seek(1_999_995)
        assert stream.read() == b"56789"
        stream.seek(10)
        assert stream.read(3) == b"012"


def test_what_is_missing_is_an_os_error(server):
    assert not storage.exists("gs://bucket/none")
    for read in (storage.size, storage.read_bytes, lambda path: storage.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("gs://bucket/none")
    with pytest.raises(OSError, match="gs://other"):
        list(storage.list_objects("gs://other/x"))

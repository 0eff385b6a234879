from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.sources import http_fetch
from tests.beam_jobs.make_certificates import certificate, speaker
from tests.beam_jobs.web_server import DATA, HERE, WebServer, body, dripping, serving


@contextmanager
def secure(path: Path) -> Iterator[WebServer]:
    pages = {"/a.jpg": body(DATA), "/drip": dripping(b"HTTP/1.1 200 OK\r\n\r\n", b"x")}
    with serving(pages, speaker(path)) as running:
        yield running


def options_of_their_own(number: int) -> HttpOptions:
    """Options that no other test has: a client reads what it trusts when it is made."""
    return HttpOptions(timeout_s=0.2 + number / 1000, retries=0, allow_private=True)


def test_a_trusted_certificate_is_accepted_and_the_deadline_holds_under_tls(tmp_path, monkeypatch):
    path = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    options = options_of_their_own(1)
    with secure(path) as server:
        for _ in range(2):
            assert http_fetch.fetch(f"https://localhost:{server.server_port}/a.jpg", options, 1 << 20) == DATA
        with pytest.raises(BadImage, match="localhost sent nothing for 0.201 s, or its response took more than 2.01 s"):
            http_fetch.fetch(f"https://localhost:{server.server_port}/drip", options, 1 << 20)


@pytest.mark.parametrize(
    ("number", "trusted", "host", "days", "detail"),
    [
        (2, False, "localhost", (-1, 1), "self.signed certificate"),
        (3, True, "other.example", (-1, 1), "(mis|doesn.t )match"),
        (5, True, "localhost", (-3, -1), "has expired"),
        (6, True, "localhost", (1, 3), "not yet valid"),
    ],
)
def test_certificates_of_others_and_of_another_time_are_refused_at_once(
    tmp_path, monkeypatch, number, trusted, host, days, detail
):
    path = certificate(tmp_path, host, days)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
    options = dataclasses.replace(options_of_their_own(number), retries=3)
    with (
        secure(path) as server,
        pytest.raises(BadImage, match=f"^not_fetched: no safe connection to localhost: .*{detail}.*; 1 attempt$"),
    ):
        http_fetch.fetch(f"https://localhost:{server.server_port}/a.jpg", options, 1)
    assert not server.seen


def test_a_host_that_is_a_number_is_checked_against_its_certificate(tmp_path, monkeypatch):
    path = certificate(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    options = options_of_their_own(4)
    with secure(path) as server:
        assert http_fetch.fetch(server.url("/a.jpg"), options, 5) == DATA[:5]
        with pytest.raises(BadImage, match="no safe connection to localhost"):
            http_fetch.fetch(f"https://localhost:{server.server_port}/a.jpg", options, 5)


def test_a_server_that_speaks_no_tls_is_a_failure():
    with (
        serving({}) as server,
        pytest.raises(BadImage, match="^not_fetched: no safe connection to 127.0.0.1: .*; 1 attempt$"),
    ):
        http_fetch.fetch(f"https://{server.host}/a.jpg", HERE, 1)

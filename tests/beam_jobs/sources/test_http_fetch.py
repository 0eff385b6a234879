from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.sources import http_fetch
from tests.beam_jobs.web_server import (
    DATA,
    HERE,
    Asked,
    Crowd,
    Handler,
    body,
    dripping,
    endless,
    failure,
    fetch,
    raw,
    reset,
    status,
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(http_fetch, "_FIRST_PAUSE_S", 0.01)


@pytest.mark.parametrize(
    ("uri", "url"), [("http://x/a.jpg", True), ("HTTPS://X/a.jpg", True), ("cat/http://x", False), ("http:/x", False)]
)
def test_urls_are_told_by_their_scheme(uri, url):
    assert http_fetch.is_url(uri) is url


def test_a_page_is_fetched_under_our_name_and_undecoded(server):
    server.pages["/z"] = lambda handler: handler.answer(200, b"\x1f\x8b bomb", Content_Encoding="gzip")
    assert fetch(server, "/z") == b"\x1f\x8b bomb"
    (headers,) = server.headers
    assert headers["User-Agent"].startswith("feedline/")
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers


def test_a_name_and_password_are_sent_to_their_host_and_shown_to_nobody(server):
    server.pages["/no"] = status(403)
    options = HttpOptions(**vars(HERE))
    assert http_fetch.fetch(f"http://ann:s%20cret@{server.host}/a.jpg", options, 10) == DATA[:10]
    assert server.headers[0]["Authorization"] == "Basic YW5uOnMgY3JldA=="
    for page in ("/no", "/no:port:/"):
        with pytest.raises(BadImage) as caught:
            http_fetch.fetch(f"http://ann:s%20cret@{server.host}{page}?key=hidden", options, 10)
        assert not any(word in str(caught.value) for word in ("ann", "cret", "hidden"))


@pytest.mark.parametrize(("code", "attempts"), [(404, "1 attempt"), (429, "4 attempts"), (500, "4 attempts")])
def test_only_an_answer_that_may_pass_is_asked_for_again(server, code, attempts):
    server.pages["/x"] = status(code)
    assert failure(server, "/x", retries=3) == (RejectReason.NOT_FETCHED, f"HOST returned HTTP {code}; {attempts}")
    assert server.seen["/x"] == int(attempts[0])


@pytest.mark.parametrize(
    ("wish", "ours"),
    [
        ("0", 3600),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 3600),
        ("soon", 0.01),
        ("-1", 0.01),
        ("9" * 5000, 0.01),
        ("Wed, 21 Oct 99999999 07:28:00 GMT", 0.01),
    ],
)
def test_a_pause_that_the_server_asks_for_in_clear_terms_takes_the_place_of_ours(server, monkeypatch, wish, ours):
    monkeypatch.setattr(http_fetch, "_FIRST_PAUSE_S", ours)
    server.pages["/x"] = Asked(status(503, Retry_After=wish), body(b"image"))
    assert fetch(server, "/x", retries=1) == b"image"


@pytest.mark.parametrize(
    ("attempt", "wished", "pause"),
    [(1, None, 0.5), (4, None, 4.0), (9, None, 30.0), (9999, None, 30.0), (1, 7, 7), (1, 86400, 60.0)],
)
def test_pauses_grow_to_a_cap(monkeypatch, attempt, wished, pause):
    monkeypatch.undo()
    assert http_fetch._pause_s(attempt, wished) == pause


def silent(handler: Handler) -> None:
    time.sleep(0.5)
    handler.close_connection = True


@pytest.mark.parametrize(
    ("page", "detail"),
    [
        (silent, "HOST sent nothing for 0.2 s"),
        (reset(), "the connection to HOST broke: "),
        (
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf"),
            "the connection to HOST broke: IncompleteRead(4 bytes read, 4 more expected)",
        ),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf"),
            "the connection to HOST broke: IncompleteRead",
        ),
        (raw(b"SSH-2.0-server\r\n\r\n"), "the connection to HOST broke: SSH-2.0-server"),
    ],
    ids=["silent", "reset", "short", "torn chunk", "gibberish"],
)
def test_what_breaks_on_the_way_is_asked_for_again(server, page, detail):
    server.pages["/x"] = Asked(page, body(DATA))
    server.pages["/y"] = page
    assert fetch(server, "/x", retries=1, timeout_s=0.2) == DATA
    reason, found = failure(server, "/y", retries=1, timeout_s=0.2)
    assert reason == RejectReason.NOT_FETCHED
    assert found.startswith(detail)
    assert found.endswith("; 2 attempts")


def test_what_a_server_says_is_shown_short_and_printable(server):
    server.pages["/x"] = raw(b"\x1b[31m" + b"x" * 60_000 + b"\r\n\r\n")
    detail = failure(server, "/x")[1]
    assert detail.isprintable()
    assert len(detail) < 150


def test_what_a_server_says_and_is_asked_is_not_logged(server, caplog):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\x1b[2J no header\r\n\r\n0\r\n\r\n"
    server.pages["/x?key=hidden"] = lambda handler: handler.raw(answer)
    with caplog.at_level("DEBUG"):
        fetch(server, "/x?key=hidden")
    said = [record.getMessage() for record in caplog.records]
    assert not any("hidden" in line or "Content-Length" in line or "\x1b" in line for line in said)


def test_a_server_that_is_not_there_is_asked_again():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(BadImage, match=r"127.0.0.1 cannot be reached: .*Connection refused; 2 attempts"):
            http_fetch.fetch(f"http://127.0.0.1:{port}/x", HttpOptions(timeout_s=0.2, retries=1, allow_private=True), 1)


@pytest.mark.parametrize(("code", "attempts"), [(socket.EAI_NONAME, "1 attempt"), (socket.EAI_AGAIN, "3 attempts")])
def test_an_unknown_host_is_asked_for_again_only_when_the_name_server_is_at_fault(monkeypatch, code, attempts):
    def look_up(*_, **__):
        raise socket.gaierror(code, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(
        BadImage, match=rf"^not_fetched: the host nowhere.invalid cannot be resolved: .*no answer; {attempts}$"
    ):
        http_fetch.fetch("http://nowhere.invalid/x", HttpOptions(retries=2), 1)


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1/x", "http://x:99999/", f"http://{'a' * 70}.x/", "http://\x7f/"]
)
def test_what_is_no_url_is_not_fetched(url):
    with pytest.raises(BadImage, match="^not_fetched: .*; 1 attempt$"):
        http_fetch.fetch(url, HERE, 1)


def test_an_endless_body_is_cut_at_the_limit(server):
    server.pages["/x"] = endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 50_000)
    assert fetch(server, "/x", limit=200_001) == b"x" * 200_001


@pytest.mark.parametrize(("limit", "length"), [(10, 10), (len(DATA) + 1, len(DATA))])
def test_no_more_than_the_limit_is_taken_and_the_next_page_is_right(server, limit, length):
    for _ in range(3):
        assert fetch(server, "/a.jpg", limit=limit) == DATA[:length]


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["body", "chunks", "header", "continue"],
)
def test_a_server_that_drips_is_given_up(server, start, drop):
    server.pages["/x"] = dripping(start, drop)
    started = time.monotonic()
    assert failure(server, "/x", timeout_s=0.2) == (  # a busy machine may be silent for a tenth of a second
        RejectReason.NOT_FETCHED,
        "HOST sent nothing for 0.2 s, or its response took more than 2 s; 1 attempt",
    )
    assert 1.9 < time.monotonic() - started < 5


def test_a_slow_body_that_comes_through_is_fetched(server):
    def slow(handler: Handler) -> None:
        handler.answer(200, b"", Content_Length="5")
        for _ in range(5):
            time.sleep(0.1)
            handler.raw(b"x")

    server.pages["/x"] = slow
    assert fetch(server, "/x", timeout_s=0.4) == b"xxxxx"


def test_proxies_of_the_environment_are_not_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert fetch(server, "/a.jpg", timeout_s=2.1) == DATA


def test_no_more_requests_to_a_host_than_asked_for_run_at_a_time(server):
    crowd = server.pages["/x"] = Crowd()
    # Waiting for others is no silence of the server: it must not time out.
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: fetch(server, "/x", per_host=3, timeout_s=0.3), range(24)))
    assert found == [b"/x"] * 24
    assert crowd.most == 3


def test_connections_are_used_again(server):
    ports = set()
    server.pages["/x"] = lambda handler: (ports.add(handler.client_address), handler.answer(200, b"image"))[1]
    for _ in range(5):
        fetch(server, "/x")
    assert len(ports) == 1


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("https://b/a.jpg?X-Amz-Algorithm=A&X-Amz-Credential=C&X-Amz-Date=D&X-Amz-Signature=S", "https://b/a.jpg"),
        ("https://b/a.jpg?x-goog-signature=S&X-Goog-Expires=9&v=2#top", "https://b/a.jpg?v=2#top"),
        ("HTTP://b/a.jpg?AWSAccessKeyId=K&Signature=S%3D&Expires=9", "HTTP://b/a.jpg"),
        ("https://b/a.jpg?GoogleAccessId=K&Expires=9&Signature=S&id=7", "https://b/a.jpg?id=7"),
        ("https://b/a.jpg?Policy=P&Signature=S&Key-Pair-Id=K", "https://b/a.jpg"),
        ("https://b/a.jpg?sv=2022&ss=b&sr=b&sp=r&se=2030&st=2020&spr=https&sig=S&w=1", "https://b/a.jpg?w=1"),
        (
            "https://b/a.jpg?sp=1&se=2&sr=3&policy=thumb&signed=no",
            "https://b/a.jpg?sp=1&se=2&sr=3&policy=thumb&signed=no",
        ),
        ("https://b/sig=1/a.jpg", "https://b/sig=1/a.jpg"),
        ("s3://b/a.jpg?sig=1", "s3://b/a.jpg?sig=1"),
    ],
)
def test_what_signs_a_url_is_cut(url, stored):
    assert http_fetch.remove_signature(url) == stored

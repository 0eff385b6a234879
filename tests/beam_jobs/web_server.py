"""A web server on loopback whose pages are functions, so that a test can say how it behaves on the wire."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.sources import http_fetch

DATA = bytes(range(256)) * 1000
HERE = HttpOptions(timeout_s=2.0, retries=0, allow_private=True)

Page = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: WebServer

    def do_GET(self):
        self.server.seen[self.path] += self.command == "GET"
        self.server.headers.append(dict(self.headers))
        self.server.pages.get(self.path, status(404))(self)

    do_HEAD = do_GET  # noqa: N815 - so the server calls it

    def do_PATCH(self):
        self.server.seen[f"PATCH {self.path}"] += 1
        self.server.pages.get(self.path, status(404))(self)

    def log_message(self, *_):
        """Keeps quiet."""

    def raw(self, data: bytes) -> None:
        """Sends bytes as they are; who has heard enough may hang up."""
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.raw(b"" if self.command == "HEAD" else body)


class WebServer(ThreadingHTTPServer):
    """Attributes: `pages` by path, `seen` requests for a body by path, `headers` of every request, `host` of URLs."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, pages: Mapping[str, Page], tls: ssl.SSLContext | None, address: tuple[str, int]) -> None:
        super().__init__(address, Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.pages = dict(pages)
        self.seen: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.host = f"{address[0]}:{self.server_port}"

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.host}{path}"

    def handle_error(self, *_):
        """Keeps quiet: clients that hang up are what is tested."""


def status(code: int, **headers: str) -> Page:
    return lambda handler: handler.answer(code, **headers)


def body(data: bytes) -> Page:
    return lambda handler: handler.answer(200, data)


def raw(answer: bytes) -> Page:
    """Sends bytes and hangs up."""

    def page(handler: Handler) -> None:
        handler.raw(answer)
        handler.close_connection = True

    return page


def dripping(start: bytes, drop: bytes, pause_s: float = 0.005) -> Page:
    """Sends a drop again and again, for ever."""

    def page(handler: Handler) -> None:
        handler.raw(start)
        while not handler.close_connection:
            handler.raw(drop)
            time.sleep(pause_s)

    return page


def endless(start: bytes, more: bytes) -> Page:
    return dripping(start, more, 0.0)


def reset(before: bytes = b"") -> Page:
    """Sends bytes and breaks the connection."""

    def page(handler: Handler) -> None:
        handler.raw(before)
        time.sleep(0.05 if before else 0)  # for what was sent to arrive before the reset throws it away
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True

    return page


class Asked:
    """A page that behaves otherwise each time; the last way stays.

    Attributes:
      at: seconds of a clock at which it was asked for.
    """

    def __init__(self, *pages: Page) -> None:
        self._pages = pages
        self.at: list[float] = []

    def __call__(self, handler: Handler) -> None:
        self.at.append(time.monotonic())
        self._pages[min(len(self.at), len(self._pages)) - 1](handler)


class Crowd:
    """A page that takes its time, and knows how many have waited for it at once."""

    def __init__(self, pause_s: float = 0.02) -> None:
        self.pause_s = pause_s
        self.data: dict[str, bytes] = {}
        self.most = self._now = 0
        self._lock = threading.Lock()

    def __call__(self, handler: Handler) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self.pause_s)
        with self._lock:
            self._now -= 1
        handler.answer(200, self.data.get(handler.path, handler.path.encode()))

    def most_anew(self) -> int:
        """Returns how many have waited at once, and begins to count anew."""
        most, self.most = self.most, 0
        return most


@contextmanager
def serving(
    pages: Mapping[str, Page], tls: ssl.SSLContext | None = None, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[WebServer]:
    server = WebServer(pages, tls, address)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetch(server: WebServer, path: str, limit: int = 1 << 20, **options) -> bytes:
    """Fetches with the options of `HERE`, but for those that are given."""
    return http_fetch.fetch(server.url(path), HttpOptions(**{**vars(HERE), **options}), limit)


def failure(server: WebServer, path: str, **options) -> tuple[RejectReason, str]:
    """Returns reason and detail of the `BadImage` that fetching ends in; the host is `HOST` in it."""
    with pytest.raises(BadImage) as caught:
        fetch(server, path, **options)
    return caught.value.reason, caught.value.detail.replace("127.0.0.1", "HOST")

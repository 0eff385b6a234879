"""Stands between a client and an emulator: notes every request, and answers some itself."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote

CUT = -1  # instead of a status: the body of the answer ends half way, and the connection with it
_TIMEOUT_S = 30
_NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding", "keep-alive")
_TOKEN = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}


class Asked(NamedTuple):
    """A request: `path` is decoded and holds the query."""

    method: str
    path: str
    range: str


class Tap(ThreadingHTTPServer):
    """A proxy on loopback.

    Attributes:
      url: where it listens.
      asked: every request so far.
      sent: path of a request -> bytes of the answers so far.
      refuse: takes a request and returns the status to answer with; 0 passes it on, `CUT` half of the answer.
    """

    daemon_threads = True
    # The clients connect from many threads; with 5, what they send may be lost for half a minute.
    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[Asked] = []
        self.sent: Counter[str] = Counter()
        self.refuse: Callable[[Asked], int] = lambda _: 0

    def written(self, pattern: str) -> list[str]:
        """Returns what in the requests that wrote something matches a pattern, in their order, each name once a time.

        S3 is asked to write to a name, Google Storage to copy to one.
        """
        found = (re.search(pattern, asked.path) for asked in self.asked if asked.method in ("PUT", "POST"))
        return [match[0] for match in found if match]

    def handle_error(self, *_: object) -> None:
        """Keeps quiet: clients that go away in the middle are part of what is tested."""


@contextmanager
def tapped(upstream: str) -> Iterator[Tap]:
    """Runs a tap in front of a server."""
    tap = Tap(upstream)
    threading.Thread(target=tap.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield tap
    finally:
        tap.shutdown()
        tap.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _TIMEOUT_S
    server: Tap

    def log_message(self, *_: object) -> None:
        """Keeps quiet."""

    def _answer(self) -> None:
        content = self._content()
        path = unquote(self.path)
        if "uploadType=multipart" in path:  # Google Storage is told the name in the body
            path += "&name=" + re.search(rb'"name": "(.+?)"', content)[1].decode()
        asked = Asked(self.command, path, self.headers.get("Range", ""))
        self.server.asked.append(asked)
        if asked.path.endswith("/token"):  # no emulator knows who may come in
            self._send(200, {"Content-Type": "application/json"}, json.dumps(_TOKEN).encode())
        elif (status := self.server.refuse(asked)) > 0:
            self._send(status, {}, _refusal(status, "/storage/v1/" in asked.path))
        else:
            self._pass_on(content, cut=status == CUT)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815 - so the server calls them

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self, content: bytes, cut: bool) -> None:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=_TIMEOUT_S)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_PASSED_ON}
            upstream.request(self.command, self.path, content, {**headers, "Content-Length": str(len(content))})
            answer = upstream.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _NOT_PASSED_ON}
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            body = answer.read()
            self.server.sent[unquote(self.path)] += len(body)
            if cut:
                self.close_connection = True
                length, body = str(len(body)), body[: len(body) // 2]
            self._send(answer.status, kept, body, length)
        finally:
            upstream.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": length or str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _refusal(status: int, json_api: bool) -> bytes:
    """Returns the body with which the stores say no."""
    code = _CODES.get(status, "Error")
    if json_api:
        return json.dumps({"error": {"code": status, "message": code}}).encode()
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()

"""As much of Google Storage's JSON API as its client asks for, on loopback, two names to a page of a listing.

It honours `ifGenerationMatch=0`, which other emulators do not.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_PAGE = 2


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GcsServer

    def log_message(self, *_):
        """Keeps quiet."""

    def do_GET(self):
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        if "/b/bucket/o" in asked.path:  # newer clients ask for the bucket, too, in a thread of their own
            self.server.asked.append(f"{self.path} {self.headers.get('Range', '')}")
        if asked.path.endswith("/b/bucket/o"):
            self._list(query)
        elif (name := self._name()) not in self.server.objects:
            self._answer(404, {"error": {"code": 404, "message": "No such object"}})
        elif query.get("alt") == ["media"]:
            self._media(self.server.objects[name])
        else:
            self._answer(200, self._described(name))

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if copied := re.search(r"/b/bucket/o/([^/]+)/copyTo/b/bucket/o/([^/?]+)", self.path):
            self._copy(*map(unquote, copied.groups()))
            return
        if self.path == "/token":
            self._answer(200, {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})
            return
        if parse_qs(urlsplit(self.path).query).get("uploadType") == ["multipart"]:
            self._create(content)
            return
        name = json.loads(content)["name"] if content.startswith(b"{") else ""
        self._answer(200, {}, Location=f"http://{self.headers['Host']}/put/{name}")

    def do_PUT(self):
        name = unquote(self.path.removeprefix("/put/"))
        self.server.objects[name] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, self._described(name))

    def do_DELETE(self):
        code = 204 if self.server.objects.pop(self._name(), None) is not None else 404
        self._answer(code, b"" if code == 204 else {"error": {"code": 404, "message": "No such object"}})

    def _create(self, content: bytes) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        described, data = (part.get_payload(decode=True) for part in message_from_bytes(head + content).get_payload())
        name = json.loads(described)["name"]
        with self.server.creating:
            refused = "ifGenerationMatch=0" in self.path and name in self.server.objects
            if not refused:
                self.server.objects[name] = data
        gone = {"error": {"code": 412, "message": "At least one of the pre-conditions you specified did not hold."}}
        self._answer(412, gone) if refused else self._answer(200, self._described(name))

    def _copy(self, source: str, target: str) -> None:
        data = self.server.objects.get(source)
        if data is None:
            self._answer(404, {"error": {"code": 404, "message": "No such object"}})
            return
        self.server.objects[target] = data
        self._answer(200, self._described(target))

    def _name(self) -> str:
        found = re.search(r"/b/bucket/o/([^/?]+)", self.path)
        return unquote(found[1]) if found else ""

    def _described(self, name: str) -> dict:
        data = self.server.objects[name]
        described = {"name": name, "bucket": "bucket", "size": str(len(data)), "updated": "2024-01-02T03:04:05.5Z"}
        return described | {"crc32c": _checksum(data)}

    def _list(self, query: dict) -> None:
        offset = query.get("startOffset", [""])[0] if self.server.has_offsets else ""
        names = sorted(name for name in self.server.objects if name.startswith(query["prefix"][0]) and name >= offset)
        start = int(query.get("pageToken", ["0"])[0])
        page = {"items": [self._described(name) for name in names[start : start + _PAGE]]}
        more = {"nextPageToken": str(start + _PAGE)} if start + _PAGE < len(names) else {}
        self._answer(200, page | more)

    def _media(self, data: bytes) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
        if first >= len(data):
            self._answer(416, b"")
            return
        headers = {"Content_Range": f"bytes {first}-{last}/{len(data)}", "X_Goog_Hash": f"crc32c={_checksum(data)}"}
        self._answer(206, data[first : last + 1], **headers)

    def _answer(self, code: int, content: bytes | dict, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if code == 206 and self.server.cuts:
            self.server.cuts -= 1
            self.close_connection = True
            body = body[: len(body) // 2]
        self.wfile.write(body)


def _checksum(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


class GcsServer(ThreadingHTTPServer):
    """Attributes: `objects` of the bucket `bucket` by name, `asked` holds path and range of every GET.

    `cuts` is how many of the next bodies end half way, without an error of the connection. `has_offsets` is whether a
    listing begins at `startOffset`, which emulators ignore.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cuts = 0
        self.has_offsets = True
        self.creating = threading.Lock()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[GcsServer]:
    """Runs a server and sets the environment that the client of Google Storage customarily reads."""
    from apache_beam.internal.gcp import auth

    from beam_jobs.storage.object_stores import gcs

    server = GcsServer()
    host = f"http://127.0.0.1:{server.server_port}"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    account = {
        "type": "service_account",
        "project_id": "test",
        "client_email": "test@test",
        "token_uri": f"{host}/token",
        "private_key": key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode(),
    }
    (directory / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(directory / "account.json"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)  # Beam looks for them once a process
    monkeypatch.setattr(auth._Credentials, "_credentials", None)
    monkeypatch.setattr(gcs._thread, "cached", None, raising=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

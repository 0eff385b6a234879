"""A static file server for benchmarks of URLs: `python -m benchmarks.serve DIR`, until its standard input ends.

Standard library only, because it also runs in the environments of the peers. It answers GET and HEAD with complete
files, keeps connections open, and listens only on the loopback address. It shares the cores with its clients, so it
does little work per request: `http.server` parses every header and takes several times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import mimetypes
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOST = "127.0.0.1"
_CORES_PER_PROCESS = 8  # one process serves about as many images as eight cores decode
_MAX_HEAD_BYTES = 65_536
_CLIENT_THREADS = 4


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Serves a directory from a separate process; yields the URL of its root, with a slash at the end."""
    command = [sys.executable, "-m", "benchmarks.serve", str(directory.absolute())]
    # When the block or this process ends, the standard input of the server is closed, which ends it and its forks.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip() if process.stdout else ""
        if not url:
            raise RuntimeError(f"the server of {directory} did not start")
        yield url


def file_url(base: str, name: str) -> str:
    """Returns the URL of a file in a served directory.

    Args:
      base: URL that `serving` yields.
      name: path of the file relative to the directory.
    """
    return base + urllib.parse.quote(name)


def ceiling(base: str, names: Sequence[str], seconds: float = 1.0) -> float:
    """Returns the requests/s of a plain client with a new connection per request: a lower bound of the server rate.

    Args:
      base: URL that `serving` yields.
      names: files to request, relative to the directory.
      seconds: duration of the measurement.

    Raises:
      RuntimeError: a file was not served.
    """
    address = (HOST, urllib.parse.urlsplit(base).port or 80)
    requests = [f"GET /{urllib.parse.quote(name)} HTTP/1.1\r\nConnection: close\r\n\r\n".encode() for name in names]
    end = time.perf_counter() + seconds

    def ask(first: int) -> int:
        for done, request in enumerate(itertools.cycle(requests[first:] + requests[:first])):
            if time.perf_counter() > end:
                return done
            with socket.create_connection(address) as connection:
                connection.sendall(request)
                answer = connection.recv(_MAX_HEAD_BYTES)
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"the server responded {answer[:20]!r} to {request!r}")
                while connection.recv(1 << 20):
                    pass
        return 0

    with ThreadPoolExecutor(_CLIENT_THREADS) as pool:
        return sum(pool.map(ask, [index % len(names) for index in range(_CLIENT_THREADS)])) / seconds


class _Connection(asyncio.Protocol):
    """One connection; responses have the order of the requests."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._pending += data
        transport = self._transport
        while transport and not transport.is_closing() and b"\r\n\r\n" in self._pending:
            head, _, self._pending = self._pending.partition(b"\r\n\r\n")
            answer, keep = _answer(self._root, head)
            transport.write(answer)
            if not keep:
                transport.close()
        if transport and len(self._pending) > _MAX_HEAD_BYTES:
            transport.close()


def _answer(root: str, head: bytes) -> tuple[bytes, bool]:
    """Returns the response to a request and whether the connection stays open."""
    line, _, headers = head.partition(b"\r\n")
    method, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.rpartition(" ")
    keep = version == "HTTP/1.1" and b"connection: close" not in headers.lower()
    if method not in {"GET", "HEAD"}:
        return _response("405 Method Not Allowed", "text/plain", b"", keep), keep
    name = urllib.parse.unquote(target.partition("?")[0]).lstrip("/")
    try:
        if ".." in name.split("/"):
            raise FileNotFoundError(name)
        with open(os.path.join(root, name), "rb", buffering=0) as stream:
            body = stream.read()
    except (OSError, ValueError):
        return _response("404 Not Found", "text/plain", b"", keep), keep
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _response("200 OK", kind, body, keep, with_body=method == "GET"), keep


def _response(status: str, kind: str, body: bytes, keep: bool, with_body: bool = True) -> bytes:
    connection = "keep-alive" if keep else "close"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: {connection}\r\n\r\n"
    )
    return head.encode() + body if with_body else head.encode()


async def _serve(root: str, listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait_for_end() -> None:
        while os.read(0, 4096):  # `sys.stdin` would keep a lock that the exit of the interpreter needs
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    server = await loop.create_server(lambda: _Connection(root), sock=listening)
    await ended.wait()
    server.close()  # `async with` would wait for the clients, which may keep their connections until this process ends


def main() -> None:
    """Serves a directory until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=0, help="0 for a free port")
    arguments = parser.parse_args()
    if not arguments.directory.is_dir():
        parser.error(f"{arguments.directory} is not a directory")
    with socket.create_server((HOST, arguments.port), backlog=1024) as listening:
        print(f"http://{HOST}:{listening.getsockname()[1]}/", flush=True)
        for _ in range((os.cpu_count() or 1) // _CORES_PER_PROCESS):
            if os.fork() == 0:  # shares the listening socket and standard input
                break
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(str(arguments.directory), listening))


if __name__ == "__main__":
    main()

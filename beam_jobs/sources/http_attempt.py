"""One attempt at an image on a web server: redirects followed by hand, the body bounded, every failure named."""

from __future__ import annotations

import base64
import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import InvalidURL
from importlib import metadata
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin

from urllib3 import exceptions
from urllib3.util import Retry, Timeout, Url, parse_url

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import HttpOptions
from beam_jobs.sources.public_address import PATIENCE, Failed, make_manager

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({429, 500, 502, 503, 504})
_MAX_REDIRECTS = 5
_PIECE_BYTES = 1 << 16
_NO_URL = "it is, or leads to, no valid URL"
_LONGEST_HOST = 255
_LONGEST_TEXT = 80  # of what servers choose and people read

_making = threading.Lock()


def attempt(url: str, options: HttpOptions, limit: int) -> bytes | Failed:
    """Returns the first `limit` bytes behind a URL, redirects followed, or why this attempt came to nothing.

    Raises:
      BadImage: an address, scheme or redirect is refused.
    """
    with _making:  # two clients would let twice the requests to a host
        client = _client(options)
    try:
        return client.get(url, limit)
    except Failed as failed:
        return failed


@functools.cache
def _client(options: HttpOptions) -> _Client:
    return _Client(options)


class _Client:
    """What the attempts with the same options share: the connections and the gates of the hosts."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._timeout = Timeout(connect=options.timeout_s, read=options.timeout_s)
        self._manager = make_manager(options)
        self._gates = _Gates(options.per_host)
        self._agent = f"feedline/{metadata.version('feedline')}"

    def get(self, url: str, limit: int) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            body, onward = self._ask(url, limit)
            if not onward:
                return body
            url = _onward(url, onward)
        raise BadImage(RejectReason.ADDRESS_REFUSED, f"over {_MAX_REDIRECTS} redirects")

    def _ask(self, url: str, limit: int) -> tuple[bytes, str]:
        """Returns the body, or where a redirect leads; the other is empty."""
        target = _parse(url)
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity"}
        if target.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(unquote_to_bytes(target.auth)).decode()}"
        with self._gates.enter(target.host), _named_failures(target.host, self._options.timeout_s):
            response = self._manager.urlopen(
                "GET",
                url,
                headers=headers,
                redirect=False,
                retries=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
                enforce_content_length=True,
            )
            try:
                return _answer(response, target.host, limit)
            finally:
                response.close()  # one that was read to its end has already given its connection back


class _Gates:
    """Bounds the requests to one host at a time.

    The pools of urllib3 can do it while the hosts are few. Of many it forgets those pools that were used least lately,
    and with them who waits there.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, host: str) -> Iterator[None]:
        with self._lock:
            gate = self._gates.setdefault(host, threading.Semaphore(self._width))
            self._users[host] += 1
        try:
            with gate:
                yield
        finally:
            with self._lock:
                self._users[host] -= 1
                if not self._users[host]:  # a list of a million hosts must not leave a million gates
                    del self._gates[host], self._users[host]


def _parse(url: str) -> Url:
    try:
        target = parse_url(url)
    except exceptions.HTTPError as error:
        raise Failed(_NO_URL, passing=False) from error
    if target.scheme and target.scheme not in ("http", "https"):
        detail = f"{_line(target.scheme)}:// is not fetched, only http:// and https:// are"
        raise BadImage(RejectReason.ADDRESS_REFUSED, detail)
    host = target.host or ""
    if not target.scheme or not 0 < len(host) < _LONGEST_HOST or not host.isprintable():
        raise Failed(_NO_URL, passing=False)
    return target


def _onward(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise Failed(_NO_URL, passing=False) from error


def _answer(response: Any, host: str, limit: int) -> tuple[bytes, str]:
    onward = response.headers.get("Location", "")
    if response.status in _REDIRECTS and onward:
        return b"", onward
    if not 200 <= response.status < 300:
        raise Failed(f"{host} answers {response.status}", response.status in _PASSING, _wait_s(response))
    pieces = []
    left = limit
    while left and (piece := response.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces), ""


def _line(text: object) -> str:
    """Returns what a server may have chosen as something to print."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text).strip()[:_LONGEST_TEXT])


def _wait_s(response: Any) -> float | None:
    try:
        return Retry().get_retry_after(response)
    except (exceptions.InvalidHeader, ValueError, OverflowError):  # also numbers of 5,000 digits, and their years
        return None


@contextlib.contextmanager
def _named_failures(host: str, timeout_s: float) -> Iterator[None]:
    """Says in words of our own what broke: those of urllib3 hold the whole URL, with the passwords in it."""
    try:
        yield
    except exceptions.TimeoutError as error:
        detail = f"{host} was silent for {timeout_s:g} s, or not through in {PATIENCE * timeout_s:g} s"
        raise Failed(detail, passing=True) from error
    except exceptions.SSLError as error:
        cause = error.args[0] if error.args else error
        untrusted = isinstance(cause, ValueError)  # so are the errors of certificates, of Python as of urllib3
        detail = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or str(cause)
        raise Failed(f"no safe connection to {host}: {detail}", passing=not untrusted) from error
    except exceptions.HTTPError as error:
        cause = error.args[-1] if error.args else error
        if isinstance(error, exceptions.LocationValueError) or isinstance(cause, InvalidURL):
            raise Failed(_NO_URL, passing=False) from error
        passing = isinstance(error, (exceptions.ProtocolError, exceptions.ClosedPoolError))
        raise Failed(f"the connection to {host} broke: {_line(cause)}", passing) from error

"""One attempt at an image on a web server: redirects followed by hand, the body bounded, every failure named.

And to whom a connection may lead, and how long an answer may take.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import ipaddress
import logging
import math
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.client import InvalidURL
from importlib import metadata
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Retry, Timeout, Url, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import HttpOptions

PATIENCE = 10  # time-outs after which the whole of an answer must be here
_HOSTS_KEPT = 32  # hosts to which idle connections are kept; with 8 each they stay far below the limit on open files
_MAX_ADDRESSES = 4  # of one host that are tried: each may take a whole time-out
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses as networks of IPv6 alone see them
_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is given out to the open internet
# Special ones that `ipaddress` takes for open, in some of its versions: clouds tell secrets at two of them.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20", "5f00::/16")
)
_CHATTY = ("connection", "connectionpool", "response")  # modules of urllib3 that log what servers say


class Failed(Exception):
    """An attempt to fetch something came to nothing.

    Attributes:
      passing: whether another attempt may fare better.
      wait_s: seconds to wait before it, as the server asks; None when it does not say.
    """

    def __init__(self, detail: str, passing: bool, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.passing = passing
        self.wait_s = wait_s


def is_public(address: str) -> bool:
    """Returns whether an IP address is one of the open internet.

    Loopback, link-local, private, shared, multicast, reserved and unspecified ones are not, nor those at which clouds
    keep services for their machines. An IPv4 address inside an IPv6 one is taken for itself.
    """
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if not inner:
            return found.is_global and found in _UNICAST and not _is_special(found)
        found = inner
    return found.is_global and not found.is_multicast and not _is_special(found)


def _is_special(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(address in network for network in _SPECIAL)


def make_manager(options: HttpOptions) -> PoolManager:
    """Returns a pool of connections that checks certificates and addresses and asks no proxy."""
    for module in _CHATTY:  # whole URLs, headers and certificates, with secrets and controls in them
        logging.getLogger(f"urllib3.{module}").setLevel(logging.CRITICAL)
    # Not the context of the standard library: only with its own does urllib3 check the names of hosts that are numbers.
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    context.load_default_certs()
    with contextlib.suppress(ImportError):  # small containers have no certificates of their own
        import certifi

        context.load_verify_locations(certifi.where())
    context.sslsocket_class = _TlsSocket
    manager = PoolManager(
        _HOSTS_KEPT, maxsize=options.per_host, block=False, ssl_context=context, cert_reqs=ssl.CERT_REQUIRED
    )
    manager.pool_classes_by_scheme = {
        "http": partial(_HttpPool, public_only=not options.allow_private),
        "https": partial(_HttpsPool, public_only=not options.allow_private),
    }
    return manager


class _Socket(socket.socket):
    """A socket whose reads end at a deadline. A time-out alone begins anew with every byte that drips in."""

    deadline = math.inf

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        if time.monotonic() > self.deadline:
            raise TimeoutError("the deadline of the answer has passed")
        return super().recv_into(*args, **kwargs)


class _TlsSocket(_Socket, ssl.SSLSocket):
    """The same under TLS; the context makes it of the plain one."""


class _Guarded:
    """A connection that resolves the name of its host once, checks the addresses and leads to one of those.

    A name that is checked and then looked up again may lead to another address the second time.
    """

    host: str
    port: int
    timeout: float
    sock: socket.socket | None

    def __init__(self, *args: Any, public_only: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._public_only = public_only

    def request(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]
        finally:  # an answer is also read after a request that broke off
            if isinstance(self.sock, _Socket):
                self.sock.deadline = time.monotonic() + PATIENCE * self.timeout

    def _new_conn(self) -> socket.socket:
        # The one step of urllib3 that looks up and connects; 1.26 and 2 call it under this name.
        last: OSError | None = None
        for family, kind, protocol, _, address in self._addresses()[:_MAX_ADDRESSES]:
            sock = _Socket(family, kind, protocol)
            try:
                sock.settimeout(self.timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
            except OSError as error:
                sock.close()
                last = error
            else:
                return sock
        raise Failed(f"{self.host} cannot be reached: {last}", passing=True) from last

    def _addresses(self) -> list[tuple]:
        host = self.host
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            passing = getattr(error, "errno", None) == socket.EAI_AGAIN
            raise Failed(f"{host} is no known host: {error}", passing) from error
        permitted = [entry for entry in found if not self._public_only or is_public(str(entry[4][0]))]
        if not permitted:
            raise BadImage(RejectReason.ADDRESS_REFUSED, f"{host} is at {found[0][4][0]}, which is no public address")
        return permitted


class _HttpConnection(_Guarded, HTTPConnection):
    pass


class _HttpsConnection(_Guarded, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


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
        target = _parse_url(url)
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


def _parse_url(url: str) -> Url:
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

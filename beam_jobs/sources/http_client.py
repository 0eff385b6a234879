"""A single attempt to fetch an image from a web server, with checked addresses, redirects, limits and deadlines."""

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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.client import InvalidURL
from importlib import metadata
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urljoin

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Retry, Timeout, Url, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason

T = TypeVar("T")

PATIENCE = 10  # timeouts within which a response must be complete
_MAX_HOSTS = 32  # with idle connections; with 8 connections each they stay far below the limit of open files
_MAX_ADDRESSES = 4  # of a host that are tried: each may take a full timeout
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses in networks with IPv6 only
_UNICAST = ipaddress.ip_network("2000::/3")  # all public IPv6 addresses
# Special networks that some versions of `ipaddress` report as global; clouds provide secrets at two of them.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20", "5f00::/16")
)
_AGENT = "feedline"
_OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")  # also before a colon
_LOGGING_MODULES = ("connection", "connectionpool", "response")  # modules of urllib3 that log contents of responses


class FetchError(Exception):
    """An attempt to fetch a file has failed.

    Attributes:
      temporary: whether another attempt may succeed.
      retry_after_s: seconds to wait before it, as the server requests; None when it does not.
    """

    def __init__(self, detail: str, temporary: bool, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.temporary = temporary
        self.retry_after_s = retry_after_s


def is_public(address: str) -> bool:
    """Returns whether an IP address is public.

    Loopback, link-local, private, shared, multicast, reserved and unspecified addresses are not public, nor the
    addresses of cloud metadata services. An IPv4 address embedded in an IPv6 address is checked as an IPv4 address.
    """
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        embedded = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            embedded = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if not embedded:
            return parsed.is_global and parsed in _UNICAST and not _is_special(parsed)
        parsed = embedded
    return parsed.is_global and not parsed.is_multicast and not _is_special(parsed)


def _is_special(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(address in network for network in _SPECIAL)


def make_manager(options: HttpOptions) -> PoolManager:
    """Returns a connection pool that checks certificates and addresses and uses no proxy."""
    for module in _LOGGING_MODULES:  # their messages hold URLs and headers, with secrets and control characters
        logging.getLogger(f"urllib3.{module}").setLevel(logging.CRITICAL)
    # Not the context of the standard library: with that, urllib3 does not check certificates of hosts given as numbers.
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    context.load_default_certs()
    with contextlib.suppress(ImportError):  # small containers have no system certificates
        import certifi

        context.load_verify_locations(certifi.where())
    context.sslsocket_class = _TlsSocket
    manager = PoolManager(
        _MAX_HOSTS, maxsize=options.per_host, block=False, ssl_context=context, cert_reqs=ssl.CERT_REQUIRED
    )
    manager.pool_classes_by_scheme = {
        "http": partial(_HttpPool, public_only=not options.allow_private),
        "https": partial(_HttpsPool, public_only=not options.allow_private),
    }
    return manager


class _Socket(socket.socket):
    """A socket whose reads end at a deadline. A timeout alone restarts with every byte that arrives."""

    deadline = math.inf

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        if time.monotonic() > self.deadline:
            raise TimeoutError("the deadline of the answer has passed")
        return super().recv_into(*args, **kwargs)


class _TlsSocket(_Socket, ssl.SSLSocket):
    """The same with TLS; the SSL context creates it from a plain socket."""


class _CheckedConnection:
    """A connection that resolves its host name once, checks the addresses and connects to one of them.

    A second look-up after the check could return another address.
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
        finally:  # a response is also read after a request that failed
            if isinstance(self.sock, _Socket):
                self.sock.deadline = time.monotonic() + PATIENCE * self.timeout

    def _new_conn(self) -> socket.socket:
        # The only step of urllib3 that resolves and connects; 1.26 and 2 call it by this name.
        cause: OSError | None = None
        for family, kind, protocol, _, address in self._resolve()[:_MAX_ADDRESSES]:
            sock = _Socket(family, kind, protocol)
            try:
                sock.settimeout(self.timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
            except OSError as error:
                sock.close()
                cause = error
            else:
                return sock
        raise FetchError(f"{self.host} cannot be reached: {cause}", temporary=True) from cause

    def _resolve(self) -> list[tuple]:
        host = self.host
        try:
            infos = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            temporary = getattr(error, "errno", None) == socket.EAI_AGAIN
            raise FetchError(f"the host {host} cannot be resolved: {error}", temporary) from error
        permitted = [entry for entry in infos if not self._public_only or is_public(str(entry[4][0]))]
        if not permitted:
            raise BadImage(RejectReason.ADDRESS_REFUSED, f"{host} is at {infos[0][4][0]}, which is not public")
        return permitted


class _HttpConnection(_CheckedConnection, HTTPConnection):
    pass


class _HttpsConnection(_CheckedConnection, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEMPORARY = frozenset({429, 500, 502, 503, 504})
_MAX_REDIRECTS = 5
_PIECE_BYTES = 1 << 16
_NO_URL = "the URL, or a redirect, is not valid"
_MAX_HOST = 255  # characters
_MAX_TEXT = 80  # characters of a text from a server in a message
_MAX_TAG = 200  # characters of an ETag; those of servers have up to 70

_client_lock = threading.Lock()


def attempt(url: str, options: HttpOptions, limit: int) -> bytes | FetchError:
    """Returns the first `limit` bytes of a URL, after redirects, or the error of this attempt.

    Raises:
      BadImage: an address, scheme or redirect is refused, or the server forbids the use in a dataset.
    """
    return _follow(url, options, "GET", partial(_read_body, limit=limit, ignore_robots_tag=options.ignore_robots_tag))


def attempt_checksum(url: str, options: HttpOptions) -> str | FetchError:
    """Returns the strong ETag of a URL and the length of its body, after redirects; see `attempt`.

    The ETag is other text for other bytes: https://www.rfc-editor.org/rfc/rfc9110#section-8.8.1. Without one, and where
    the server answers no request for the header alone, the text is empty.
    """
    return _follow(url, options, "HEAD", _read_checksum)


def _follow(url: str, options: HttpOptions, method: str, read: Callable[[Any], T]) -> T | FetchError:
    with _client_lock:  # two clients would allow twice the requests to a host
        client = _client(options)
    try:
        return client.follow(url, method, read)
    except FetchError as failed:
        return failed


class _Client:
    """The connections and request limits that all attempts with the same options share."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._timeout = Timeout(connect=options.timeout_s, read=options.timeout_s)
        self._manager = make_manager(options)
        self._semaphores = _HostLimits(options.per_host)
        self._agent = f"{_AGENT}/{metadata.version('feedline')}"

    def follow(self, url: str, method: str, read: Callable[[Any], T]) -> T:
        """Returns what `read` takes from the response at the end of the redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            location, result = self._request(url, method, read)
            if not location:
                return result
            url = _join(url, location)
        raise BadImage(RejectReason.ADDRESS_REFUSED, f"over {_MAX_REDIRECTS} redirects")

    def _request(self, url: str, method: str, read: Callable[[Any], T]) -> tuple[str, T]:
        """Returns the location of a redirect, empty for another response, and the result of `read`."""
        target = _parse_url(url)
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity"}
        if target.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(unquote_to_bytes(target.auth)).decode()}"
        with self._semaphores.enter(target.host), _convert_errors(target.host, self._options.timeout_s):
            response = self._manager.urlopen(
                method,
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
                location = response.headers.get("Location", "") if response.status in _REDIRECTS else ""
                failed = not location and not 200 <= response.status < 300
                if failed and (method == "GET" or response.status in _TEMPORARY):
                    temporary = response.status in _TEMPORARY
                    detail = f"{target.host} returned HTTP {response.status}"
                    raise FetchError(detail, temporary, _retry_after_s(response))
                return location, read(response)
            finally:
                response.close()  # a response that was read to its end has already returned its connection


_client = functools.cache(_Client)  # one for equal options


class _HostLimits:
    """Limits the number of requests to a host at a time.

    The pools of urllib3 can do it only for few hosts: with many, it drops the least recently used pools, and with them
    the requests that wait there.
    """

    def __init__(self, max_per_host: int) -> None:
        self._max_per_host = max_per_host
        self._lock = threading.Lock()
        self._semaphores: dict[str, threading.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, host: str) -> Iterator[None]:
        with self._lock:
            semaphore = self._semaphores.setdefault(host, threading.Semaphore(self._max_per_host))
            self._users[host] += 1
        try:
            with semaphore:
                yield
        finally:
            with self._lock:
                self._users[host] -= 1
                if not self._users[host]:  # a list of a million hosts must not leave a million semaphores
                    del self._semaphores[host], self._users[host]


def _parse_url(url: str) -> Url:
    try:
        target = parse_url(url)
    except exceptions.HTTPError as error:
        raise FetchError(_NO_URL, temporary=False) from error
    if target.scheme and target.scheme not in ("http", "https"):
        detail = f"{_line(target.scheme)}:// is not allowed; only http:// and https:// are fetched"
        raise BadImage(RejectReason.ADDRESS_REFUSED, detail)
    host = target.host or ""
    if not target.scheme or not 0 < len(host) < _MAX_HOST or not host.isprintable():
        raise FetchError(_NO_URL, temporary=False)
    return target


def _join(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise FetchError(_NO_URL, temporary=False) from error


def _read_body(response: Any, limit: int, ignore_robots_tag: bool) -> bytes:
    if response.status in _REDIRECTS:
        return b""
    if not ignore_robots_tag and (directive := _opt_out(response.headers.getlist("X-Robots-Tag"))):
        raise BadImage(RejectReason.OPTED_OUT, f"the server sends X-Robots-Tag: {directive}; see --ignore-robots-tag")
    pieces = []
    remaining = limit
    while remaining and (piece := response.read(min(remaining, _PIECE_BYTES))):
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _opt_out(lines: Iterable[str]) -> str:
    """Returns the directive of `X-Robots-Tag` headers that forbids a use in datasets; empty for none.

    A directive may follow the name of the client that it and the next ones are for. They are those that img2dataset
    obeys, and `none`, which includes `noindex`. Source: https://developers.google.com/search/docs/crawling-indexing/robots-meta-tag
    """
    for line in lines:
        client = "*"
        for part in line.lower().split(","):  # a proxy may join lines for several clients
            name, colon, directive = (text.strip() for text in part.partition(":"))
            if colon and name not in _WITH_VALUE:
                client, name = name, directive
            if client in ("*", _AGENT) and name in _OPT_OUTS:
                return name
    return ""


def _read_checksum(response: Any) -> str:
    tag, length = (response.headers.get(name, "") for name in ("ETag", "Content-Length"))
    is_strong = 200 <= response.status < 300 and tag.startswith('"') and len(tag) > len('""')
    return f"{_line(tag, _MAX_TAG)} {_line(length)}" if is_strong and len(tag) <= _MAX_TAG else ""


def _line(text: object, limit: int = _MAX_TEXT) -> str:
    """Returns a text from a server in printable characters, shortened."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text).strip()[:limit])


def _retry_after_s(response: Any) -> float | None:
    try:
        return Retry().get_retry_after(response)
    except (exceptions.InvalidHeader, ValueError, OverflowError):  # also numbers of 5,000 digits
        return None


@contextlib.contextmanager
def _convert_errors(host: str, timeout_s: float) -> Iterator[None]:
    """Replaces the errors of urllib3, whose messages hold the complete URL, with its passwords."""
    try:
        yield
    except exceptions.TimeoutError as error:
        detail = f"{host} was silent for {timeout_s:g} s, or its response took more than {PATIENCE * timeout_s:g} s"
        raise FetchError(detail, temporary=True) from error
    except exceptions.SSLError as error:
        cause = error.args[0] if error.args else error
        untrusted = isinstance(cause, ValueError)  # the type of certificate errors, of Python and urllib3
        detail = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or str(cause)
        raise FetchError(f"no safe connection to {host}: {detail}", temporary=not untrusted) from error
    except exceptions.HTTPError as error:
        cause = error.args[-1] if error.args else error
        if isinstance(error, exceptions.LocationValueError) or isinstance(cause, InvalidURL):
            raise FetchError(_NO_URL, temporary=False) from error
        temporary = isinstance(error, (exceptions.ProtocolError, exceptions.ClosedPoolError))
        raise FetchError(f"the connection to {host} broke: {_line(cause)}", temporary) from error

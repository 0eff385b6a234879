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
_RESPONSE_TIMEOUTS = 10  # a response must be complete within this number of timeouts
_MAX_HOSTS = 32  # hosts with idle connections: at 8 connections each, far below the limit of open files
_MAX_ADDRESSES = 4  # addresses of a host to try: each may take a full timeout
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses in networks with IPv6 only
_UNICAST = ipaddress.ip_network("2000::/3")  # all public IPv6 addresses
# Special networks that some versions of `ipaddress` report as global; clouds provide secrets at two of them.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20", "5f00::/16")
)
_AGENT = "feedline"
_OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
_DIRECTIVES_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_LOGGING_MODULES = ("connection", "connectionpool", "response")  # modules of urllib3 that log contents of responses


class FetchError(Exception):
    """An attempt to fetch a file has failed.

    Attributes:
      temporary: whether another attempt may succeed.
      retry_after_s: pause before another attempt that the server requests, in seconds; None without a request.
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
    for module in _LOGGING_MODULES:  # their messages contain URLs and headers, with secrets and control characters
        logging.getLogger(f"urllib3.{module}").setLevel(logging.CRITICAL)
    # With the context of the standard library, urllib3 does not check certificates of hosts given as IP addresses.
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
            raise TimeoutError("the deadline of the response has passed")
        return super().recv_into(*args, **kwargs)


class _TlsSocket(_Socket, ssl.SSLSocket):
    """A `_Socket` with TLS; the SSL context creates it from a plain socket."""


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
                self.sock.deadline = time.monotonic() + _RESPONSE_TIMEOUTS * self.timeout

    def _new_conn(self) -> socket.socket:
        # In urllib3 1.26 and 2, only this method resolves the host and connects.
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
        permitted_infos = [info for info in infos if not self._public_only or is_public(str(info[4][0]))]
        if not permitted_infos:
            raise BadImage(RejectReason.ADDRESS_REFUSED, f"{host} is at {infos[0][4][0]}, which is not public")
        return permitted_infos


class _HttpConnection(_CheckedConnection, HTTPConnection):
    pass


class _HttpsConnection(_CheckedConnection, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_TEMPORARY_STATUSES = frozenset({429, 500, 502, 503, 504})
_MAX_REDIRECTS = 5
_PIECE_BYTES = 1 << 16
_BAD_URL = "the URL, or a redirect, is not valid"
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

    Other bytes have another strong ETag: https://www.rfc-editor.org/rfc/rfc9110#section-8.8.1. The result is empty
    without a strong ETag, and when the server does not answer HEAD requests.
    """
    return _follow(url, options, "HEAD", _read_checksum)


def _follow(url: str, options: HttpOptions, method: str, read: Callable[[Any], T]) -> T | FetchError:
    """Returns the result of `read` for the response after all redirects, or the error of this attempt."""
    with _client_lock:  # two clients would allow twice the requests to a host
        client = _shared_client(options)
    try:
        return client.follow(url, method, read)
    except FetchError as error:
        return error


class _Client:
    """The connections and request limits that all attempts with the same options share."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._timeout = Timeout(connect=options.timeout_s, read=options.timeout_s)
        self._manager = make_manager(options)
        self._host_limits = _HostLimits(options.per_host)
        self._agent = f"{_AGENT}/{metadata.version('feedline')}"

    def follow(self, url: str, method: str, read: Callable[[Any], T]) -> T:
        """Returns the result of `read` for the response after all redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            location, result = self._request(url, method, read)
            if not location:
                return result
            url = _join(url, location)
        raise BadImage(RejectReason.ADDRESS_REFUSED, f"over {_MAX_REDIRECTS} redirects")

    def _request(self, url: str, method: str, read: Callable[[Any], T]) -> tuple[str, T]:
        """Returns the location of a redirect, empty for another response, and the result of `read`."""
        parsed_url = _parse_url(url)
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity"}
        if parsed_url.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(unquote_to_bytes(parsed_url.auth)).decode()}"
        with self._host_limits.enter(parsed_url.host), _convert_errors(parsed_url.host, self._options.timeout_s):
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
                location = response.headers.get("Location", "") if response.status in _REDIRECT_STATUSES else ""
                is_failure = not location and not 200 <= response.status < 300
                if is_failure and (method == "GET" or response.status in _TEMPORARY_STATUSES):  # HEAD may be refused
                    temporary = response.status in _TEMPORARY_STATUSES
                    detail = f"{parsed_url.host} returned HTTP {response.status}"
                    raise FetchError(detail, temporary, _retry_after_s(response))
                return location, read(response)
            finally:
                response.close()  # a response that was read to its end has already returned its connection


_shared_client = functools.cache(_Client)  # attempts with equal options share one client


class _HostLimits:
    """Limits the number of requests to a host at a time.

    The pools of urllib3 can limit them only for few hosts: with many hosts, urllib3 drops the least recently used
    pools, with the requests that wait in them.
    """

    def __init__(self, max_per_host: int) -> None:
        self._max_per_host = max_per_host
        self._lock = threading.Lock()
        self._semaphores: dict[str, threading.Semaphore] = {}
        self._request_counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, host: str) -> Iterator[None]:
        with self._lock:
            semaphore = self._semaphores.setdefault(host, threading.Semaphore(self._max_per_host))
            self._request_counts[host] += 1
        try:
            with semaphore:
                yield
        finally:
            with self._lock:
                self._request_counts[host] -= 1
                if not self._request_counts[host]:  # a list of a million hosts must not leave a million semaphores
                    del self._semaphores[host], self._request_counts[host]


def _parse_url(url: str) -> Url:
    try:
        parsed_url = parse_url(url)
    except exceptions.HTTPError as error:
        raise FetchError(_BAD_URL, temporary=False) from error
    if parsed_url.scheme and parsed_url.scheme not in ("http", "https"):
        detail = f"{_printable_line(parsed_url.scheme)}:// is not allowed; only http:// and https:// are fetched"
        raise BadImage(RejectReason.ADDRESS_REFUSED, detail)
    host = parsed_url.host or ""
    if not parsed_url.scheme or not 0 < len(host) < _MAX_HOST or not host.isprintable():
        raise FetchError(_BAD_URL, temporary=False)
    return parsed_url


def _join(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise FetchError(_BAD_URL, temporary=False) from error


def _read_body(response: Any, limit: int, ignore_robots_tag: bool) -> bytes:
    if response.status in _REDIRECT_STATUSES:
        return b""  # the body of a redirect is not used
    if not ignore_robots_tag and (directive := _opt_out_directive(response.headers.getlist("X-Robots-Tag"))):
        raise BadImage(RejectReason.OPTED_OUT, f"the server sends X-Robots-Tag: {directive}; see --ignore-robots-tag")
    pieces = []
    remaining = limit
    while remaining and (piece := response.read(min(remaining, _PIECE_BYTES))):
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _opt_out_directive(lines: Iterable[str]) -> str:
    """Returns the directive of `X-Robots-Tag` headers that forbids a use in datasets; empty for none.

    A client name before a directive limits it and the next ones to that client. The opt-outs are those that img2dataset
    obeys, and `none`, which includes `noindex`. Source: https://developers.google.com/search/docs/crawling-indexing/robots-meta-tag
    """
    for line in lines:
        client = "*"
        for part in line.lower().split(","):  # a proxy may join lines for several clients
            name, colon, directive = (text.strip() for text in part.partition(":"))
            if colon and name not in _DIRECTIVES_WITH_VALUE:
                client, name = name, directive
            if client in ("*", _AGENT) and name in _OPT_OUTS:
                return name
    return ""


def _read_checksum(response: Any) -> str:
    etag, length = (response.headers.get(name, "") for name in ("ETag", "Content-Length"))
    is_strong = 200 <= response.status < 300 and etag.startswith('"') and len(etag) > len('""')
    return f"{_printable_line(etag, _MAX_TAG)} {_printable_line(length)}" if is_strong and len(etag) <= _MAX_TAG else ""


def _printable_line(text: object, limit: int = _MAX_TEXT) -> str:
    """Returns a text from a server in printable characters, shortened."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text).strip()[:limit])


def _retry_after_s(response: Any) -> float | None:
    try:
        return Retry().get_retry_after(response)
    except (exceptions.InvalidHeader, ValueError, OverflowError):  # also numbers of 5,000 digits
        return None


@contextlib.contextmanager
def _convert_errors(host: str, timeout_s: float) -> Iterator[None]:
    """Replaces the errors of urllib3, whose messages contain the complete URL with its passwords."""
    try:
        yield
    except exceptions.TimeoutError as error:
        limit_s = _RESPONSE_TIMEOUTS * timeout_s
        detail = f"{host} sent nothing for {timeout_s:g} s, or its response took more than {limit_s:g} s"
        raise FetchError(detail, temporary=True) from error
    except exceptions.SSLError as error:
        cause = error.args[0] if error.args else error
        is_untrusted = isinstance(cause, ValueError)  # the type of certificate errors, of Python and urllib3
        detail = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or str(cause)
        raise FetchError(f"no safe connection to {host}: {detail}", temporary=not is_untrusted) from error
    except exceptions.HTTPError as error:
        cause = error.args[-1] if error.args else error
        if isinstance(error, exceptions.LocationValueError) or isinstance(cause, InvalidURL):
            raise FetchError(_BAD_URL, temporary=False) from error
        temporary = isinstance(error, (exceptions.ProtocolError, exceptions.ClosedPoolError))
        raise FetchError(f"the connection to {host} broke: {_printable_line(cause)}", temporary) from error

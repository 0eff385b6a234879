"""Connections to web servers: to whom they may lead, and how long an answer may take."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import socket
import ssl
import time
from functools import partial
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
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

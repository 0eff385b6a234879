"""Fetching images from web servers, with retries, timeouts, a limit of requests per host, and checks of the address.

An attempt ends when the server sends nothing for `HttpOptions.timeout_s`, while connecting or reading, and when a
response is not complete after ten times that, so that a server that sends a byte per second cannot block a worker
forever. Each redirect is a separate response. A name look-up takes as long as the resolver of the system allows. The
body is used as sent, without decompression, and not read past the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from beam_jobs.common.strings import plural
from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason

if TYPE_CHECKING:
    from beam_jobs.sources.http_client import FetchError

T = TypeVar("T")
_FIRST_PAUSE_S = 0.5  # doubled for every further attempt
_MAX_PAUSE_S = 30.0
_MAX_RETRY_AFTER_S = 60.0  # for pauses that the server requests

# Query parameters of signed URLs, in lower case.
_SIGNATURE_PREFIXES = ("x-amz-", "x-goog-")
_SIGNATURE_NAMES = frozenset({"sig", "signature", "expires"})
_WITH_SIGNATURE = frozenset({"googleaccessid", "awsaccesskeyid", "key-pair-id", "policy"})  # with `signature`
# Common names, which are part of a signature only together with `sig`.
# Source: https://learn.microsoft.com/rest/api/storageservices/create-service-sas
_WITH_SIG = frozenset(
    {
        *("sv", "ss", "srt", "sp", "se", "st", "spr", "sip", "sr", "si", "sdd", "ses"),
        *("saoid", "suoid", "scid", "skoid", "sktid", "skt", "ske", "sks", "skv"),
    }
)


def is_url(uri: str) -> bool:
    """Returns whether a uri is an http or https URL."""
    return uri[:8].lower().startswith(("http://", "https://"))


def remove_signature(uri: str) -> str:
    """Returns a URL without its signature, with which readers of a dataset could fetch the file until it expires.

    The parameters of S3, Google Cloud Storage, CloudFront and Azure are removed. All other parts of a URL, and texts
    that are not a URL, stay as they are.
    """
    if not is_url(uri) or "?" not in uri:
        return uri
    address, _, query = uri.partition("?")
    query, hash_sign, fragment = query.partition("#")
    parts = query.split("&")
    names = [part.partition("=")[0].lower() for part in parts]
    secret_names = set(_SIGNATURE_NAMES)
    secret_names |= (_WITH_SIG if "sig" in names else set()) | (_WITH_SIGNATURE if "signature" in names else set())
    is_secret = [name in secret_names or name.startswith(_SIGNATURE_PREFIXES) for name in names]
    remaining_parts = [part for part, secret in zip(parts, is_secret, strict=True) if not secret]
    if len(remaining_parts) == len(parts):
        return uri
    return address + ("?" + "&".join(remaining_parts) if remaining_parts else "") + hash_sign + fragment


def fetch(url: str, options: HttpOptions, limit: int) -> bytes:
    """Returns the body of a response, at most `limit` bytes. Thread-safe.

    Attempts are repeated after timeouts, broken connections and the status codes 429, 500, 502, 503 and 504. At most
    five redirects are followed. The addresses of every host are checked, and only a checked address is connected to;
    an address that is not public is refused unless `options.allow_private`. Proxies of the environment are not used.

    Raises:
      BadImage: the file could not be fetched, or its address is refused.
    """
    from beam_jobs.sources import http_client  # urllib3 takes a tenth of a second to import

    return _retry(lambda: http_client.attempt(url, options, limit), options)


def checksum(url: str, options: HttpOptions) -> str:
    """Returns the strong ETag and the length of a file; empty if the server sends no strong ETag. Raises as `fetch`."""
    from beam_jobs.sources import http_client

    return _retry(lambda: http_client.attempt_checksum(url, options), options)


def _retry(attempt_once: Callable[[], T | FetchError], options: HttpOptions) -> T:
    from beam_jobs.sources import http_client

    attempt_count = 1
    while isinstance(result := attempt_once(), http_client.FetchError):
        if not result.temporary or attempt_count > options.retries:
            raise BadImage(RejectReason.NOT_FETCHED, f"{result}; {plural(attempt_count, 'attempt')}") from result
        time.sleep(_pause_s(attempt_count, result.retry_after_s))
        attempt_count += 1
    return result


def _pause_s(attempt: int, retry_after_s: float | None) -> float:
    pause_s = min(_FIRST_PAUSE_S * 2 ** min(attempt - 1, 10), _MAX_PAUSE_S)
    return pause_s if retry_after_s is None else min(retry_after_s, _MAX_RETRY_AFTER_S)

"""Images on web servers: fetched with retries, a time-out, a limit a host, and never from where they must not come.

An attempt ends when the server is silent for `HttpOptions.timeout_s`, while connecting or reading, and in any case when
an answer is not through after ten times that, so that a server that drips a byte a second holds no worker for ever. A
redirect is an answer of its own. Looking up a name takes as long as the resolver of the system lets it. The body is
taken as it is sent, neither decompressed nor read past the limit.
"""

from __future__ import annotations

import time

from beam_jobs.common.strings import plural
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import HttpOptions

_FIRST_PAUSE_S = 0.5  # doubled for every further attempt
_LONGEST_PAUSE_S = 30.0
_LONGEST_WISH_S = 60.0  # a server may ask for a longer pause than ours, not for a day

# Of queries, in lower case.
_SIGNS_BEGIN = ("x-amz-", "x-goog-")
_SIGNS = frozenset({"sig", "signature", "expires"})
_BESIDE = frozenset({"googleaccessid", "awsaccesskeyid", "key-pair-id", "policy"})
# They are common names, and part of a signature only beside `sig`.
# Source: https://learn.microsoft.com/rest/api/storageservices/create-service-sas
_AZURE = frozenset(
    {
        *("sv", "ss", "srt", "sp", "se", "st", "spr", "sip", "sr", "si", "sdd", "ses"),
        *("saoid", "suoid", "scid", "skoid", "sktid", "skt", "ske", "sks", "skv"),
    }
)


def is_url(uri: str) -> bool:
    """Returns whether a uri is to be fetched from a web server."""
    return uri[:8].lower().startswith(("http://", "https://"))


def unsigned(uri: str) -> str:
    """Returns a URL without the parameters that sign it, which let everybody who reads them fetch the file for a while.

    They are those of S3, Google Cloud Storage, CloudFront and Azure, and what stands beside them. All other parts of a
    URL, and all of what is no URL, stay as they are.
    """
    if not is_url(uri) or "?" not in uri:
        return uri
    place, _, query = uri.partition("?")
    query, mark, fragment = query.partition("#")
    parts = query.split("&")
    names = [part.partition("=")[0].lower() for part in parts]
    signs = _SIGNS | (_AZURE if "sig" in names else set()) | (_BESIDE if "signature" in names else set())
    kept = [
        part for part, name in zip(parts, names, strict=True) if name not in signs and not name.startswith(_SIGNS_BEGIN)
    ]
    if len(kept) == len(parts):
        return uri
    return place + ("?" + "&".join(kept) if kept else "") + mark + fragment


def fetch(url: str, options: HttpOptions, limit: int) -> bytes:
    """Returns the body of a web page, `limit` bytes of it at most. Safe to call from many threads.

    Attempts are repeated after time-outs, broken connections and the answers 429, 500, 502, 503 and 504. At most five
    redirects are followed. Of every host the addresses are checked, and one that was checked is connected to; what is
    not of the open internet is refused unless `options.allow_private`. Proxies of the environment are not used.

    Raises:
      BadImage: it could not be fetched, or its address is refused.
    """
    from beam_jobs.sources import http_client  # urllib3 takes a tenth of a second to import

    attempt = 1
    while isinstance(outcome := http_client.attempt(url, options, limit), http_client.Failed):
        if not outcome.passing or attempt > options.retries:
            raise BadImage(RejectReason.NOT_FETCHED, f"{outcome}; {plural(attempt, 'attempt')}") from outcome
        time.sleep(_pause_s(attempt, outcome.wait_s))
        attempt += 1
    return outcome


def _pause_s(attempt: int, wished_s: float | None) -> float:
    ours = min(_FIRST_PAUSE_S * 2 ** min(attempt - 1, 10), _LONGEST_PAUSE_S)
    return ours if wished_s is None else min(wished_s, _LONGEST_WISH_S)

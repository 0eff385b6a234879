"""The jar of Beam's Flink job server: fetched once, checked against the checksum beside it, kept for the user."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from typing import BinaryIO

from beam_jobs.errors import OptionError
from beam_jobs.sources import http_fetch

_CHECKSUMS = ("sha512", "sha256", "sha1")  # as Maven repositories keep them beside a file; the strongest first
_TIMEOUT_S = 60.0  # of silence, not of the whole
_PIECE = 1 << 20
_OFFLINE = "name one that you have with --runner-option job_server_jar=PATH"


def find(flink_version: str, named: str = "", cache: str = "") -> str:
    """Returns the path of the job server's jar, fetching it if it is not there yet.

    Args:
      flink_version: such as `1.19`.
      named: path or URL; empty takes the one published for this Beam.
      cache: directory of what was fetched; empty takes `feedline/jars` in the user's cache directory.

    Raises:
      OptionError: the file is not there, or cannot be fetched whole.
    """
    url, path = _place(flink_version, named, cache)
    if url and not _is_whole(path):
        _fetch(url, path)
    return path


def check(flink_version: str, named: str = "", cache: str = "") -> None:
    """Checks that `find` will find the jar, without fetching more than its checksum. The arguments are the same.

    Raises:
      OptionError: the file is not there, or could not be fetched.
    """
    url, path = _place(flink_version, named, cache)
    if url and not _is_whole(path):
        _checksum(url)


def _place(flink_version: str, named: str, cache: str) -> tuple[str, str]:
    """Returns the URL of the jar, empty for a file of the user, and the path that it has or will have here."""
    if named and not http_fetch.is_url(named):
        path = os.path.abspath(os.path.expanduser(named))
        if not os.path.isfile(path):
            raise OptionError(f"job_server_jar is {named!r}, which is not a file; name the jar itself, or leave it out")
        return "", path
    url = named or published(flink_version)
    return url, os.path.join(cache or _cache(), os.path.basename(url))


def published(flink_version: str) -> str:
    """Returns the URL of the job server that Beam publishes for a version of Flink."""
    from apache_beam.utils.subprocess_server import JavaJarServer

    url: str = JavaJarServer.path_to_beam_jar(f":runners:flink:{flink_version}:job-server:shadowJar")
    return url


def _cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "feedline", "jars")


def _is_whole(path: str) -> bool:
    """Returns whether a fetched file still has the checksum it was fetched with."""
    try:
        with open(f"{path}.sha512", encoding="ascii") as kept, open(path, "rb") as stream:
            return kept.read() == _digest(stream, "sha512")
    except (OSError, UnicodeDecodeError):
        return False


def _fetch(url: str, path: str) -> None:
    algorithm, wanted = _checksum(url)
    part = ""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, part = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".fetching-")
        with open(handle, "w+b") as stream:
            with _opened(url) as answer:
                shutil.copyfileobj(answer, stream, _PIECE)
            found, kept = _digest(stream, algorithm), _digest(stream, "sha512")
        if found != wanted:
            raise OptionError(f"{url} came with the {algorithm} {found}, its publisher says {wanted}; try again")
        with open(f"{path}.sha512", "w", encoding="ascii") as text:
            text.write(kept)
        os.replace(part, path)
    except (OSError, http.client.HTTPException) as error:
        raise _unfetched(url, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has its name, or was never made
            os.remove(part)


def _checksum(url: str) -> tuple[str, str]:
    """Returns the algorithm and the value of the strongest checksum beside a file."""
    for algorithm in _CHECKSUMS:
        if words := _text(f"{url}.{algorithm}").split():
            return algorithm, words[0].lower()
    if not _is_there(url):
        raise OptionError(
            f"there is no job server at {url} (404); correct flink_version or job_server_jar, or {_OFFLINE}"
        )
    raise OptionError(f"{url} has no checksum beside it ({', '.join(_CHECKSUMS)}), so it is not trusted; {_OFFLINE}")


def _is_there(url: str) -> bool:
    try:
        with _opened(urllib.request.Request(url, method="HEAD")):  # noqa: S310 - as in `_opened`
            return True
    except urllib.error.HTTPError as error:
        return error.code != 404
    except (OSError, http.client.HTTPException) as error:
        raise _unfetched(url, error) from error


def _text(url: str) -> str:
    """Returns the beginning of a text file, empty when there is none."""
    try:
        with _opened(url) as answer:
            return answer.read(4096).decode("ascii", "replace")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return ""
        raise _unfetched(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unfetched(url, error) from error


def _opened(url: str | urllib.request.Request) -> BinaryIO:
    answer: BinaryIO = urllib.request.urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310 - http or https: `web.is_url`
    return answer


def _unfetched(url: str, error: Exception) -> OptionError:
    return OptionError(f"the job server {url} cannot be fetched: {error}; connect to the internet, or {_OFFLINE}")


def _digest(stream: BinaryIO, algorithm: str) -> str:
    stream.seek(0)
    digest = hashlib.new(algorithm)
    while piece := stream.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()

"""Beam's Flink job server: a JVM on this machine that runs pipelines on a mini cluster or submits them to a cluster.

This module finds Java, downloads the jar of the server once into the cache of the user and verifies its checksum, and
writes the logs of a run to files instead of the terminal.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import IO, BinaryIO

from beam_jobs import storage
from beam_jobs.common import child_python, strings
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.runners import flink_child
from beam_jobs.runners.flink_child import Leftovers
from beam_jobs.sources import http_fetch

LAUNCHER_LOG = "launcher.log"  # logs of Beam in this process
SERVER_LOG = "flink.log"  # logs of the job server, the mini cluster and its workers


@contextlib.contextmanager
def log_files(directory: str = "") -> Iterator[str]:
    """Writes the logs of this process to a directory while the block runs, and yields the path of the directory.

    Args:
      directory: directory set by the user; empty creates a temporary directory, which remains if a job fails.

    Raises:
      OptionError: the directory cannot be written.
      FeedlineError: error of the block; the path of the log is appended to the message of a failed job.
    """
    log_dir = _make_log_dir(directory)
    is_kept = bool(directory)
    try:
        with _logging_into(os.path.join(log_dir, LAUNCHER_LOG)):
            yield log_dir
    except FeedlineError as error:
        if type(error) is FeedlineError:  # only errors of a job: its subclasses are not in the log
            error.args = (f"{error}; the log of Flink is {os.path.join(log_dir, SERVER_LOG)}",)
            is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(log_dir, ignore_errors=True)


def _make_log_dir(directory: str) -> str:
    if not directory:
        return tempfile.mkdtemp(prefix="feedline-flink-")
    try:
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, LAUNCHER_LOG), "a", encoding="utf-8"):
            return os.path.abspath(directory)
    except OSError as error:
        raise OptionError(
            f"log_dir is {directory!r}, which cannot be written: {error.strerror}; name another directory"
        ) from error


@contextlib.contextmanager
def _logging_into(path: str) -> Iterator[None]:
    # Beam's runner writes complete Java stack traces to the root logger, which must not reach the terminal.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(strings.LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    original_hook, threading.excepthook = threading.excepthook, _log_thread_error
    try:
        yield
    finally:
        threading.excepthook = original_hook
        root.handlers = handlers
        root.setLevel(level)
        handler.close()


def _log_thread_error(error: threading.ExceptHookArgs) -> None:
    # Threads of Beam that listen to the job server lose their connection when it ends.
    logging.getLogger(__name__).warning("a thread ended with %s: %s", error.exc_type.__name__, error.exc_value)


OLDEST_JAVA = 11
_JAVA_REMEDY = (
    f"install Java {OLDEST_JAVA} or newer, such as Debian's default-jre-headless, and put it on PATH or in JAVA_HOME"
)
_JAVA_DEADLINE_S = 30
_JAVA_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> str:
    """Returns the path of `java`: in `JAVA_HOME`, or the first on `PATH`.

    Raises:
      OptionError: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME", "")
    path = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        location = f"JAVA_HOME, which is {home}" if home else "PATH"
        raise OptionError(f"Flink needs Java, and there is none in {location}; {_JAVA_REMEDY}")
    output = _version_output(path)
    if (version := _JAVA_VERSION.search(output)) is None:
        raise OptionError(f"{path} prints no Java version ({output[:80]!r}); {_JAVA_REMEDY}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])  # Java 8 prints its version as 1.8
    if major < OLDEST_JAVA:
        raise OptionError(f"{path} is Java {major}, which is too old for Flink; {_JAVA_REMEDY}")
    return path


def _version_output(path: str) -> str:
    try:
        process = subprocess.run(  # noqa: S603 - the Java of the user
            [path, "-version"], capture_output=True, text=True, timeout=_JAVA_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"{path} cannot be run: {error}; {_JAVA_REMEDY}") from error
    return process.stderr + process.stdout


_CHECKSUMS = ("sha512", "sha256", "sha1")  # suffixes of checksum files in Maven repositories, the strongest first
_FETCH_TIMEOUT_S = 60.0  # maximum time without a received byte
_BLOCK_BYTES = 1 << 20
_JAR_REMEDY = "give a downloaded job server with --runner-option job_server_jar=PATH"


def find_jar(flink_version: str, jar: str = "", cache: str = "") -> str:
    """Returns the path of the job server's jar, and downloads the jar if it is missing.

    Args:
      flink_version: minor version of Flink, such as `1.19`.
      jar: path or URL of the jar; empty uses the jar that is published for the installed version of Beam.
      cache: directory of downloaded jars; empty uses `feedline/jars` in the user's cache directory.

    Raises:
      OptionError: the file does not exist, or cannot be downloaded completely.
    """
    url, path = _locate_jar(flink_version, jar, cache)
    if url and not _is_intact(path):
        _download(url, path)
    return path


def check_jar(flink_version: str, jar: str = "", cache: str = "") -> None:
    """Checks that `find_jar`, with the same arguments, can find the jar; downloads at most its checksum.

    Raises:
      OptionError: the file does not exist, or cannot be downloaded.
    """
    url, path = _locate_jar(flink_version, jar, cache)
    if url and not _is_intact(path):
        _checksum(url)


def _locate_jar(flink_version: str, jar: str, cache: str) -> tuple[str, str]:
    """Returns the URL of the jar, empty for a local file, and its local path."""
    if jar and not http_fetch.is_url(jar):
        path = os.path.abspath(os.path.expanduser(jar))
        if not os.path.isfile(path):
            raise OptionError(f"job_server_jar is {jar!r}, which is not a file; give the path of a jar, or omit it")
        return "", path
    url = jar or published_jar(flink_version)
    return url, os.path.join(cache or _jar_cache(), os.path.basename(url))


def published_jar(flink_version: str) -> str:
    """Returns the URL of the job server that Beam publishes for a version of Flink."""
    from apache_beam.utils.subprocess_server import JavaJarServer

    url: str = JavaJarServer.path_to_beam_jar(f":runners:flink:{flink_version}:job-server:shadowJar")
    return url


def _jar_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "feedline", "jars")


def _is_intact(path: str) -> bool:
    """Returns whether a downloaded file has the checksum that is stored beside it in `PATH.sha512`."""
    try:
        with open(f"{path}.sha512", encoding="ascii") as checksum, open(path, "rb") as stream:
            digest = hashlib.sha512()
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
            return checksum.read() == digest.hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _download(url: str, path: str) -> None:
    algorithm, expected = _checksum(url)
    digest, sha512 = hashlib.new(algorithm), hashlib.sha512()
    try:
        with storage.atomic_writer(path, durable=False) as stream:
            with _open_url(url) as response:
                while block := response.read(_BLOCK_BYTES):
                    digest.update(block)
                    sha512.update(block)
                    stream.write(block)
            if (actual := digest.hexdigest()) != expected:
                raise OptionError(f"{url} has the {algorithm} {actual}, the published one is {expected}; try again")
            storage.write_bytes(f"{path}.sha512", sha512.hexdigest().encode(), durable=False)
    except (OSError, http.client.HTTPException) as error:
        raise _fetch_error(url, error) from error


def _checksum(url: str) -> tuple[str, str]:
    """Returns the algorithm and the hexadecimal value of the strongest checksum that is published beside a file."""
    for algorithm in _CHECKSUMS:
        if words := _fetch_text(f"{url}.{algorithm}").split():
            return algorithm, words[0].lower()
    if not _url_exists(url):
        raise OptionError(
            f"there is no job server at {url} (404); correct flink_version or job_server_jar, or {_JAR_REMEDY}"
        )
    raise OptionError(
        f"no checksum of {url} is published ({', '.join(_CHECKSUMS)}), so the file is not trusted; {_JAR_REMEDY}"
    )


def _url_exists(url: str) -> bool:
    try:
        with _open_url(urllib.request.Request(url, method="HEAD")):  # noqa: S310 - as in `_open_url`
            return True
    except urllib.error.HTTPError as error:
        return error.code != 404
    except (OSError, http.client.HTTPException) as error:
        raise _fetch_error(url, error) from error


def _fetch_text(url: str) -> str:
    """Returns the first 4096 characters of a text file; empty if the file does not exist."""
    try:
        with _open_url(url) as response:
            return response.read(4096).decode("ascii", "replace")
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == 404:
            return ""
        raise _fetch_error(url, error) from error


def _open_url(url: str | urllib.request.Request) -> BinaryIO:
    reply: BinaryIO = urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S)  # noqa: S310 - http(s): `http_fetch.is_url`
    return reply


def _fetch_error(url: str, error: Exception) -> OptionError:
    return OptionError(f"the job server {url} cannot be fetched: {error}; connect to the internet, or {_JAR_REMEDY}")


_START_S = 120.0
_STOP_S = 20.0
_POLL_S = 0.2
_NO_LEFTOVERS = Leftovers()
# Flink uses reflection in these packages, which Java 17 forbids by default; Flink's own scripts set more options.
_PACKAGES = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent")
JAVA_OPENS = (
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES),
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED",
)
# The mini cluster listens only on the loopback interface.
_BIND_SETTINGS = ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address")
_IGNORED_LINE = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more|Usage: | {2,}|--)|\s*$")


def server_command(java: str, jar: str, master: str, memory: str) -> list[str]:
    """Returns the command that starts the server, to which `running_server` appends ports and directories.

    Args:
      java: path of `java`.
      jar: path of the job server's jar.
      master: `[local]` or the address of the cluster.
      memory: maximum heap size, such as `1g`.
    """
    log_dates = "-Dorg.slf4j.simpleLogger.showDateTime=true"
    return [java, f"-Xmx{memory}", log_dates, *JAVA_OPENS, "-jar", jar, "--flink-master", master]


@contextlib.contextmanager
def running_server(command: Sequence[str], log_dir: str, leftovers: Leftovers = _NO_LEFTOVERS) -> Iterator[str]:
    """Runs a job server during the block; the server and its child processes end with the block or with this process.

    Args:
      command: result of `server_command`.
      log_dir: directory for the log and the temporary files of the server.
      leftovers: jobs and files to remove if this process is killed.

    Yields:
      `host:port` to which jobs are submitted.

    Raises:
      FeedlineError: the server ended, or accepted no connection within two minutes.
    """
    from apache_beam.utils.subprocess_server import pick_port

    [port] = pick_port(None)
    log = os.path.join(log_dir, SERVER_LOG)
    ports = ["--job-port", str(port), "--artifact-port", "0", "--expansion-port", "-1"]
    files = ["--artifacts-dir", os.path.join(log_dir, "artifacts"), "--flink-conf-dir", _write_settings(log_dir)]
    with open(log, "ab") as stream:
        server = _start_server([*command, *ports, *files], leftovers, stream)
        try:
            _wait_until_ready(server, port, log)
            yield f"localhost:{port}"
        finally:
            _stop(server)


def _start_server(command: Sequence[str], leftovers: Leftovers, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # In a new session, so that Ctrl-C reaches only this process, which cancels the job before it ends the server.
    return subprocess.Popen(  # noqa: S603 - Java and jar of the user
        [sys.executable, "-I", flink_child.__file__, str(os.getpid()), *leftovers, *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=child_python.environment(),  # for the workers of the mini cluster
    )


def _write_settings(log_dir: str) -> str:
    """Writes the settings of the mini cluster, and returns their directory."""
    directory = os.path.join(log_dir, "conf")
    os.makedirs(directory, exist_ok=True)
    for name in ("flink-conf.yaml", "config.yaml"):  # names before and since Flink 2
        with open(os.path.join(directory, name), "w", encoding="utf-8") as stream:
            stream.writelines(f"{key}: localhost\n" for key in _BIND_SETTINGS)
    return directory


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FeedlineError(f"the job server of Flink ended with code {server.returncode}: {_last_message(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=_POLL_S):
            return
        time.sleep(_POLL_S)
    raise FeedlineError(f"the job server of Flink did not start in {_START_S:.0f} s: {_last_message(log)}")


def _last_message(log: str) -> str:
    """Returns the last line of a Java log that belongs neither to a stack trace nor to a help text."""
    with open(log, encoding="utf-8", errors="replace") as stream:
        lines = [line.strip() for line in stream if not _IGNORED_LINE.match(line)]
    return lines[-1][:300] if lines else "its log is empty"


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and its child processes, including the workers."""
    try:
        _signal_and_wait(server, signal.SIGTERM)
    finally:  # Ctrl-C may interrupt the first call
        _signal_and_wait(server, signal.SIGKILL)


def _signal_and_wait(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_STOP_S)

"""Beam's Flink job server: a JVM of this machine that takes pipelines, and runs or sends them on.

The Java that runs it; its jar, fetched once, checked against the checksum beside it and kept for the user; and the logs
of a run, which go into files, never onto the terminal of a user.
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
from beam_jobs.runners.flink_child import Left
from beam_jobs.sources import http_fetch

LAUNCHER_LOG = "launcher.log"  # what Beam says in this process
SERVER_LOG = "flink.log"  # what the job server says, and with it the mini cluster and its workers


@contextlib.contextmanager
def logs(directory: str = "") -> Iterator[str]:
    """Gives a directory for logs and sends those of this process there.

    Args:
      directory: of the user; empty makes a temporary one, which stays if the block fails.

    Raises:
      OptionError: the directory cannot be written.
      FeedlineError: as the block raised it; a failed job names its log.
    """
    place = _made(directory)
    kept = bool(directory)
    try:
        with _logging_into(os.path.join(place, LAUNCHER_LOG)):
            yield place
    except FeedlineError as error:
        if type(error) is FeedlineError:  # of a job; what is wrong with options or data has nothing in a log
            error.args = (f"{error}; the log of Flink is {os.path.join(place, SERVER_LOG)}",)
            kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(place, ignore_errors=True)


def _made(directory: str) -> str:
    if not directory:
        return tempfile.mkdtemp(prefix="feedline-flink-")
    try:
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, LAUNCHER_LOG), "a", encoding="utf-8"):
            return os.path.abspath(directory)
    except OSError as error:
        raise OptionError(
            f"log_dir is {directory!r}, which cannot be written: {error.strerror}; name another"
        ) from error


@contextlib.contextmanager
def _logging_into(path: str) -> Iterator[None]:
    # Beam's runner logs whole Java stack traces through the root logger.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(strings.LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    hook, threading.excepthook = threading.excepthook, _log_thread
    try:
        yield
    finally:
        threading.excepthook = hook
        root.handlers = handlers
        root.setLevel(level)
        handler.close()


def _log_thread(ended: threading.ExceptHookArgs) -> None:
    # Those of Beam that listen to the job server lose their connection when it ends.
    logging.getLogger(__name__).warning("a thread ended with %s: %s", ended.exc_type.__name__, ended.exc_value)


OLDEST_JAVA = 11
_JAVA_REMEDY = (
    f"install Java {OLDEST_JAVA} or newer, such as Debian's default-jre-headless, and put it on PATH or in JAVA_HOME"
)
_JAVA_DEADLINE_S = 30
_JAVA_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> str:
    """Returns the path of `java`: that of `JAVA_HOME`, or the first on `PATH`.

    Raises:
      OptionError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME", "")
    path = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        where = f"JAVA_HOME, which is {home}" if home else "PATH"
        raise OptionError(f"Flink needs Java, and there is none in {where}; {_JAVA_REMEDY}")
    output = _version_output(path)
    if (version := _JAVA_VERSION.search(output)) is None:
        raise OptionError(f"{path} does not say which Java it is ({output[:80]!r}); {_JAVA_REMEDY}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < OLDEST_JAVA:
        raise OptionError(f"{path} is Java {major}, which is too old for Flink; {_JAVA_REMEDY}")
    return path


def _version_output(path: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the Java of the user
            [path, "-version"], capture_output=True, text=True, timeout=_JAVA_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"{path} cannot be run: {error}; {_JAVA_REMEDY}") from error
    return done.stderr + done.stdout


_CHECKSUMS = ("sha512", "sha256", "sha1")  # as Maven repositories keep them beside a file; the strongest first
_FETCH_TIMEOUT_S = 60.0  # of silence, not of the whole
_PIECE = 1 << 20
_OFFLINE = "name one that you have with --runner-option job_server_jar=PATH"


def find_jar(flink_version: str, named: str = "", cache: str = "") -> str:
    """Returns the path of the job server's jar, fetching it if it is not there yet.

    Args:
      flink_version: such as `1.19`.
      named: path or URL; empty takes the one published for this Beam.
      cache: directory of what was fetched; empty takes `feedline/jars` in the user's cache directory.

    Raises:
      OptionError: the file is not there, or cannot be fetched whole.
    """
    url, path = _jar_place(flink_version, named, cache)
    if url and not _is_whole(path):
        _fetch(url, path)
    return path


def check_jar(flink_version: str, named: str = "", cache: str = "") -> None:
    """Checks that `find_jar` will find the jar, without fetching more than its checksum. The arguments are the same.

    Raises:
      OptionError: the file is not there, or could not be fetched.
    """
    url, path = _jar_place(flink_version, named, cache)
    if url and not _is_whole(path):
        _checksum(url)


def _jar_place(flink_version: str, named: str, cache: str) -> tuple[str, str]:
    """Returns the URL of the jar, empty for a file of the user, and the path that it has or will have here."""
    if named and not http_fetch.is_url(named):
        path = os.path.abspath(os.path.expanduser(named))
        if not os.path.isfile(path):
            raise OptionError(f"job_server_jar is {named!r}, which is not a file; name the jar itself, or leave it out")
        return "", path
    url = named or published_jar(flink_version)
    return url, os.path.join(cache or _jar_cache(), os.path.basename(url))


def published_jar(flink_version: str) -> str:
    """Returns the URL of the job server that Beam publishes for a version of Flink."""
    from apache_beam.utils.subprocess_server import JavaJarServer

    url: str = JavaJarServer.path_to_beam_jar(f":runners:flink:{flink_version}:job-server:shadowJar")
    return url


def _jar_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "feedline", "jars")


def _is_whole(path: str) -> bool:
    """Returns whether a fetched file still has the checksum it was fetched with."""
    try:
        with open(f"{path}.sha512", encoding="ascii") as kept, open(path, "rb") as stream:
            digest = hashlib.sha512()
            while piece := stream.read(_PIECE):
                digest.update(piece)
            return kept.read() == digest.hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _fetch(url: str, path: str) -> None:
    algorithm, wanted = _checksum(url)
    published, kept = hashlib.new(algorithm), hashlib.sha512()
    try:
        with storage.atomic_writer(path, durable=False) as stream:
            with _opened(url) as answer:
                while piece := answer.read(_PIECE):
                    published.update(piece)
                    kept.update(piece)
                    stream.write(piece)
            if (found := published.hexdigest()) != wanted:
                raise OptionError(f"{url} came with the {algorithm} {found}, its publisher says {wanted}; try again")
            storage.write_bytes(f"{path}.sha512", kept.hexdigest().encode(), durable=False)
    except (OSError, http.client.HTTPException) as error:
        raise _unfetched(url, error) from error


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
    answer: BinaryIO = urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S)  # noqa: S310 - http or https: `web.is_url`
    return answer


def _unfetched(url: str, error: Exception) -> OptionError:
    return OptionError(f"the job server {url} cannot be fetched: {error}; connect to the internet, or {_OFFLINE}")


_START_S = 120.0
_STOP_S = 20.0
_LOOK_S = 0.2
_NOTHING = Left()
# Flink reflects into these; Java 17 refuses without. Those that Flink's own scripts pass, as far as it needs them here.
_PACKAGES = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent")
OPENED = (
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES),
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED",
)
# The mini cluster has no business outside this machine.
_BOUND = ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address")
_NOISE = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more|Usage: | {2,}|--)|\s*$")


def server_command(java: str, jar: str, master: str, memory: str) -> list[str]:
    """Returns the command that starts the server; `running_server` adds where it listens and keeps its files.

    Args:
      java: path of `java`.
      jar: path of the job server's jar.
      master: `[local]` or the address of the cluster.
      memory: largest heap, such as `1g`.
    """
    dated = "-Dorg.slf4j.simpleLogger.showDateTime=true"
    return [java, f"-Xmx{memory}", dated, *OPENED, "-jar", jar, "--flink-master", master]


@contextlib.contextmanager
def running_server(command: Sequence[str], log_dir: str, left: Left = _NOTHING) -> Iterator[str]:
    """Runs a job server while the block lasts; it and all that it started end with the block, or with this process.

    Args:
      command: as `server_command` returns it.
      log_dir: directory for its log and the files it keeps while it runs.
      left: what is to be cleared away when this process is killed.

    Returns:
      `host:port` that takes jobs.

    Raises:
      FeedlineError: it ended, or took no job within two minutes.
    """
    from apache_beam.utils.subprocess_server import pick_port

    [port] = pick_port(None)
    log = os.path.join(log_dir, SERVER_LOG)
    places = ["--job-port", str(port), "--artifact-port", "0", "--expansion-port", "-1"]
    files = ["--artifacts-dir", os.path.join(log_dir, "artifacts"), "--flink-conf-dir", _settings(log_dir)]
    with open(log, "ab") as stream:
        server = _started([*command, *places, *files], left, stream)
        try:
            _await(server, port, log)
            yield f"localhost:{port}"
        finally:
            _stop(server)


def _started(command: Sequence[str], left: Left, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for this process, which cancels the job before the server has to go.
    ending_with_this = [sys.executable, "-I", flink_child.__file__, str(os.getpid()), *left, *command]
    return subprocess.Popen(  # noqa: S603 - the Java and the jar of the user
        ending_with_this,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=child_python.environment(),  # of its workers
    )


def _settings(directory: str) -> str:
    """Writes the settings of the mini cluster, and returns their folder."""
    place = os.path.join(directory, "conf")
    os.makedirs(place, exist_ok=True)
    for name in ("flink-conf.yaml", "config.yaml"):  # before Flink 2, and from 2 on
        with open(os.path.join(place, name), "w", encoding="utf-8") as stream:
            stream.writelines(f"{key}: localhost\n" for key in _BOUND)
    return place


def _await(server: subprocess.Popen[bytes], port: int, log: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FeedlineError(f"the job server of Flink ended with code {server.returncode}: {last_words(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=_LOOK_S):
            return
        time.sleep(_LOOK_S)
    raise FeedlineError(f"the job server of Flink took no job for {_START_S:.0f} s: {last_words(log)}")


def last_words(log: str) -> str:
    """Returns the last line of a Java log that says something: no frame of a stack trace, no line of help."""
    with open(log, encoding="utf-8", errors="replace") as stream:
        lines = [line.strip() for line in stream if not _NOISE.match(line)]
    return lines[-1][:300] if lines else "it wrote nothing"


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and what it started, the workers among them."""
    try:
        _signal(server, signal.SIGTERM)
    finally:  # Ctrl-C may come while it is waited for
        _signal(server, signal.SIGKILL)


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_STOP_S)

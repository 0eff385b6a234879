"""Where the logs of a run on Flink go: into files, never onto the terminal of a user."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator

from beam_jobs.common import strings
from beam_jobs.errors import FeedlineError, OptionError

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

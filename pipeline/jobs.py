"""Commands that run on without their terminal: started here, asked about by `feedline status`.

A job is a directory below `~/.local/state/feedline/jobs` (or `$XDG_STATE_HOME/feedline/jobs`): what was asked for, how
far it is, its log, its result and, last of all, its exit code. The process is the same command, so the result is too;
with a remote engine it only plans, waits and publishes, but it has to live until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from beam_jobs import child_python, machine, storage
from beam_jobs.errors import OptionError
from beam_jobs.progress import Progress
from beam_jobs.suggest import unknown

RUNNING, DONE, FAILED, STOPPED, DIED = "running", "done", "failed", "stopped", "died"
_JOB, _PROGRESS, _RESULT, _LOG, _EXIT, _STOP = "job.json", "progress.json", "result", "log", "exit_code", "stop"
_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_START = "from pipeline.job_process import run; run()"
_KEPT = 100  # jobs that have ended; older ones are forgotten


@dataclass(frozen=True, kw_only=True)
class Stage:
    """How far a job is.

    Attributes:
      name: such as `examining`.
      done: what is done.
      total: what will be done; `images` 0 when nobody knows.
      seconds: since the stage began.
    """

    name: str
    done: Progress
    total: Progress
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command that runs, or ran, on its own.

    Attributes:
      directory: of its files.
      arguments: of the command line.
      cwd: working directory.
      pid: of its process.
      started: seconds since the epoch.
    """

    directory: Path
    arguments: tuple[str, ...]
    cwd: str
    pid: int
    started: float

    @property
    def name(self) -> str:
        """By which it is asked for."""
        return self.directory.name

    @property
    def exit_code(self) -> int | None:
        """Of the command; None while it runs, and for ever when it was killed."""
        try:
            return int((self.directory / _EXIT).read_text())
        except (OSError, ValueError):
            return None

    @property
    def state(self) -> str:
        """`running`, `done`, `failed`, `stopped` because somebody asked it to, or `died` without a last word."""
        if self.exit_code is None and machine.lives(self.pid, self.started):
            return RUNNING
        code = self.exit_code  # it may have ended between the two questions
        if code is None:
            return STOPPED if (self.directory / _STOP).exists() else DIED  # before it could take the signal
        return DONE if code == 0 else STOPPED if code in _STOPPED_CODES else FAILED

    @property
    def stage(self) -> Stage | None:
        """Returns how far it is; None before its first stage, and of commands that count nothing."""
        try:
            values = json.loads((self.directory / _PROGRESS).read_text())
        except (OSError, ValueError):
            return None
        parts = {name: Progress(**values[name]) for name in ("done", "total")}
        return Stage(name=values["name"], seconds=values["seconds"], **parts)

    @property
    def result(self) -> str:
        """What the command wrote to its standard output."""
        return _text(self.directory / _RESULT)

    @property
    def log(self) -> list[str]:
        """Lines the command wrote to its standard error."""
        return _text(self.directory / _LOG).splitlines()

    def stop(self) -> None:
        """Asks the process to stop; it keeps what is finished."""
        if self.state == RUNNING:
            with contextlib.suppress(OSError):  # the job is to stop, whether or not it can be told apart from a death
                (self.directory / _STOP).touch()
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
                psutil.Process(self.pid).terminate()


def start(arguments: Sequence[str]) -> Job:
    """Starts a command in a session of its own, which outlives the terminal.

    Args:
      arguments: of the command line, without the name of the program.

    Raises:
      OptionError: the directory of jobs cannot be written.
    """
    for old in [job for job in jobs() if job.state != RUNNING][_KEPT:]:
        shutil.rmtree(old.directory, ignore_errors=True)
    directory = _new_directory(next((argument for argument in arguments if not argument.startswith("-")), "job"))
    command = child_python.command(_START, str(directory), *arguments)
    with open(directory / _RESULT, "wb") as out, open(directory / _LOG, "wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
            env=child_python.environment(),
        )
    values = {"arguments": list(arguments), "cwd": os.getcwd(), "pid": process.pid, "started": time.time()}
    storage.write_bytes(str(directory / _JOB), json.dumps(values).encode())
    return load(directory)


def tell(directory: Path, stage: Stage) -> None:
    """Writes down how far the job of a directory is."""
    storage.write_bytes(str(directory / _PROGRESS), json.dumps(dataclasses.asdict(stage)).encode(), durable=False)


def end(directory: Path, code: int) -> None:
    """Writes down that the job of a directory is over."""
    storage.write_bytes(str(directory / _EXIT), str(code).encode())


def find(name: str) -> Job:
    """Returns a job by its name.

    Raises:
      OptionError: there is none of that name.
    """
    names = [job.name for job in jobs()]
    if name not in names:
        raise OptionError(unknown("job", name, names) if names else f"there is no job {name!r}; none was started yet")
    return load(jobs_dir() / name)


def jobs() -> list[Job]:
    """Returns all jobs, the newest first."""
    found = []
    for path in jobs_dir().glob(f"*/{_JOB}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # damaged, or just being removed
            found.append(load(path.parent))
    return sorted(found, key=lambda job: job.started, reverse=True)


def load(directory: Path) -> Job:
    """Returns the job of a directory."""
    values = json.loads((directory / _JOB).read_text())
    return Job(directory=directory, **{**values, "arguments": tuple(values["arguments"])})


def jobs_dir() -> Path:
    """Returns the directory of all jobs."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "feedline" / "jobs"


def _new_directory(command: str) -> Path:
    name = f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1000):
        directory = jobs_dir() / (f"{name}-{number}" if number else name)
        try:
            directory.mkdir(mode=0o700, parents=True)  # a command line may hold a password
        except FileExistsError:
            continue
        except OSError as error:
            raise OptionError(
                f"{directory} cannot be made: {error.strerror}; set XDG_STATE_HOME to a directory for the state of jobs"
            ) from error
        return directory
    raise OptionError(f"{jobs_dir()} holds a thousand jobs of this second; remove some")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

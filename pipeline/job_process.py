"""The process of a job: the command line, with progress and exit code written down for `feedline status`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from beam_jobs.progress import Progress
from pipeline import interrupt, jobs
from pipeline.cli import bar, execute


def main(directory: Path, arguments: list[str]) -> int:
    """Runs a command as the job of a directory and returns its exit code."""

    def listen(name: str, total: Progress, done: Progress, seconds: float) -> None:
        with contextlib.suppress(OSError):  # the work is worth more than the news of it
            jobs.tell(directory, jobs.Stage(name=name, total=total, done=done, seconds=seconds))

    interrupt.install()
    bar.listener = listen
    code = 1
    try:
        code = execute(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:  # one more, while the first was answered
        code = interrupt.code()
    finally:
        with contextlib.suppress(OSError):
            jobs.end(directory, code)
    return code


def run() -> None:
    """Ends this process as the job that its arguments name: a directory and a command."""
    interrupt.end(main(Path(sys.argv[1]), sys.argv[2:]))

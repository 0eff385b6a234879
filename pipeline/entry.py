"""The program `feedline`. It takes signals before it imports what takes time, its command line included."""

from __future__ import annotations

import os
import sys

from pipeline.runs import signals


def main() -> None:
    """Runs the command line and exits with its code."""
    signals.hold()
    _leave_working_directory()
    from pipeline import cli

    try:
        cli.main()
    except KeyboardInterrupt:  # it came between two lines of `main`, where nothing has begun
        signals.end(cli.stopped(sys.argv[1:]))


def _leave_working_directory() -> None:
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, ours)  # or a `beam_jobs` of the working directory could be imported to leave it
    from beam_jobs.common import child_python

    sys.path.remove(ours)
    child_python.leave_working_directory()

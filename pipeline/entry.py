"""The program `feedline`. It takes signals before it imports what takes time, its command line included."""

from __future__ import annotations

import sys

from pipeline import interrupt


def main() -> None:
    """Runs the command line and exits with its code."""
    interrupt.hold()
    from pipeline import cli

    try:
        cli.main()
    except KeyboardInterrupt:  # it came between two lines of `main`, where nothing has begun
        interrupt.end(cli.stopped(sys.argv[1:]))

"""Runs a command that ends with the process that asked for it, even when that one was killed and could end nothing.

A program of its own, without anything of feedline: `python -I flink_child.py PARENT COMMAND...`, started by the process
PARENT as the leader of a process group. All of that group ends: the job server, and the workers that it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

_LOOK_S = 1.0
_STOP_S = 20.0


def main(parent: int, command: list[str]) -> int:
    """Runs the command.

    Args:
      parent: number of the process that this one ends with.
      command: program and arguments.

    Returns:
      its exit code; above 128 by the number of the signal that ended it.
    """
    # SIGTERM is for the command. A handler, as a signal that is ignored would be ignored by the command too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    code = subprocess.call(command)  # noqa: S603 - as the caller says
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)  # what the command left behind
    return code if code >= 0 else 128 - code


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_STOP_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

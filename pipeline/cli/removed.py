"""Commands and options that are gone. For one minor release, typing one is answered with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from beam_jobs.errors import UsageError

_BACKGROUND = (
    "run the command under nohup, tmux or systemd-run; its progress is on standard error, and after a stop the same "
    "command continues"
)
# What is typed behind `feedline`, a command or a command and its option -> the first release without it, the remedy.
REMOVED: Mapping[str, tuple[str, str]] = {
    "inspect --html": (
        "0.2",
        "`--draw` shows the images on a terminal, `--export DIR` writes them, `feedline report` makes a page",
    ),
    "ingest --detach": ("0.2", _BACKGROUND),
    "run --detach": ("0.2", _BACKGROUND),
    "status": ("0.2", _BACKGROUND),
}


def check(path: str, name: str) -> None:
    """Refuses a command or an option that is gone; one that never was is left to the caller.

    Args:
      path: of the command that it belongs to, with the name of the program, as `feedline schema`.
      name: of the command or option.

    Raises:
      UsageError: it is gone; the message has the release and the remedy.
    """
    typed = f"{path} {name}".partition(" ")[2]
    if typed in REMOVED:
        release, remedy = REMOVED[typed]
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"there is no {kind} {name!r} since {release}; {remedy}")

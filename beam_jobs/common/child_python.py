"""Python processes that this one starts, and where they look for modules: never in the working directory unasked.

`python -c` and `python -m` put the working directory first on `sys.path`, before the standard library, and so does an
empty element of `PYTHONPATH`. A `json.py` in somebody's unpacked archive would be executed. Only an element of
`PYTHONPATH` that names the directory counts as the wish of the user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# Each ends children of one kind at once, also those that work; called, in a thread, when this process is asked to stop.
stops: list[Callable[[], None]] = []

_VARIABLE = "PYTHONPATH"
# The directory of the product itself, which a checkout that is not installed has on the path.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(code: str, *arguments: str, flags: tuple[str, ...] = (), working_directory: bool = True) -> list[str]:
    """Returns the command that runs code in this Python, with the modules of this process.

    Args:
      code: Python; its path of modules is set before the first line.
      arguments: `sys.argv[1:]` of the code.
      flags: of the interpreter, such as `-W ignore`.
      working_directory: whether `PYTHONPATH` may name it.
    """
    path = import_path(working_directory)
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {path!a}\n{code}", *arguments]


def environment(working_directory: bool = True) -> dict[str, str]:
    """Returns the environment of a child; `PYTHONPATH`, which Python reads before any code, has no empty element.

    Args:
      working_directory: whether `PYTHONPATH` may name it.
    """
    others = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    named = [name for name in _named() if working_directory or not _is_working_directory(name)]
    return {**others, _VARIABLE: os.pathsep.join(named)} if named else others


def import_path(working_directory: bool = True) -> list[str]:
    """Returns `PYTHONPATH` and `sys.path`, each place once, without the working directory unless it is named.

    Args:
      working_directory: whether `PYTHONPATH` may name it.
    """
    return list(dict.fromkeys(_wanted([*map(os.path.abspath, _named()), *sys.path], working_directory)))


def leave_working_directory() -> None:
    """Takes the working directory off the path of this process, unless `PYTHONPATH` names it."""
    sys.path[:] = _wanted(sys.path, working_directory=True)


def _wanted(places: list[str], working_directory: bool) -> list[str]:
    named = working_directory and any(map(_is_working_directory, _named()))
    keep = named or _is_working_directory(_ROOT)
    return [place for place in places if isinstance(place, str) and (keep or not _is_working_directory(place))]


def _named() -> list[str]:
    value = "" if sys.flags.ignore_environment else os.environ.get(_VARIABLE, "")
    return [place for place in value.split(os.pathsep) if place]


def _is_working_directory(place: str) -> bool:
    try:
        return os.path.samefile(place or os.curdir, os.curdir)
    except OSError:  # there is no such place
        return False

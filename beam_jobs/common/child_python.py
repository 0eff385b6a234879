"""Commands and environments of Python child processes, without the working directory on their module path.

`python -c`, `python -m` and an empty element of `PYTHONPATH` put the working directory first on `sys.path`, before the
standard library, so that a `json.py` in an unpacked archive would be executed. The directory is on the path only if an
element of `PYTHONPATH` names it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# Functions that end all child processes of a kind; called in a thread when this process receives a stop signal.
stops: list[Callable[[], None]] = []

_VARIABLE = "PYTHONPATH"
# The directory of the product, which is on the path of a checkout that is not installed.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(code: str, *arguments: str, flags: tuple[str, ...] = (), working_directory: bool = True) -> list[str]:
    """Returns the command that runs code in this Python, with the modules of this process.

    Args:
      code: Python code; the module path is set before its first line.
      arguments: `sys.argv[1:]` of the code.
      flags: options of the interpreter, such as `-W ignore`.
      working_directory: whether `PYTHONPATH` may name the working directory.
    """
    path = import_path(working_directory)
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {path!a}\n{code}", *arguments]


def environment(working_directory: bool = True) -> dict[str, str]:
    """Returns the environment of a child process, with no empty element in `PYTHONPATH`; see `command`."""
    others = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    directories = [path for path in _pythonpath() if working_directory or not _is_working_directory(path)]
    return {**others, _VARIABLE: os.pathsep.join(directories)} if directories else others


def import_path(working_directory: bool = True) -> list[str]:
    """Returns `PYTHONPATH` and `sys.path`, without duplicates and without a working directory that `PYTHONPATH` lacks.

    Args:
      working_directory: whether `PYTHONPATH` may name the working directory.
    """
    return list(dict.fromkeys(_filter_path([*map(os.path.abspath, _pythonpath()), *sys.path], working_directory)))


def leave_working_directory() -> None:
    """Removes the working directory from the module path of this process, unless `PYTHONPATH` names it."""
    sys.path[:] = _filter_path(sys.path, working_directory=True)


def _filter_path(path: list[str], working_directory: bool) -> list[str]:
    named = working_directory and any(map(_is_working_directory, _pythonpath()))
    keep = named or _is_working_directory(_ROOT)
    return [item for item in path if isinstance(item, str) and (keep or not _is_working_directory(item))]


def _pythonpath() -> list[str]:
    value = "" if sys.flags.ignore_environment else os.environ.get(_VARIABLE, "")
    return [directory for directory in value.split(os.pathsep) if directory]


def _is_working_directory(directory: str) -> bool:
    try:
        return os.path.samefile(directory or os.curdir, os.curdir)
    except OSError:  # no such directory
        return False

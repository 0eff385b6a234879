"""Commands and environments of Python child processes, without the working directory on their module path.

`python -c`, `python -m` and an empty element of `PYTHONPATH` put the working directory first on `sys.path`, before the
standard library. If it is an unpacked archive with a `json.py`, that file is executed. With this module, the directory
is on the path only if an element of `PYTHONPATH` names it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# Functions that end all child processes of one kind; called in a thread when this process receives a stop signal.
stop_functions: list[Callable[[], None]] = []

_VARIABLE = "PYTHONPATH"
# The parent directory of the packages, which is on the module path if a checkout runs without being installed.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(code: str, *arguments: str, flags: tuple[str, ...] = (), working_directory: bool = True) -> list[str]:
    """Returns the command that runs code with this Python interpreter and the module path of this process.

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
    other_variables = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    directories = [path for path in _pythonpath() if working_directory or not _is_working_directory(path)]
    return {**other_variables, _VARIABLE: os.pathsep.join(directories)} if directories else other_variables


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
    """Returns a module path without the working directory, unless `PYTHONPATH` or the checkout is that directory."""
    is_in_pythonpath = working_directory and any(map(_is_working_directory, _pythonpath()))
    is_allowed = is_in_pythonpath or _is_working_directory(_ROOT)
    return [item for item in path if isinstance(item, str) and (is_allowed or not _is_working_directory(item))]


def _pythonpath() -> list[str]:
    value = "" if sys.flags.ignore_environment else os.environ.get(_VARIABLE, "")
    return [directory for directory in value.split(os.pathsep) if directory]


def _is_working_directory(directory: str) -> bool:
    try:
        return os.path.samefile(directory or os.curdir, os.curdir)
    except OSError:  # no such directory
        return False

"""What differs between the two sets of libraries that Feedline runs on; `constraints/` pins both.

| | current | legacy |
|---|---|---|
| where | glibc 2.39 or later | older glibc |
| Python | 3.10 to 3.13 | 3.10 |
| TFX, TensorFlow | 1.21, 2.21 | 1.16, 2.16 |

Every difference that the code has to know stands here, with its reason.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CURRENT, LEGACY = "current", "legacy"
_FIRST_CURRENT = (2, 21)  # version of TensorFlow
_MENDED_ARROW = (14, 0, 1)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# What Abseil logs before it is initialised: a heading, and notes about the machine.
_NOTE_OF_ABSEIL = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)|I\d{4} \d\d:\d\d:")


def name() -> str:
    """Returns `current` or `legacy`: the set that this environment has its TensorFlow from."""
    return CURRENT if _version("tensorflow")[:2] >= _FIRST_CURRENT else LEGACY


def summary() -> str:
    """Returns one line: the name of the set, and the versions of Python and of its largest packages."""
    packages = {"TensorFlow": "tensorflow", "TFX": "tfx", "Beam": "apache-beam"}
    found = [_titled(title, package) for title, package in packages.items()]
    which = "no stack" if "no TensorFlow" in found else f"{name()} stack"
    return f"{which}: {', '.join(found)}, Python {platform.python_version()}"


def constraints() -> str:
    """Returns the file that pins the versions of this environment, relative to the checkout."""
    return f"constraints/{name()}.txt"


def pip_install(requirement: str) -> str:
    """Returns the command that adds an extra to this environment.

    Args:
      requirement: the checkout with its extras, such as `.[gcp]`.
    """
    return f"in the checkout of Feedline: pip install -c {constraints()} '{requirement}'"


def protect_arrow() -> None:
    """Keeps Arrow from running code that a Parquet file holds (CVE-2023-47248).

    TFX 1.16 holds Arrow at 10; the fault was mended in 14.0.1.

    Raises:
      ImportError: the package that mends an old Arrow is not installed.
    """
    if _version("pyarrow") < _MENDED_ARROW:
        import pyarrow_hotfix  # noqa: F401 - importing it is enough


def quieten_tensorflow() -> None:
    """Keeps the remarks of TensorFlow off standard error, unless TF_CPP_MIN_LOG_LEVEL is set to another level.

    TensorFlow 2.21 writes six lines about the machine while it is imported, whatever the level says.
    """
    if os.environ.setdefault(_LOG_LEVEL, "3") != "0" and _QuietImport not in sys.meta_path:
        sys.meta_path.insert(0, _QuietImport)


def refusal_of_dataflow(error: Exception) -> tuple[int, str] | None:
    """Returns the status of HTTP and the reason that Dataflow gives for a refusal; None for any other error.

    Beam 2.77 asks the service by Google's own client, Beam 2.74 by that of apitools.
    """
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0), str(error.message)
    try:
        from apitools.base.py.exceptions import HttpError  # type: ignore[import-untyped]
    except ImportError:  # it left with the older client
        return None
    if not isinstance(error, HttpError):
        return None
    try:
        return error.status_code, str(json.loads(error.content)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return error.status_code, ""


class _QuietImport:
    """Finds TensorFlow, and lets its import write to standard error only what is no note of Abseil."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _without_notes(execute, module)  # type: ignore[method-assign]
        return spec


def _without_notes(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    # C++ writes to the descriptor, so the descriptor has to be another one for that long. What Python writes stays out
    # of it: a worker thread imports while the main thread shows progress, or answers a signal and ends the process.
    sys.stderr.flush()
    with tempfile.TemporaryFile() as cpp_output, os.fdopen(os.dup(2), "wb") as stderr:
        raw = _Descriptor(stderr.fileno())
        text = io.TextIOWrapper(raw, errors="backslashreplace", write_through=True)  # type: ignore[type-var]
        python = contextlib.redirect_stderr(text) if sys.stderr is sys.__stderr__ else contextlib.nullcontext()
        os.dup2(cpp_output.fileno(), 2)
        try:
            with python:
                execute(module)
        finally:
            os.dup2(stderr.fileno(), 2)
            raw.number = 2  # the import made log handlers, which keep what was standard error then
            cpp_output.seek(0)
            stderr.writelines(line for line in cpp_output if not _NOTE_OF_ABSEIL.match(line))


class _Descriptor(io.RawIOBase):
    """Writes to a descriptor that may become another one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number

    def isatty(self) -> bool:
        return os.isatty(self.number)

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return os.write(self.number, data)


def _titled(title: str, package: str) -> str:
    try:
        return f"{title} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {title}"


def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:3] if part.isdigit())

"""Differences between the two sets of libraries that Feedline runs on; `constraints/` pins both.

| | current | legacy |
|---|---|---|
| where | glibc 2.39 or later | older glibc |
| Python | 3.10 to 3.13 | 3.10 |
| TFX, TensorFlow | 1.21, 2.21 | 1.16, 2.16 |

The code for every difference is in this module, with its reason.
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
_FIRST_CURRENT = (2, 21)  # first version of TensorFlow in the current set
_SAFE_ARROW = (14, 0, 1)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Lines that Abseil logs before its initialisation: a heading, and notes about the machine.
_ABSEIL_NOTE = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)|I\d{4} \d\d:\d\d:")


def name() -> str:
    """Returns the name of the set of libraries to which the installed TensorFlow belongs: `current` or `legacy`."""
    return CURRENT if _version("tensorflow")[:2] >= _FIRST_CURRENT else LEGACY


def summary() -> str:
    """Returns one line: the name of the set, and the versions of its largest packages and of Python."""
    packages = {"TensorFlow": "tensorflow", "TFX": "tfx", "Beam": "apache-beam"}
    versions = [_describe_package(title, package) for title, package in packages.items()]
    stack = "no stack" if "no TensorFlow" in versions else f"{name()} stack"
    return f"{stack}: {', '.join(versions)}, Python {platform.python_version()}"


def constraints() -> str:
    """Returns the path of the file that pins the versions of this environment, relative to the checkout."""
    return f"constraints/{name()}.txt"


def pip_install(requirement: str) -> str:
    """Returns the command that installs an extra into this environment.

    Args:
      requirement: checkout with its extras, such as `.[gcp]`.
    """
    return f"in the checkout of Feedline: pip install -c {constraints()} '{requirement}'"


def protect_arrow() -> None:
    """Prevents Arrow from executing code that a Parquet file contains (CVE-2023-47248).

    TFX 1.16 requires Arrow 10; Arrow 14.0.1 fixed the vulnerability.

    Raises:
      ImportError: Arrow is old and `pyarrow_hotfix` is not installed.
    """
    if _version("pyarrow") < _SAFE_ARROW:
        import pyarrow_hotfix  # noqa: F401 - importing it is enough


def quieten_tensorflow() -> None:
    """Suppresses the notes of TensorFlow on standard error, unless TF_CPP_MIN_LOG_LEVEL is set to another level.

    TensorFlow 2.21 writes six lines about the machine during its import at every level; they remain only at level 0.
    """
    if os.environ.setdefault(_LOG_LEVEL, "3") != "0" and _QuietImport not in sys.meta_path:
        sys.meta_path.insert(0, _QuietImport)


def dataflow_refusal(error: Exception) -> tuple[int, str] | None:
    """Returns the HTTP status and the reason of a refusal by Dataflow; None for any other error.

    Beam 2.77 uses Google's own client of the service, Beam 2.74 that of apitools.
    """
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0), str(error.message)
    try:
        from apitools.base.py.exceptions import HttpError  # type: ignore[import-untyped]
    except ImportError:  # newer versions of Beam do not install it
        return None
    if not isinstance(error, HttpError):
        return None
    try:
        return error.status_code, str(json.loads(error.content)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return error.status_code, ""


class _QuietImport:
    """Import finder of TensorFlow that removes the notes of Abseil from standard error during the import."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _exec_without_native_stderr(execute, module)  # type: ignore[method-assign]
        return spec


def _exec_without_native_stderr(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    # C++ writes to the descriptor, which is redirected during the import. The output of Python is not redirected: while
    # a worker thread imports, the main thread may show progress, or handle a signal and end the process.
    sys.stderr.flush()
    with tempfile.TemporaryFile() as cpp_output, os.fdopen(os.dup(2), "wb") as stderr:
        stderr_copy = _Descriptor(stderr.fileno())
        stream = io.TextIOWrapper(stderr_copy, errors="backslashreplace", write_through=True)  # type: ignore[type-var]
        redirection = contextlib.redirect_stderr(stream) if sys.stderr is sys.__stderr__ else contextlib.nullcontext()
        os.dup2(cpp_output.fileno(), 2)
        try:
            with redirection:
                execute(module)
        finally:
            os.dup2(stderr.fileno(), 2)
            stderr_copy.number = 2  # log handlers that the import created keep a reference to this stream
            cpp_output.seek(0)
            stderr.writelines(line for line in cpp_output if not _ABSEIL_NOTE.match(line))


class _Descriptor(io.RawIOBase):
    """Writable stream of a descriptor whose number may change."""

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


def _describe_package(title: str, package: str) -> str:
    try:
        return f"{title} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {title}"


def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:3] if part.isdigit())

"""The installed Feedline as a wheel, for workers to install: the very code that runs here, whatever it came from.

It is packed file by file, so it needs no checkout, no build tool and no network. Its direct dependencies are pinned to
the versions that are installed here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

_NAME = "feedline"
_PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
_LEFT_OUT = ("Provides-Extra", "License-File", "Dynamic")  # of no use in a worker, or about files that are not in it
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows: equal code is an equal file


def build_wheel(directory: str) -> str:
    """Packs the installed package into a wheel, byte for byte the same for the same code.

    Args:
      directory: where to put it.

    Returns:
      the path of the wheel.
    """
    version = metadata.version(_NAME)
    info = f"{_NAME}-{version}.dist-info"
    path = os.path.join(directory, f"{_NAME}-{version}-py3-none-any.whl")
    files = dict(_sources())
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: feedline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/top_level.txt"] = "".join(f"{name}\n" for name in _PACKAGES).encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nfeedline = pipeline.entry:main\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return path


def requirements() -> list[str]:
    """Returns the direct dependencies of the package, fixed to what is installed here; extras are left out."""
    found = []
    for text in metadata.requires(_NAME) or []:
        asked = Requirement(text)
        if asked.marker is None or asked.marker.evaluate({"extra": ""}):  # workers have the Python of this process
            extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
            found.append(f"{asked.name}{extras}=={metadata.version(asked.name)}")
    return found


def _metadata() -> str:
    known = metadata.metadata(_NAME)
    names = [name for name in dict.fromkeys(known) if name not in (*_LEFT_OUT, "Requires-Dist", "Description")]
    kept = [(name, value) for name in names for value in known.get_all(name) or []]
    kept += [("Requires-Dist", requirement) for requirement in requirements()]
    return "".join(f"{name}: {value}\n" for name, value in kept)


def _sources() -> Iterator[tuple[str, bytes]]:
    """Yields name in the wheel and content of every file of the packages."""
    root = Path(__file__).parent.parent.parent
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path.read_bytes()


def _record(files: dict[str, bytes], own_name: str) -> str:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{own_name},,\n"

"""The version of the running code, to the byte: in the cache keys, so that changed code never meets old results."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

_PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")


@functools.cache
def code_version() -> str:
    """Returns the release and a digest of every file of the four packages, such as `0.1.0+3f9c0d1e`."""
    root = Path(__file__).parent.parent.parent
    hasher = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            hasher.update(path.relative_to(root).as_posix().encode())
            hasher.update(path.read_bytes())
    return f"{metadata.version('feedline')}+{hasher.hexdigest()[:8]}"

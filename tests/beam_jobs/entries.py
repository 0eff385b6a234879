"""Folders of files for a source, and what it yields, in forms that a test can compare."""

from __future__ import annotations

from pathlib import Path

from beam_jobs.sources.base import HiddenNames
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import ImageRef


def make(root: Path, *names: str) -> Path:
    """Writes files of their own names below a folder; returns it."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def found_in(source) -> list[tuple[str, str]]:
    """Returns (key, label) of each reference and (key, reason) of each reject, in order."""
    return [(e.key, e.label if isinstance(e, ImageRef) else f"! {e.reason}") for e in source.entries()]


def hidden_in(source) -> tuple[int, list[str]]:
    """Returns how many hidden names a source passes over, and the first of them."""
    names = HiddenNames()
    list(source.entries(names.add))
    return names.count, names.examples


def contents(source) -> dict[str, bytes]:
    reader = Reader(base=source.base, max_bytes=10**7)
    return {e.key: reader.read(e.uri, e.slice) for e in source.entries() if isinstance(e, ImageRef)}


def only(source):
    (entry,) = source.entries()
    return entry

"""What a published dataset of others says of itself: `dataset.json` and a file of the image table.

The first byte of an input says which: `a`, the first as it stands; `b`, the first under a checksum that is right; `c`,
the second.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.dataset import manifest, schemas
    from beam_jobs.errors import CorruptDataset

_FOLDER = tempfile.TemporaryDirectory(prefix="feedline-fuzz-")


def target(data: bytes) -> None:
    """Loads the manifest, which is then written as it was read, or the image table, which has rows or is refused."""
    folder, kind, content = Path(_FOLDER.name), data[:1], data[1:]
    if kind == b"c":
        _load_table(folder / "part.parquet", content)
        return
    if kind == b"b":
        content = _sealed(content)
    if kind not in (b"a", b"b"):
        return
    (folder / manifest.MANIFEST_NAME).write_bytes(content)
    try:
        found = manifest.load(str(folder))
    except CorruptDataset:
        return
    assert manifest.Manifest.from_json(json.loads(manifest.serialise(found.to_json()))) == found


def _load_table(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        found = list(schemas.read_images([str(path)], ["key", "split", "shard", "offset"]))
    except CorruptDataset:
        return
    for rows in found:
        rows.to_pylist()


def _sealed(content: bytes) -> bytes:
    try:
        values = json.loads(content)
        values.pop("checksum", "")
        return manifest.serialise({**values, "checksum": manifest.content_checksum(values)})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


if __name__ == "__main__":
    drive.main(target)

"""Records of others as sources: TFRecord files, plain or compressed, and prepared TFDS directories.

The first byte of an input says which it is. That of a TFDS directory holds its files one after the other: the two of
JSON and the class names, each ended by a NUL byte, then a shard.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import tensorflow  # noqa: F401 - records are decoded by it, and no input is to wait for its import

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.errors import SourceError
    from beam_jobs.options import TableColumns
    from beam_jobs.sources.tfds import TfdsSource
    from beam_jobs.sources.tfrecord import TfrecordSource
from tests.fuzz.archives import forget_copies, read_all

_ALL = TableColumns(weight="weight", group="group", split="split", key="key", extra=("age",))
RECORDS = {ord("a"): TableColumns(), ord("b"): _ALL, ord("c"): TableColumns(labels="labels", extra=("age",))}
TFDS = {ord("e"): TableColumns(), ord("f"): TableColumns(split="split", extra=("age",))}
TFDS_FILES = ("dataset_info.json", "features.json", "label.labels.txt", "mnist-train.tfrecord-00000-of-00001")
_FOLDER = tempfile.TemporaryDirectory(prefix="feedline-fuzz-")


def target(data: bytes) -> None:
    """Lists the records; each becomes a reject, or a reference whose bytes can be read or are refused."""
    if not data or data[0] not in {*RECORDS, *TFDS}:
        return
    place = Path(_FOLDER.name) / "source"
    place.mkdir()
    try:
        read_all(_source(data, place))
    except SourceError:
        return
    finally:
        shutil.rmtree(place)
        forget_copies()


def _source(data: bytes, place: Path) -> TfrecordSource | TfdsSource:
    if data[0] in RECORDS:
        (place / "file.tfrecord").write_bytes(data[1:])
        return TfrecordSource(str(place / "file.tfrecord"), RECORDS[data[0]])
    for name, content in zip(TFDS_FILES, data[1:].split(b"\0", len(TFDS_FILES) - 1), strict=False):
        (place / name).write_bytes(content)
    return TfdsSource(str(place), TFDS[data[0]])


if __name__ == "__main__":
    drive.main(target)

"""Archives as sources: tar, plain or of gzip, bzip2 or xz, and zip. The first byte of an input says which it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.beam_jobs.make_rows import parse_ref
from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.dataset import schemas
    from beam_jobs.errors import BadImage, SourceError
    from beam_jobs.options import TableColumns
    from beam_jobs.sources.archive import TarSource, ZipSource
    from beam_jobs.sources.image_reader import Reader
    from beam_jobs.storage import decompress
    from beam_jobs.types import ImageRef

_SIDECARS = TableColumns(weight="weight", group="group", split="split", key="key", extra=("age", "txt"))
KINDS = {
    ord("a"): (TarSource, TableColumns()),
    ord("b"): (TarSource, _SIDECARS),
    ord("c"): (ZipSource, TableColumns()),
    ord("d"): (ZipSource, _SIDECARS),
}
MAX_BYTES = 4096  # of a member that is read
_FOLDER = tempfile.TemporaryDirectory(prefix="feedline-fuzz-")


def target(data: bytes) -> None:
    """Lists an archive; each member becomes a reject, or a reference whose bytes can be read or are refused."""
    if not data or data[0] not in KINDS:
        return
    kind, columns = KINDS[data[0]]
    path = Path(_FOLDER.name) / "archive"
    path.write_bytes(data[1:])
    try:
        read_all(kind(str(path), columns))
    except SourceError:
        return
    finally:
        forget_copies()


def read_all(source) -> None:
    """Checks a source, then lists it and reads what it lists."""
    source.check()
    reader = Reader(base=source.base, max_bytes=MAX_BYTES)
    for entry in source.entries():
        if not isinstance(entry, ImageRef):
            schemas.pa.Table.from_pylist([schemas.reject_row(entry)], schemas.REJECTS)
            continue
        row = schemas.ref_row(entry)
        schemas.pa.Table.from_pylist([row], schemas.REFS)
        assert schemas.ref_row(parse_ref(row)) == row, row
        try:
            found = reader.read(entry.uri, row["slice"])
        except BadImage:
            continue
        assert len(found) <= MAX_BYTES + 1, entry


def forget_copies() -> None:
    """Removes what compressed containers were unpacked to, which a process otherwise keeps until its end."""
    decompress._copies.clear()
    decompress._latest_copies.clear()
    for folder in decompress._directories.values():
        for copy in Path(folder).iterdir():
            copy.unlink()


if __name__ == "__main__":
    drive.main(target)

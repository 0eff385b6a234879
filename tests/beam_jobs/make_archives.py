"""Tar and zip archives made in code."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from beam_jobs.sources.archive import TarSource, ZipSource
from tests.make_images import jpeg, png

FOLDERS = {"cat/a.jpg": jpeg(1), "cat/b.png": png(2), "dog/deep/c.JPEG": jpeg(3)}


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w", **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, **options) as archive:
        for name, data in files.items():
            add(archive, name, data)
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    for field, value in fields.items():
        setattr(header, field, value)
    archive.addfile(header, io.BytesIO(data))


def make_zip(path: Path, files: dict[str, bytes], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", **{"compression": zipfile.ZIP_DEFLATED, **options}) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


KINDS = {"tar": (TarSource, make_tar, "x.tar"), "zip": (ZipSource, make_zip, "x.zip")}


def header_block(name: str, kind: bytes, size: int = 0, form: int = tarfile.GNU_FORMAT) -> bytes:
    """Returns the header of a member of a tar archive, 512 bytes."""
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, size
    return header.tobuf(form)


def member(name: str, data: bytes, kind: bytes = b"0") -> bytes:
    """Returns a member of a tar archive."""
    return header_block(name, kind, len(data)) + data + bytes(-len(data) % 512)


def attributes(*pairs: tuple[str, str]) -> bytes:
    """Returns the records of a PAX header, each of which begins with its own length."""
    records = b""
    for name, value in pairs:
        text = f" {name}={value}\n".encode()
        length = len(text) + len(str(len(text) + len(str(len(text)))))
        records += str(length).encode() + text
    return records


def sparse_member(blocks: int) -> bytes:
    """Returns a member of the old GNU form whose map goes on for so many blocks."""
    first = bytearray(header_block("all/sparse.jpg", tarfile.GNUTYPE_SPARSE))
    first[482] = 1
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    entries = b"".join(b"%011o\0%011o\0" % (place, 1) for place in range(21))
    more = entries + b"\x01" + bytes(7)
    return bytes(first) + more * blocks + entries + bytes(8)

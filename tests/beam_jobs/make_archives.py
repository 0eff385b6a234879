"""Tar and zip archives made in code."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from beam_jobs.sources.archives import TarSource, ZipSource
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

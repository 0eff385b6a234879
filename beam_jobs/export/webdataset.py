"""WebDataset: tar files of `NAME.jpg` or `NAME.png`, `NAME.cls` and `NAME.json`; equal datasets give equal bytes."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.export.formats import ExportedFile
from beam_jobs.export.samples import Sample

OBJECT_MASK = record.OBJECT_PREFIX + "mask"
_IN_FILES = (record.ENCODED, record.MASK, OBJECT_MASK)


class WebDataset:
    """`SPLIT-000000.tar`, ...: a sample is the run of members that share a name up to its first dot.

    `NAME.cls` is the number of the class, where images have one label. `NAME.json` has every feature of the record
    under its name, but for images: a class mask is `NAME.mask.png`, that of an object `NAME.object-00000.png`.
    """

    def __init__(self, directory: str, dataset: Manifest) -> None:
        self._single = dataset.label_kind == "single"

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"{split}-{index:06d}.tar"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_Tar]:
        """Writes a file that is complete under its name when the block ends, or not there."""
        with (
            storage.atomic_writer(path) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            yield _Tar(tar, self._single)

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns no files: readers get the names of the tar files as arguments."""
        return {}


class _Tar:
    def __init__(self, tar: tarfile.TarFile, single: bool) -> None:
        self._tar = tar
        self._single = single

    def write(self, sample: Sample) -> None:
        """Adds the members of a sample."""
        for ending, content in self._members(sample):
            # Owner, rights and time are those of every member, so that the bytes depend on the dataset alone.
            member = tarfile.TarInfo(f"{sample.name}.{ending}")
            member.size = len(content)
            member.mode = 0o644
            self._tar.addfile(member, io.BytesIO(content))
        self._tar.getmembers().clear()  # it keeps a list of all that it wrote

    def _members(self, sample: Sample) -> Iterator[tuple[str, bytes]]:
        yield sample.suffix, sample.image
        if self._single:
            yield "cls", b"%d" % sample.values[record.LABEL][0]
        described: dict[str, Any] = {name: sample.plain(name) for name in sample.values if name not in _IN_FILES}
        yield "json", json.dumps(described, sort_keys=True, ensure_ascii=False).encode("utf-8", "backslashreplace")
        for mask in sample.values.get(record.MASK, ()):
            yield "mask.png", mask
        for number, mask in enumerate(sample.values.get(OBJECT_MASK, ())):
            if mask:  # an object may have none
                yield f"object-{number:05d}.png", mask

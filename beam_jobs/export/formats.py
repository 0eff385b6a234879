"""What is exported, the records of a dataset one by one and in which file each goes, and the formats that copy them.

ArrayRecord: the same serialised Examples in files with random access, as Grain and TFDS read them.
WebDataset: tar files of `NAME.jpg` or `NAME.png`, `NAME.cls` and `NAME.json`; equal datasets give equal bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from beam_jobs import storage
from beam_jobs.dataset import manifest, record, tfds_metadata, tfrecord
from beam_jobs.dataset.manifest import Manifest, SplitInfo
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.export.options import safe_name

_SUFFIXES = {b"jpeg": "jpg", b"png": "png", b"raw": "png"}


class Sample:
    """One record; only the fields that are asked for are decoded.

    Attributes:
      payload: the serialised Example.
      place: shard and offset of it.
    """

    def __init__(self, payload: bytes, place: str) -> None:
        self.payload = payload
        self.place = place

    @functools.cached_property
    def values(self) -> Mapping[str, list]:
        """Feature name -> values, see `beam_jobs.dataset.record`."""
        return record.decode(self.payload)

    @functools.cached_property
    def key(self) -> str:
        """Identity of the image."""
        return self.values[record.FILENAME][0].decode()

    @functools.cached_property
    def name(self) -> str:
        """A file name for it, without its ending; see `safe_name`."""
        return safe_name(self.key)

    @functools.cached_property
    def suffix(self) -> str:
        """Ending of the file of the image: `jpg` or `png`."""
        return _SUFFIXES[self.values[record.FORMAT][0]]

    @functools.cached_property
    def image(self) -> bytes:
        """The image as a file; raw pixels become a PNG, which loses nothing."""
        (found,) = self.values[record.ENCODED]
        if self.values[record.FORMAT] != [b"raw"]:
            return found
        from PIL import Image

        height, width = self.values[record.HEIGHT][0], self.values[record.WIDTH][0]
        if len(found) != height * width * 3:
            raise CorruptDataset(f"{self.key!r} has {len(found)} bytes of pixels, its record says {width}x{height}")
        out = io.BytesIO()
        Image.frombytes("RGB", (width, height), found).save(out, "PNG")
        return out.getvalue()

    def plain(self, name: str) -> Any:
        """Returns the values of a feature, text for bytes: a list, or the one value of what has never more than one."""
        values = [_text(value) if isinstance(value, bytes) else value for value in self.values.get(name, ())]
        return (values[0] if values else None) if name in _SINGLE else values


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


_SINGLE = {name for name, (_, shape) in record.FEATURES.items() if not shape} - {record.LABEL, record.TEXT}
_SINGLE |= {record.WEIGHT}


def read_samples(directory: str, dataset: Manifest, split: str) -> Iterator[Sample]:
    """Yields the samples of a split in the order of its shards, every checksum verified, also that of each image.

    One is in memory at a time.

    Raises:
      CorruptDataset: a shard cannot be read, is damaged, or holds more or fewer records than `dataset.json` says, or
        something else than images of a dataset.
    """
    for path, shard in zip(dataset.shard_paths(directory, split), dataset.split(split).shards, strict=True):
        count = 0
        try:
            with storage.open_read(path) as stream:
                for offset, payload in tfrecord.read_records(stream, path):
                    count += 1
                    sample = Sample(payload, f"{path} at offset {offset}")
                    if problem := _sample_problem(sample):
                        raise corrupt_sample(sample, problem)
                    yield sample
        except OSError as error:
            raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}") from error
        if count != shard.records:
            raise CorruptDataset(f"{path} holds {count} records, dataset.json says {shard.records}; verify the dataset")


def corrupt_sample(sample: Sample, problem: str) -> CorruptDataset:
    """Returns the error about a sample that is not what an ingest writes."""
    return CorruptDataset(f"{sample.place} is no record of a dataset: {problem}; write the dataset again")


def _sample_problem(sample: Sample) -> str:
    """Returns what is wrong with a record, short of decoding its image; empty for nothing."""
    from google.protobuf.message import DecodeError

    try:
        if wrong := record.type_problem(sample.values):
            return wrong
        found, (encoded,) = sample.values[record.FORMAT][0], sample.values[record.ENCODED]
        if found not in _SUFFIXES:
            return f"its image is {found!r:.40}; known are jpeg, png and raw"
        if hashlib.sha256(encoded).hexdigest() != sample.values[record.SHA256][0].decode():
            return f"the image of {sample.key!r} is not the one its sha256 was taken of"
    except (DecodeError, LookupError, ValueError) as error:
        return repr(error)
    return ""


def numbered_samples(samples: Iterator[Sample], info: SplitInfo, count: int) -> Iterator[tuple[int, Sample]]:
    """Yields (file, sample) with the files in order, of nearly equal bytes; none is empty.

    The arithmetic of `shards.cut`, for samples whose sizes are not known yet.

    Args:
      samples: of the split, in order.
      info: how many there are, and their bytes.
      count: number of files, at most one a sample.
    """
    file = in_file = seen = 0
    for position, sample in enumerate(samples):
        must_close = info.records - position <= count - file - 1
        if file < count - 1 and in_file and (must_close or seen * count >= info.bytes * (file + 1)):
            file, in_file = file + 1, 0
        yield file, sample
        in_file += 1
        seen += len(sample.payload) + tfrecord.OVERHEAD


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file of an export.

    Attributes:
      name: relative to the export.
      samples: records in it.
      bytes: size of the file.
    """

    name: str
    samples: int
    bytes: int


class Shard(Protocol):
    """A file that is being written."""

    def write(self, sample: Sample) -> None:
        """Takes one sample."""


class Format(Protocol):
    """A format; made of the directory of a dataset and its manifest."""

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of file `index` of `count`, relative to the export."""

    def open(self, path: str) -> AbstractContextManager[Shard]:
        """Writes a file that is complete under its name when the block ends, or not there."""

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns name -> content of the small files that readers of the format look for; `files` by split."""


_GROUPED = "group_size:1"  # a record is read on its own; groups compress better, and images do not compress


class ArrayRecord:
    """`SPLIT-00000-of-00002.array_record`, ..., and what TFDS wants to open them by their directory."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Imports the package.

        Raises:
          OptionError: it is not installed.
        """
        self._module = _array_record_module()
        self._directory = directory
        self._splits = tuple(dataset.splits)
        self._beside = tuple(name for name in tfds_metadata.NAMES if name in dataset.tables)

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"{split}-{index:05d}-of-{count:05d}.array_record"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_ArrayRecordWriter]:
        """Writes a file that is complete under its name when the block ends, or not there."""
        if storage.is_remote(path):  # the package writes local files alone
            with tempfile.TemporaryDirectory() as folder:
                scratch = os.path.join(folder, "part")
                with self._open(scratch) as writer:
                    yield writer
                with open(scratch, "rb") as stream, storage.atomic_writer(path) as target:
                    shutil.copyfileobj(stream, target, 1 << 20)
            return
        temporary = f"{path}.tmp"
        with self._open(temporary) as writer:
            yield writer
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[_ArrayRecordWriter]:
        writer = self._module.ArrayRecordWriter(path, _GROUPED)
        try:
            yield _ArrayRecordWriter(writer)
        finally:
            writer.close()  # what it lacks after an error goes with the whole export

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns the files of TFDS beside the dataset, turned to what was written."""
        files_of_tfds = {name: self._read(name) for name in self._beside}
        try:
            info = storage.parse_json(files_of_tfds[tfds_metadata.INFO_NAME])
            called = {split: entry["name"] for split, entry in zip(self._splits, info["splits"], strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            path = storage.join(self._directory, tfds_metadata.INFO_NAME)
            raise CorruptDataset(f"{path} cannot be used: {error!r}; write the dataset again") from error
        info["fileFormat"] = "array_record"
        info["splits"] = [_split(called[split], split, written) for split, written in files.items()]
        return {**files_of_tfds, tfds_metadata.INFO_NAME: manifest.serialise(info)}

    def _read(self, name: str) -> bytes:
        path = storage.join(self._directory, name)
        try:
            return storage.read_at_most(path, storage.MAX_JSON_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CorruptDataset(f"{path} cannot be read: {reason}") from error


class _ArrayRecordWriter:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, sample: Sample) -> None:
        """Adds the record of a sample as it is."""
        self._writer.write(sample.payload)


def _split(name: str, split: str, files: tuple[ExportedFile, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "filepathTemplate": f"{split}-{{SHARD_X_OF_Y}}.array_record",
        "shardLengths": [str(file.samples) for file in files],
        "numBytes": str(sum(file.bytes for file in files)),
    }


def _array_record_module() -> ModuleType:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise OptionError("exports to array_record need a package: pip install array-record") from error


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

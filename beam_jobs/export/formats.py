"""The samples of an export, their distribution to files, and the formats ArrayRecord and WebDataset.

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
from typing import Any, Protocol

import numpy as np

from beam_jobs import storage
from beam_jobs.dataset import manifest, record, shards, tfds_metadata, tfrecord
from beam_jobs.dataset.manifest import Manifest, SplitInfo
from beam_jobs.errors import CorruptDataset, OptionError, os_errors_as
from beam_jobs.export.options import safe_name

_FILE_SUFFIXES = {b"jpeg": "jpg", b"png": "png", b"raw": "png"}


class Sample:
    """A record, whose properties are decoded at the first access.

    Attributes:
      payload: the serialised Example.
      position: shard and offset of the record, for errors.
    """

    def __init__(self, payload: bytes, position: str) -> None:
        self.payload = payload
        self.position = position

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
        """File name of the sample without its suffix; see `safe_name`."""
        return safe_name(self.key)

    @functools.cached_property
    def suffix(self) -> str:
        """Suffix of the image file: `jpg` or `png`."""
        return _FILE_SUFFIXES[self.values[record.FORMAT][0]]

    @functools.cached_property
    def image(self) -> bytes:
        """The image as a file; raw pixels become a PNG, without loss."""
        (encoded,) = self.values[record.ENCODED]
        if self.values[record.FORMAT] != [b"raw"]:
            return encoded
        from PIL import Image

        height, width = self.values[record.HEIGHT][0], self.values[record.WIDTH][0]
        if len(encoded) != height * width * 3:
            raise CorruptDataset(f"{self.key!r} has {len(encoded)} bytes of pixels, its record has {width}x{height}")
        png_stream = io.BytesIO()
        Image.frombytes("RGB", (width, height), encoded).save(png_stream, "PNG")
        return png_stream.getvalue()

    def text_values(self, name: str) -> Any:
        """Returns the values of a feature, bytes as text: a list, or the value or None for a feature with one value."""
        values = [_text(value) if isinstance(value, bytes) else value for value in self.values.get(name, ())]
        return (values[0] if values else None) if name in _SINGLE_VALUES else values


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


_SINGLE_VALUES = {name for name, (_, shape) in record.FEATURES.items() if not shape} - {record.LABEL, record.TEXT}
_SINGLE_VALUES |= {record.WEIGHT}


def read_samples(directory: str, dataset: Manifest, split: str) -> Iterator[Sample]:
    """Yields the samples of a split in the order of its shards, one in memory at a time; verifies every checksum.

    Raises:
      CorruptDataset: a shard cannot be read, is damaged, differs in its number of records from `dataset.json`, or holds
        records that are not images of a dataset.
    """
    for path, shard in zip(dataset.shard_paths(directory, split), dataset.split(split).shards, strict=True):
        count = 0
        with os_errors_as(CorruptDataset, f"{path} cannot be read"), storage.open_read(path) as stream:
            for offset, payload in tfrecord.read_records(stream, path):
                count += 1
                sample = Sample(payload, f"{path} at offset {offset}")
                if problem := _sample_problem(sample):
                    raise corrupt_sample(sample, problem)
                yield sample
        if count != shard.records:
            raise CorruptDataset(f"{path} has {count} records, dataset.json has {shard.records}; verify the dataset")


def corrupt_sample(sample: Sample, problem: str) -> CorruptDataset:
    """Returns the error about a sample that no ingest writes."""
    return CorruptDataset(f"{sample.position} is not a record of a dataset: {problem}; write the dataset again")


def _sample_problem(sample: Sample) -> str:
    """Returns the problem of a record, without decoding its image; empty if there is none."""
    from google.protobuf.message import DecodeError

    try:
        if problem := record.type_problem(sample.values):
            return problem
        image_format, (encoded,) = sample.values[record.FORMAT][0], sample.values[record.ENCODED]
        if image_format not in _FILE_SUFFIXES:
            return f"its image is {image_format!r:.40}; it must be jpeg, png or raw"
        if hashlib.sha256(encoded).hexdigest() != sample.values[record.SHA256][0].decode():
            return f"the image of {sample.key!r} does not match its sha256"
    except (DecodeError, LookupError, ValueError) as error:
        return repr(error)
    return ""


def numbered_samples(samples: Iterator[Sample], info: SplitInfo, count: int) -> Iterator[tuple[int, Sample]]:
    """Yields (file index, sample), in order; the files have nearly equal bytes and none is empty.

    Args:
      samples: the samples of the split, in order.
      info: number of samples and their total bytes.
      count: number of files, at most one per sample.
    """
    cutter, file_index = shards.Cutter(info.records, info.bytes, count), 0
    for sample in samples:
        file_index += len(cutter.cut(np.array([len(sample.payload) + tfrecord.OVERHEAD])))
        yield file_index, sample


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of an export.

    Attributes:
      name: path relative to the export.
      samples: number of records.
      bytes: size of the file.
    """

    name: str
    samples: int
    bytes: int


class Shard(Protocol):
    """An open file of an export."""

    def write(self, sample: Sample) -> None:
        """Adds a sample."""


class Format(Protocol):
    """A format; its constructor takes the directory and the manifest of a dataset."""

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of file `index` of `count`, relative to the export."""

    def open(self, path: str) -> AbstractContextManager[Shard]:
        """Opens a file for writing; it gets its name when the block succeeds."""

    def metadata_files(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns name -> content of the metadata files of the format; `files` maps each split to its files."""


class ArrayRecord:
    """Files `SPLIT-00000-of-00002.array_record`, ..., and the metadata with which TFDS opens their directory."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Imports the package `array_record`.

        Raises:
          OptionError: the package is not installed.
        """
        try:
            self._module = importlib.import_module("array_record.python.array_record_module")
        except ImportError as error:
            raise OptionError("exports to array_record need a package: pip install array-record") from error
        self._directory = directory
        self._splits = tuple(dataset.splits)
        self._metadata_names = tuple(name for name in tfds_metadata.NAMES if name in dataset.tables)

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"{split}-{index:05d}-of-{count:05d}.array_record"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_ArrayRecordWriter]:
        """See `Format`."""
        if storage.is_remote(path):  # the package only writes local files
            with tempfile.TemporaryDirectory() as folder:
                scratch = os.path.join(folder, "part")
                with self._open_local(scratch) as writer:
                    yield writer
                with open(scratch, "rb") as stream, storage.atomic_writer(path) as target:
                    shutil.copyfileobj(stream, target, 1 << 20)
            return
        temporary = f"{path}.tmp"
        with self._open_local(temporary) as writer:
            yield writer
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)

    @contextlib.contextmanager
    def _open_local(self, path: str) -> Iterator[_ArrayRecordWriter]:
        # Records are read one by one; larger groups only improve compression, and image files hardly compress.
        writer = self._module.ArrayRecordWriter(path, "group_size:1")
        try:
            yield _ArrayRecordWriter(writer)
        finally:
            writer.close()  # the incomplete file of a failed export is removed with the export

    def metadata_files(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns the TFDS metadata of the dataset, adapted to the exported files."""
        metadata = {name: self._read_metadata(name) for name in self._metadata_names}
        try:
            info = storage.parse_json(metadata[tfds_metadata.INFO_NAME])
            tfds_names = {split: entry["name"] for split, entry in zip(self._splits, info["splits"], strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            path = storage.join(self._directory, tfds_metadata.INFO_NAME)
            raise CorruptDataset(f"{path} cannot be used: {error!r}; write the dataset again") from error
        info["fileFormat"] = "array_record"
        info["splits"] = [_split_info(tfds_names[split], split, split_files) for split, split_files in files.items()]
        return {**metadata, tfds_metadata.INFO_NAME: manifest.serialise(info)}

    def _read_metadata(self, name: str) -> bytes:
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
        """Adds the record of a sample, unchanged."""
        self._writer.write(sample.payload)


def _split_info(name: str, split: str, files: tuple[ExportedFile, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "filepathTemplate": f"{split}-{{SHARD_X_OF_Y}}.array_record",
        "shardLengths": [str(file.samples) for file in files],
        "numBytes": str(sum(file.bytes for file in files)),
    }


OBJECT_MASK = record.OBJECT_PREFIX + "mask"
_IMAGES = (record.ENCODED, record.MASK, OBJECT_MASK)  # features that become files of their own


class WebDataset:
    """Files `SPLIT-000000.tar`, ...: a sample consists of consecutive members with the same name up to its first dot.

    `NAME.cls` is the index of the class, if images have a single label. `NAME.json` has every feature of the record
    except images: a class mask is `NAME.mask.png`, the mask of an object `NAME.object-00000.png`.
    """

    def __init__(self, directory: str, dataset: Manifest) -> None:
        self._has_single_label = dataset.label_kind == "single"

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"{split}-{index:06d}.tar"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_TarWriter]:
        """See `Format`."""
        with (
            storage.atomic_writer(path) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            yield _TarWriter(tar, self._has_single_label)

    def metadata_files(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns no files: readers get the names of the tar files as arguments."""
        return {}


class _TarWriter:
    def __init__(self, tar: tarfile.TarFile, has_single_label: bool) -> None:
        self._tar = tar
        self._has_single_label = has_single_label

    def write(self, sample: Sample) -> None:
        """Adds the members of a sample."""
        for suffix, content in self._members(sample):
            # Owner, permissions and time are constant, so that the bytes depend only on the dataset.
            member = tarfile.TarInfo(f"{sample.name}.{suffix}")
            member.size = len(content)
            member.mode = 0o644
            self._tar.addfile(member, io.BytesIO(content))
        self._tar.getmembers().clear()  # otherwise the list of all members fills the memory

    def _members(self, sample: Sample) -> Iterator[tuple[str, bytes]]:
        yield sample.suffix, sample.image
        if self._has_single_label:
            yield "cls", b"%d" % sample.values[record.LABEL][0]
        features: dict[str, Any] = {name: sample.text_values(name) for name in sample.values if name not in _IMAGES}
        yield "json", json.dumps(features, sort_keys=True, ensure_ascii=False).encode("utf-8", "backslashreplace")
        for mask in sample.values.get(record.MASK, ()):
            yield "mask.png", mask
        for index, mask in enumerate(sample.values.get(OBJECT_MASK, ())):
            if mask:  # an object may have no mask
                yield f"object-{index:05d}.png", mask

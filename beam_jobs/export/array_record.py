"""ArrayRecord: the same serialised Examples in files with random access, as Grain and TFDS read them."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import manifest, tfds_metadata
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.export.formats import ExportedFile
from beam_jobs.export.samples import Sample
from beam_jobs.storage import bounded_json

_GROUPED = "group_size:1"  # a record is read on its own; groups compress better, and images do not compress


class ArrayRecord:
    """`SPLIT-00000-of-00002.array_record`, ..., and what TFDS wants to open them by their directory."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Imports the package.

        Raises:
          OptionError: it is not installed.
        """
        self._module = _module()
        self._directory = directory
        self._splits = tuple(dataset.splits)
        self._beside = tuple(name for name in tfds_metadata.NAMES if name in dataset.tables)

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"{split}-{index:05d}-of-{count:05d}.array_record"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_Writer]:
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
    def _open(self, path: str) -> Iterator[_Writer]:
        writer = self._module.ArrayRecordWriter(path, _GROUPED)
        try:
            yield _Writer(writer)
        finally:
            writer.close()  # what it lacks after an error goes with the whole export

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns the files of TFDS beside the dataset, turned to what was written."""
        files_of_tfds = {name: self._read(name) for name in self._beside}
        try:
            info = bounded_json.parse(files_of_tfds[tfds_metadata.INFO_NAME])
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
            return storage.read_at_most(path, bounded_json.MAX_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CorruptDataset(f"{path} cannot be read: {reason}") from error


class _Writer:
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


def _module() -> ModuleType:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise OptionError("exports to array_record need a package: pip install array-record") from error

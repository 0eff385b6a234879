"""Parquet: a row an image with the image in it, and the metadata that Hugging Face `datasets` asks for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.export.formats import ExportedFile
from beam_jobs.export.parquet_columns import Column, columns_of, schema_of
from beam_jobs.export.samples import Sample

# A row group is in memory when it is written, and again when it is read: whichever comes first ends it.
ROW_GROUP_IMAGES = 100
ROW_GROUP_BYTES = 16 << 20


class Parquet:
    """`data/SPLIT-00000-of-00002.parquet`, ..., and a `README.md` that names the splits, as the Hub has them."""

    def __init__(self, directory: str, dataset: Manifest) -> None:
        """Finds out what columns the records make.

        Raises:
          CorruptDataset: the description of the features beside the dataset cannot be read.
        """
        self._columns = columns_of(directory, dataset)
        self._schema = schema_of(self._columns)

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"data/{split}-{index:05d}-of-{count:05d}.parquet"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_Rows]:
        """Writes a file that is complete under its name when the block ends, or not there."""
        # Images do not shrink, and the rest is small beside them.
        kept = {"compression": "none", "use_dictionary": False}
        with storage.atomic_writer(path) as stream, pq.ParquetWriter(stream, self._schema, **kept) as writer:
            rows = _Rows(writer, self._schema, self._columns)
            yield rows
            rows.flush()

    def beside(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns the page of the dataset, whose head says which files are which split."""
        head = {"configs": [{"config_name": "default", "data_files": [_data_files(split) for split in files]}]}
        return {"README.md": f"---\n{json.dumps(head, indent=2)}\n---\n".encode()}  # JSON is YAML, and quotes itself


class _Rows:
    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, columns: Sequence[Column]) -> None:
        self._writer = writer
        self._schema = schema
        self._columns = columns
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, sample: Sample) -> None:
        """Takes one row."""
        self._rows.append({column.name: column.value(sample) for column in self._columns})
        self._bytes += len(sample.payload)
        if len(self._rows) >= ROW_GROUP_IMAGES or self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes a row group of what was taken."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0


def _data_files(split: str) -> dict[str, str]:
    # `all` is every split together to `datasets`, as it is to TFDS.
    return {"split": "all_images" if split == "all" else split, "path": f"data/{split}-*.parquet"}

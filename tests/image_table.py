"""The image table of a dataset: its rows, and others in their place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas, shards


def read(dataset: str | os.PathLike[str]) -> pa.Table:
    """All rows, in their order; of a local or a remote dataset."""
    return pa.concat_tables(map(schemas.read, manifest.load(str(dataset)).image_paths(str(dataset))))


def files(dataset: str | os.PathLike[str]) -> list[Path]:
    """The files, in the order of their rows."""
    return [Path(path) for path in manifest.load(str(dataset)).image_paths(str(dataset))]


def write(dataset: str | os.PathLike[str], table: pa.Table) -> None:
    """Writes other rows: as many to each file as it has, what is left to the last one. `dataset.json` stays."""
    paths = files(dataset)
    start = 0
    for path in paths:
        end = start + pq.read_metadata(path).num_rows if path != paths[-1] else len(table)
        schemas.write_table(str(path), table.slice(start, end - start))
        start = end


def seal(dataset: str | os.PathLike[str]) -> None:
    """Makes `dataset.json` name the checksums, sizes and rows that the files of the table have now."""
    path = Path(dataset, manifest.MANIFEST_NAME)
    values = json.loads(path.read_text())
    for part in values["images"]:
        table = path.parent / manifest.IMAGES_DIR / part["name"]
        part["bytes"], part["sha256"] = storage.digest(str(table))
        with contextlib.suppress(pa.ArrowException):  # what is no Parquet has no rows
            keys = schemas.read(str(table), ["key"])["key"].to_pylist()
            hashes = [shards.order_hash(values["options"]["seed"], key) for key in keys]
            part |= {
                "rows": len(keys),
                "order_hashes": part["order_hashes"] and [min(hashes, default=""), max(hashes, default="")],
            }
    del values["checksum"]
    values["checksum"] = manifest.content_checksum(values)
    path.write_bytes(manifest.serialise(values))


def make_format_1(dataset: str | os.PathLike[str]) -> None:
    """Turns a dataset into one of format 1, as earlier releases write them."""
    path, table = Path(dataset), read(dataset)
    schemas.write_table(str(path / manifest.IMAGES_NAME), table)
    shutil.rmtree(path / manifest.IMAGES_DIR)
    loaded = manifest.load(str(path))
    tables = {manifest.IMAGES_NAME: storage.digest(str(path / manifest.IMAGES_NAME))[1], **loaded.tables}
    manifest.write(replace(loaded, format_version=1, images=(), tables=tables), str(path))

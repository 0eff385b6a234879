"""Published datasets of others whose checksums are right, and whose content is not."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.dataset import manifest, schemas, tfrecord
from tests import image_table
from tests.beam_jobs import make_hostile_images as make
from tests.faults.hostile_files import DEEP, LONG, same
from tests.make_images import forged_png, jpeg

Change = Callable[[Path], None]


def _text(change: Callable[[str], str]) -> Change:
    """Changes `dataset.json` as text; a checksum of it is of no use to who cannot parse it."""

    def write(dataset: Path) -> None:
        path = dataset / manifest.MANIFEST_NAME
        path.write_text(change(path.read_text()))

    return write


def _values(change: Callable[[dict[str, Any]], object]) -> Change:
    def write(dataset: Path) -> None:
        path = dataset / manifest.MANIFEST_NAME
        values = json.loads(path.read_text())
        change(values)
        del values["checksum"]
        path.write_bytes(manifest.serialise({**values, "checksum": manifest.content_checksum(values)}))

    return write


def _table(name: str, change: Callable[[pa.Table], pa.Table]) -> Change:
    def write(dataset: Path) -> None:
        path = dataset / name
        pq.write_table(change(schemas.read(str(path))), path, compression="zstd")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        loaded = manifest.load(str(dataset))
        manifest.write(replace(loaded, tables={**loaded.tables, name: digest}), str(dataset))

    return write


def _images(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Changes the first file of the image table, and its checksum."""

    def write(dataset: Path) -> None:
        path = image_table.files(dataset)[0]
        pq.write_table(change(schemas.read(str(path))), path, compression="zstd")
        image_table.seal(dataset)

    return write


def _column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _repeated(name: str, count: int) -> Callable[[pa.Table], pa.Table]:
    """Returns a change that makes so many rows of the first one, with a long text in one column."""

    def change(table: pa.Table) -> pa.Table:
        many = table.slice(0, 1).take(pa.array([0] * count))
        return _column(many, name, same(LONG, count))

    return change


def _payloads(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    """Changes the payloads of the records, and the checksums of their shard."""

    def write(dataset: Path) -> None:
        loaded = manifest.load(str(dataset))
        (path,) = loaded.shard_paths(str(dataset), "all")
        with open(path, "rb") as stream:
            payloads = change([payload for _, payload in tfrecord.read_records(stream, path)])
        data = b"".join(itertools.chain.from_iterable(map(tfrecord.frame, payloads)))
        Path(path).write_bytes(data)
        info = loaded.splits["all"]
        shard = replace(info.shards[0], bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        manifest.write(replace(loaded, splits={"all": replace(info, shards=(shard,))}), str(dataset))

    return write


def _record(features: Mapping[str, Any]) -> Change:
    """Changes features of the first record, and its checksum with its image."""

    def change(payloads: list[bytes]) -> list[bytes]:
        from tensorflow.core.example import example_pb2

        first = example_pb2.Example.FromString(payloads[0])
        for name, value in features.items():
            feature = first.features.feature[name]
            if isinstance(value, bytes):
                feature.bytes_list.value[:] = [value]
            else:
                feature.int64_list.value[:] = [value]
        if "image/encoded" in features:
            digest = hashlib.sha256(features["image/encoded"]).hexdigest().encode()
            first.features.feature["image/key/sha256"].bytes_list.value[:] = [digest]
        return [first.SerializeToString(deterministic=True), *payloads[1:]]

    return _payloads(change)


def _encoded(data: Callable[[], bytes]) -> Change:
    def write(dataset: Path) -> None:
        _record({"image/encoded": data()})(dataset)

    return write


_RAW = {"image/format": b"raw", "image/encoded": b"pixels", "image/height": 1 << 31, "image/width": 1 << 31}
DATASETS: dict[str, Change] = {
    "deep JSON in dataset.json": _text(lambda text: text[:-2] + ',"deep":' + "[" * DEEP + "]" * DEEP + "}"),
    "dataset.json that is deep JSON": _text(lambda _: "[" * DEEP),
    "a number of a megabyte in dataset.json": _text(lambda text: text[:-2] + ',"n":' + "9" * 1_000_000 + "}"),
    "counts that are no numbers": _values(lambda values: values["counts"].update(found="x\nimages  9 found")),
    "100,000 labels": _values(lambda values: values.update(labels=[f"label\n{n}" for n in range(100_000)])),
    "an option of a megabyte": _values(lambda values: values["options"].update(near_duplicates="x" * 1_000_000)),
    "60 rows of one key of 400 kB": _images(_repeated("key", 60)),
    "5,000 rows of one key of 400 kB": _images(_repeated("key", 5_000)),
    "5,000 rows of one label of 400 kB": _images(_repeated("label", 5_000)),
    "5,000 rejects of 400 kB": _table(
        "rejects.parquet",
        lambda _: pa.table(
            {
                **{name: same("x", 5_000) for name in ("key", "uri", "stage", "reason")},
                "detail": same(LONG, 5_000),
                "bytes": pa.array([0] * 5_000),
            }
        ),
    ),
    "deep JSON in a user column": _images(
        lambda table: _column(table, "extra", pa.array(["[" * DEEP] * table.num_rows))
    ),
    "places that are none": _images(lambda table: _column(table, "offset", pa.array([1 << 62] * table.num_rows))),
    "shards that are none": _images(lambda table: _column(table, "shard", pa.array([1 << 40] * table.num_rows))),
    "a PNG that claims 900 Mpx": _encoded(lambda: forged_png(30_000)),
    "a PNG of 400 Mpx": _encoded(lambda: make.bilevel_png(20_000)),
    "a cut JPEG": _encoded(lambda: jpeg()[:-200]),
    "no image": _encoded(lambda: b"no image"),
    "raw pixels that claim 2^62": _record(_RAW),
    "an unknown format": _record({"image/format": b"webp"}),
    "a key of a megabyte": _record({"image/filename": b"x" * 1_000_000}),
    "a key with line feeds": _record({"image/filename": b"x\nimages  60 found, 60 written"}),
    "records that are no Example": _payloads(lambda payloads: [b"\xff" * len(payload) for payload in payloads]),
    "records without features": _payloads(lambda payloads: [b""] * len(payloads)),
    "sizes that are none": _record({"image/height": -1, "image/width": 0}),
}

"""Records of strangers: the checksums of the shard are right, and what is in it is not what an ingest writes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from tensorflow.core.example import example_pb2

from beam_jobs.dataset import manifest, schemas, tfrecord
from tests import image_table


def framed(*payloads: bytes) -> bytes:
    """Returns what a shard of these payloads holds."""
    return b"".join(piece for payload in payloads for piece in tfrecord.frame(payload))


def rewrite(dataset: Path, change) -> str:
    """Changes every record of a shard, as `change` does with its features, and returns the path of the shard."""
    path = dataset / "Split-train" / "data-00001-of-00002.tfrecord"
    with path.open("rb") as stream:
        records = list(tfrecord.read_records(stream, str(path)))
    moved = {}
    with path.open("wb") as stream:
        for offset, payload in records:
            example = example_pb2.Example.FromString(payload)
            change(example.features.feature)
            moved["train", 1, offset] = stream.tell()
            stream.write(framed(example.SerializeToString()))
    rows = image_table.read(dataset).to_pylist()
    for row in rows:
        row["offset"] = moved.get((row["split"], row["shard"], row["offset"]), row["offset"])
    image_table.write(dataset, pa.Table.from_pylist(rows, schemas.IMAGES))
    return str(path)


def edit_manifest(dataset: Path, edit) -> None:
    """Changes the values of `dataset.json`, and its checksum with them."""
    values = json.loads((dataset / "dataset.json").read_text())
    edit(values)
    del values["checksum"]
    values["checksum"] = manifest.content_checksum(values)
    (dataset / "dataset.json").write_bytes(manifest.serialise(values))


def rewrite_shard(dataset: Path, change, split: str = "train", index: int = 1) -> str:
    """Replaces the records of a shard by changed ones and its promises by true ones: all checksums are right.

    Returns its path.
    """
    loaded = manifest.load(str(dataset))
    path = loaded.shard_paths(str(dataset), split)[index]
    with open(path, "rb") as stream:
        payloads = [payload for _, payload in tfrecord.read_records(stream, "x")]
    first = example_pb2.Example.FromString(payloads[0])
    change(first.features.feature)
    data = framed(first.SerializeToString(deterministic=True), *payloads[1:])
    Path(path).write_bytes(data)
    info = loaded.splits[split]
    shards = list(info.shards)
    shards[index] = replace(shards[index], bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    splits = {**loaded.splits, split: replace(info, shards=tuple(shards))}
    manifest.write(replace(loaded, splits=splits), str(dataset))
    return path


def set_value(name, value):
    """Returns a change of a record for `rewrite_shard`: a feature has this one value."""

    def change(feature):
        kind = feature[name].WhichOneof("kind")
        getattr(feature[name], kind).value[:] = [value]

    return change

"""Records of strangers: the checksums of the shard are right, and what is in it is not what an ingest writes."""

from __future__ import annotations

from pathlib import Path

from tensorflow.core.example import example_pb2

from beam_jobs import tables, tfrecord


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
            stream.writelines(tfrecord.frame(example.SerializeToString()))
    table = str(dataset / "images.parquet")
    rows = tables.read(table).to_pylist()
    places = [moved.get((row["split"], row["shard"], row["offset"]), row["offset"]) for row in rows]
    tables.write(table, [{**row, "offset": place} for row, place in zip(rows, places, strict=True)], tables.IMAGES)
    return str(path)

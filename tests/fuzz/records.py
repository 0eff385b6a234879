"""TFRecord framing, the Example inside, and what `verify` and training make of one that is not ours."""

from __future__ import annotations

import contextlib
import io

from google.protobuf.message import DecodeError

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs import manifest, record, tfrecord, verify_record
    from beam_jobs.errors import CorruptDataset
    from trainer.content import content_problem

_MANIFEST = manifest.Manifest(
    source="photos",
    options={},
    options_digest="",
    label_kind="single",
    labels=("china", "flower"),
    splits={},
    counts=manifest.ImageCounts(found=0, written=0),
    channels=None,
    producer={},
    tables={},
)


def target(data: bytes) -> None:
    """Takes the input for a shard, and for the payload of a record whose checksums are right."""
    _shard(data)
    framed = b"".join(tfrecord.frame(data))
    assert list(tfrecord.read_records(io.BytesIO(framed), "framed")) == [(0, data)]
    with contextlib.suppress(DecodeError):
        record.decode(data)
    verify_record.check(data, _MANIFEST)
    content_problem(data, "china/000.jpg", decode=True)


def _shard(data: bytes) -> None:
    end, told = 0, ""
    try:
        for offset, payload in tfrecord.read_records(io.BytesIO(data), "shard"):
            assert offset == end, "a record does not start where the last one ends"
            assert tfrecord.read_record_at(io.BytesIO(data), "shard", offset) == payload
            end = offset + len(payload) + tfrecord.OVERHEAD
        assert end == len(data), "bytes after the last record went unseen"
    except CorruptDataset as error:
        told = str(error)
    assert not told or f"offset {end}" in told, told


if __name__ == "__main__":
    drive.main(target)

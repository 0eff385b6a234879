"""TFRecord framing, the Example inside, and what `verify` and training make of one that is not ours."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.dataset import manifest, record, record_check, tfrecord
    from beam_jobs.errors import BadImage, CorruptDataset
    from beam_jobs.images import header_check
    from beam_jobs.images.decode import decode_checked
    from beam_jobs.options import ImageLimits
    from trainer.input.corrupt_records import content_problem

_LIMITS = ImageLimits(max_pixels=1 << 22, min_side_px=1)
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
    record_check.check_records([data], _MANIFEST, _sizes)
    content_problem(data, "china/000.jpg", decode=True)


def _sizes(files: Sequence[bytes]) -> list[tuple[int, int] | BadImage]:
    """Decodes in this process, where the search sees it."""
    return [_size(data) for data in files]


def _size(data: bytes) -> tuple[int, int] | BadImage:
    try:
        header_check.check_header(data, _LIMITS)
        height, width = decode_checked(data).shape[:2]
    except BadImage as bad:
        return bad
    return height, width


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

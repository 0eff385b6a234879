from __future__ import annotations

import io

import pytest

from beam_jobs.dataset import tfrecord
from beam_jobs.errors import CorruptDataset
from tests.make_images import flipped
from tests.rewrite_records import framed

PAYLOADS = [b"first", b"", b"\x00\xff" * 9]
STARTS = [0, 21, 37]  # 16 bytes around each payload
END = 71
DATA = framed(*PAYLOADS)


def read(data: bytes, **options) -> list[tuple[int, bytes]]:
    return list(tfrecord.read_records(io.BytesIO(data), "x.tfrecord", **options))


def test_tensorflow_frames_and_reads_records_the_same(tmp_path):
    import tensorflow as tf

    path = tmp_path / "theirs.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    assert path.read_bytes() == DATA
    assert read(path.read_bytes()) == list(zip(STARTS, PAYLOADS, strict=True))
    assert [item.numpy() for item in tf.data.TFRecordDataset(str(path))] == PAYLOADS


def test_a_payload_in_parts_is_framed_as_a_whole_one():
    assert b"".join(tfrecord.frame(b"fi", b"", b"rst")) == b"".join(tfrecord.frame(b"first"))


@pytest.mark.parametrize("length", [1, 12, 20, END - 1])
def test_a_file_that_ends_inside_a_record_is_corrupt(length):
    broken = max(start for start in STARTS if start <= length)
    with pytest.raises(CorruptDataset, match=rf"^x\.tfrecord ends inside the record at offset {broken}: \d+ of \d+ "):
        read(DATA[:length])


@pytest.mark.parametrize("position", [0, 11, 12, END - 1])
def test_every_flipped_byte_is_found_with_its_record(position):
    broken = max(start for start in STARTS if start <= position)
    what = "length" if position - broken < 12 else "record"
    with pytest.raises(CorruptDataset, match=rf"^x\.tfrecord has a corrupt {what} at offset {broken};"):
        read(flipped(DATA, position))


def test_a_length_over_the_limit_is_not_believed_even_with_a_right_checksum():
    assert read(framed(b"12345"), max_bytes=5) == [(0, b"12345")]
    with pytest.raises(CorruptDataset, match="corrupt length at offset 0"):
        read(framed(b"123456"), max_bytes=5)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (1, "^x.tfrecord has a corrupt length at offset 1;"),
        (60, "^x.tfrecord ends inside the record at offset 60: 11 of 12 header bytes$"),
        (END, "^x.tfrecord ends before offset 71; the image table lists a record there$"),
    ],
)
def test_no_record_is_read_where_none_starts(offset, message):
    with pytest.raises(CorruptDataset, match=message):
        tfrecord.read_record_at(io.BytesIO(DATA), "x.tfrecord", offset)

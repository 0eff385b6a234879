from __future__ import annotations

import pytest

from beam_jobs.sources.image_reader import Slice


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "gs://bucket/ü 1.zip"},
        {"path": ""},
        {"path": "12:x", "feature": "käse:5:"},
        {"offset": 1 << 60, "length": 0},
        {"method": "example", "feature": "f", "compression": "gzip"},
    ],
)
def test_a_slice_is_read_back_from_its_text(fields):
    piece = Slice(**{"method": "stored", "offset": 512, "length": 3, "path": "x.tar", **fields})
    assert Slice.parse(piece.text) == piece


def test_the_text_is_that_of_the_tables_on_disk():
    stored = Slice(method="stored", offset=512, length=99, path="shards/0.tar")
    assert stored.text == "stored:512:99:0:shards/0.tar"
    example = Slice(method="example", offset=12, length=9, path="x", feature="image/encoded", compression="gzip")
    assert example.text == "example+gzip:12:9:13:image/encodedx"


@pytest.mark.parametrize("text", ["", "stored:1:2:0", "stored:1:2:x:y", "pipe:1:2:0:x"])
def test_other_text_is_no_slice(text):
    with pytest.raises(ValueError, match="."):
        Slice.parse(text)

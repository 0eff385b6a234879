"""The graph reads the orientation of a file as the ingest does. The oracle is `read_header`."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import BadImage
from beam_jobs.images import header_formats
from beam_jobs.images.header_check import read_header
from tests.make_images import jpeg, png
from trainer.serving.export import read_orientation

READ = {
    kind: tf.function(
        lambda encoded, kind=kind: read_orientation(encoded, kind),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
    )
    for kind in ("jpeg", "png")
}


def block(order: str = "<", entries: tuple[tuple[int, int, int], ...] = ((0x0112, 3, 6),), start: int = 8) -> bytes:
    """An EXIF block with entries of tag, type and value."""
    mark = b"II*\x00" if order == "<" else b"MM\x00*"
    rows = b"".join(struct.pack(order + "HHIHH", tag, kind, 1, value, 0) for tag, kind, value in entries)
    return (
        mark + struct.pack(order + "I", start) + b"\x00" * (start - 8) + struct.pack(order + "H", len(entries)) + rows
    )


def segment(payload: bytes, marker: int = 0xE1, before: bytes = b"") -> bytes:
    return before + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def in_jpeg(*segments: bytes) -> bytes:
    plain = jpeg(0, 16, 16)
    return plain[:2] + b"".join(segments) + plain[2:]


def in_png(*chunks: tuple[bytes, bytes], at: int = 33) -> bytes:
    plain = png(0, 16, 16)
    framed = [struct.pack(">I", len(data)) + kind + data + b"\x00" * 4 for kind, data in chunks]
    return plain[:at] + b"".join(framed) + plain[at:]


BLOCKS = {
    "little": block(),
    "big": block(">"),
    "later": block(entries=((0x010F, 2, 1), (0x0110, 2, 1), (0x0112, 3, 8))),
    "further": block(start=40),
    "twice": block(entries=((0x0112, 3, 3), (0x0112, 3, 6))),
    "long": block(entries=((0x0112, 4, 6),)),
    "nine": block(entries=((0x0112, 3, 9),)),
    "empty": block(entries=()),
    "cut": block()[:-4],  # right behind the value
    "cut_value": block()[:-5],
    "mark": b"XX*\x00" + block()[4:],
    "short": b"II*\x00\x08",
    "beyond": b"II*\x00\xff\xff\xff\xff" + block()[8:],
    "forged_count": block()[:8] + b"\xff\xff" + block()[10:],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_read_as_the_ingest_reads_it(name):
    data = {"jpeg": in_jpeg(segment(header_formats.EXIF_PREFIX + BLOCKS[name])), "png": in_png((b"eXIf", BLOCKS[name]))}
    for kind, encoded in data.items():
        assert int(READ[kind](tf.constant(encoded))) == read_header(encoded).orientation


SIX, THREE = header_formats.EXIF_PREFIX + block(), header_formats.EXIF_PREFIX + block(entries=((0x0112, 3, 3),))
FILES = {
    "after_another_app1": in_jpeg(segment(b"http://ns.adobe.com/xap/1.0/\x00"), segment(SIX)),
    "the_first_counts": in_jpeg(segment(THREE), segment(SIX)),
    "behind_fill_bytes": in_jpeg(segment(SIX, before=b"\xff\xff\xff")),
    "behind_garbage": in_jpeg(segment(b"JFIF", 0xE0), segment(SIX, before=b"garbage\xff\x00")),
    "behind_a_bare_marker": in_jpeg(segment(SIX, before=b"\xff\x01\xff\xd0")),
    "in_another_segment": in_jpeg(segment(SIX, marker=0xE2)),
    "behind_the_scan": jpeg(0, 16, 16)[:-2] + segment(SIX) + b"\xff\xd9",
    "the_last_chunk_counts": in_png((b"eXIf", block()), (b"eXIf", THREE[6:])),
    "in_another_chunk": in_png((b"tEXt", b"a\x00" + block())),
    "behind_the_pixels": in_png((b"eXIf", block()), at=-12),
    "behind_the_end": png(0, 16, 16) + in_png((b"eXIf", block()))[33:],
}


@pytest.mark.parametrize("name", FILES)
def test_a_block_is_found_where_the_ingest_finds_it(name):
    encoded = FILES[name]
    header = read_header(encoded)
    assert int(READ[header.format](tf.constant(encoded))) == header.orientation


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_damaged_files_that_the_ingest_reads_have_its_orientation(kind):
    random = np.random.default_rng(5)
    whole = in_jpeg(segment(b"JFIF", 0xE0), segment(SIX)) if kind == "jpeg" else in_png((b"eXIf", block()))
    seen = set()
    for _ in range(400):
        data = bytearray(whole)
        for position in random.integers(2 if kind == "jpeg" else 33, 80, random.integers(1, 4)):
            data[position] = random.choice([0, 1, 6, 8, 0xFF, random.integers(256)])
        try:
            header = read_header(bytes(data))
        except BadImage:
            continue
        if header.format == kind:
            assert int(READ[kind](tf.constant(bytes(data)))) == header.orientation, bytes(data[:80])
            seen.add(header.orientation)
    assert {1, 6} <= seen

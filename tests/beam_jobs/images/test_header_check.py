from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.images.header_check import UPRIGHT, Header, check_header, open_image, read_header, sniff
from beam_jobs.options import ImageLimits
from beam_jobs.rejects import RejectReason
from tests.beam_jobs import make_hostile_images as make
from tests.beam_jobs.make_hostile_images import GREY, PIXELS, SIXTEEN
from tests.make_images import encode, forged_png, jpeg, png, rotated_jpeg

LIMITS = ImageLimits()
JPEG, PNG = jpeg(), png()
ALPHA = np.dstack([PIXELS, np.full((60, 80), 255, np.uint8)])
PROGRESSIVE = jpeg(progressive=True)


def header(kind: str, mode: str, **fields) -> Header:
    return Header(**{"format": kind, "height": 60, "width": 80, "mode": mode, **fields})


HEADERS = {
    "grey jpeg": (encode(GREY, "JPEG"), header("jpeg", "L")),
    "progressive jpeg": (PROGRESSIVE, header("jpeg", "RGB", progressive=True, scans=10)),
    "several pictures in a jpeg": (make.animated("MPO"), header("jpeg", "RGB")),
    "2 bit png": (make.raw_png(GREY >> 6, 2, 0), header("png", "L", bit_depth=2)),
    "16 bit png": (make.raw_png(SIXTEEN, 16, 0), header("png", "I;16", bit_depth=16)),
    "palette png": (make.raw_png(GREY >> 6, 2, 3, make.palette()[1]), header("png", "P", bit_depth=2)),
    "grey png with alpha": (make.raw_png(ALPHA[..., 2:], 8, 4), header("png", "LA", has_alpha=True)),
    "png with a clear colour": (
        make.before_pixels(PNG, make.chunk(b"tRNS", bytes(6))),
        header("png", "RGB", has_alpha=True),
    ),
    "animated png": (make.animated("PNG"), header("png", "RGB", frames=3)),
    "animated gif": (make.animated("GIF"), header("gif", "P", frames=2)),
    "16 bit tiff": (encode(Image.fromarray(SIXTEEN), "TIFF"), header("tiff", "I;16", bit_depth=16)),
    "tiff of three pages": (make.animated("TIFF"), header("tiff", "RGB", frames=2)),
    "rotated webp": (make.with_orientation("WEBP", 5), header("webp", "RGB", orientation=5)),
    "animated webp": (make.animated("WEBP"), header("webp", "RGB", frames=3)),
}


@pytest.mark.parametrize(("data", "expected"), HEADERS.values(), ids=HEADERS)
def test_the_header_tells_what_the_file_holds(data, expected):
    assert read_header(data) == expected
    assert check_header(data, LIMITS) == expected
    assert sniff(data) == expected.format
    with open_image(data, expected.format) as image:  # what Pillow says of it
        assert {image.width, image.height} == {80, 60}
        assert image.mode == expected.mode


REJECTED = {
    "text": (
        b"hello world",
        RejectReason.NOT_AN_IMAGE,
        "^it starts with b'hello wo'; supported formats are jpeg, png, gif",
    ),
    "photo of a phone": (
        b"\0\0\0\x18ftypheic" + bytes(9),
        RejectReason.NOT_AN_IMAGE,
        "^it is HEIC, which is not supported",
    ),
    "many scans": (make.many_scans(100, 64), RejectReason.TOO_LARGE, "^64x64 pixels in 101 scans; 100 are allowed$"),
    "png of 900 Mpx": (forged_png(30_000), RejectReason.TOO_LARGE, "^30000x30000 pixels; max_side_px"),
    "png of 49 Mpx": (forged_png(7000), RejectReason.FORGED_SIZE, "^7000x7000 pixels cannot fit in 12700"),
    "jpeg of 49 Mpx": (make.with_frame(JPEG, height=7000, width=7000), RejectReason.FORGED_SIZE, "^7000x7000 pixels"),
    "gif of 4 Gpx": (make.gif((65_535, 65_535)), RejectReason.TOO_LARGE, "4294836225 pixels"),
}
BAD_HEADERS = {
    "three bytes": (JPEG[:3], "^jpeg: it ends at 3 bytes, before its first scan$"),
    "cut in its tables": (JPEG[:200], "^jpeg: the segment at byte 177 is truncated"),
    "ends at once": (JPEG[:20] + b"\xff\xd9\x00\x02", "^jpeg: the segment at byte 20"),
    "segment of no length": (make.after_soi(JPEG, b"\xff\xe0\x00\x01"), "^jpeg: the segment at"),
    "scan of no length": (
        make.without_segments(JPEG, 0xC4)[:-2].partition(b"\xff\xda")[0] + b"\xff\xda\x00\x02",
        "^jpeg: the segment at byte",
    ),
    "12 bits": (make.with_frame(JPEG, precision=12), "^jpeg: 12 bits per sample; 8 can be decoded$"),
    "2 components": (make.with_components(2), "^jpeg: 2 components; 1, 3 and 4 can be decoded$"),
    "no rows": (make.with_frame(JPEG, height=0), "^jpeg: 80x0 pixels$"),
    "no frame": (make.without_segments(JPEG, 0xC0), "^jpeg: its first scan precedes the frame"),
    "short frame": (make.after_soi(JPEG, make.segment(0xC0, b"123")), "^jpeg: its frame header has only 3 bytes"),
    "many segments": (
        make.after_soi(JPEG, make.segment(0xE0, b"") * 4096),
        "^jpeg: more than 4096 segments before the first scan$",
    ),
    "many segments between scans": (
        PROGRESSIVE[:-2] + make.segment(0xFE, b"") * 4096 + PROGRESSIVE[-2:],
        "^jpeg: more than 4096 segments between its scans$",
    ),
    "png cut in its header": (PNG[:20], "^png: it ends at 20 bytes, within its header$"),
    "png that starts with text": (
        make.PNG_START + make.chunk(b"tEXt", b"a\x00b") + PNG[8:],
        "^png: its first chunk is b'tEXt' of 3 bytes, expected IHDR of 13 bytes$",
    ),
    "png of 3 bits": (make.raw_png(PIXELS, 3, 2), "^png: colour type 2 does not allow 3 bits per sample$"),
    "png of no size": (forged_png(0), "^png: 0x0 pixels$"),
    "png chunk beyond the end": (
        make.before_pixels(PNG, struct.pack(">I", 1 << 30) + b"tEXt"),
        "^png: a chunk of 1073741824 bytes at byte 33 of 12708 bytes$",
    ),
    "many chunks": (make.before_pixels(PNG, make.chunk(b"teXt", b"") * 65_536), "^png: more than 65536 chunks$"),
    "gif with many blocks": (make.gif(before=b"!\xfe" + b"\x01a" * 4097), "^gif: more than 4096 blocks"),
    "gif with many blocks in its image": (
        make.gif()[:-2] + b"\x01a" * 250_000 + b"\x00;",
        "^gif: more than 250000 blocks",
    ),
    "tiff tags": (make.tiff_tag_bomb(10_000, 3), "^tiff: its tags claim more than the"),
}
REJECTED |= {name: (data, RejectReason.BAD_HEADER, detail) for name, (data, detail) in BAD_HEADERS.items()}


@pytest.mark.parametrize(("data", "reason", "detail"), REJECTED.values(), ids=REJECTED)
def test_what_the_header_forbids_is_rejected_with_its_reason(data, reason, detail):
    with pytest.raises(BadImage, match=f"^{reason.value}: ") as caught:
        check_header(data, LIMITS)
    assert caught.value.reason is reason
    assert re.search(detail, caught.value.detail), caught.value.detail


AT_THE_LIMIT = {
    "max_bytes": (len(JPEG), len(JPEG) - 1, RejectReason.TOO_MANY_BYTES),
    "max_pixels": (4800, 4799, RejectReason.TOO_LARGE),
    "max_side_px": (80, 79, RejectReason.TOO_LARGE),
    "min_side_px": (60, 61, RejectReason.TOO_SMALL),
    "max_aspect": (80 / 60, 1.33, RejectReason.BAD_ASPECT),
}


@pytest.mark.parametrize(("name", "allowed", "crossed", "reason"), [(k, *v) for k, v in AT_THE_LIMIT.items()])
def test_a_limit_is_kept_to_the_last_pixel_and_byte(name, allowed, crossed, reason):
    assert check_header(JPEG, replace(LIMITS, **{name: allowed})).width == 80
    with pytest.raises(BadImage, match=f"^{reason.value}: .*{name} is {crossed}") as caught:
        check_header(JPEG, replace(LIMITS, **{name: crossed}))
    assert caught.value.reason is reason


def test_an_animated_webp_may_have_a_third_of_the_pixels():
    data = make.animated("WEBP")
    assert check_header(data, replace(LIMITS, max_pixels=3 * 4800)).frames == 3
    with pytest.raises(BadImage, match="4799, a third of max_pixels"):
        check_header(data, replace(LIMITS, max_pixels=3 * 4800 - 1))


def test_a_progressive_jpeg_may_be_smaller_than_a_baseline_one():
    forged = make.with_frame(PROGRESSIVE, height=7000, width=7000)
    assert check_header(forged, LIMITS) == header("jpeg", "RGB", height=7000, width=7000, progressive=True, scans=10)


# What only a reader of its own can get right.


def test_scans_are_counted_up_to_the_end_of_the_picture():
    assert read_header(PROGRESSIVE + b"\x00\x02" + b"\xff\xda\x00\x02" * 500).scans == 10
    assert read_header(PROGRESSIVE[:-2]).scans == 10
    assert read_header(JPEG + b"\xff\xda" * 500).scans == 1
    assert read_header(make.many_scans(7, 64)).scans == 8
    hidden = make.many_scans(7, 64).replace(
        b"\xff\xda\x00\x08\x01\x01\x00\x01", b"\xff\x01\xff\xda\x00\x08\x01\x01\x00\x01"
    )
    assert read_header(hidden).scans == 8  # behind marks that have no length


def test_bytes_between_segments_are_passed_over_as_decoders_do():
    for junk in (bytes(100_000), b"\xff" * 100_000, b"\xff\x00" * 50_000, b"\xff\xd0" * 100):
        assert read_header(make.after_soi(JPEG, b"\xff\xe0\x00\x02", junk)) == read_header(JPEG)


@pytest.mark.parametrize("order", ["<", ">"], ids=["II", "MM"])
def test_the_orientation_is_read_in_either_byte_order(order):
    for turned in range(1, 9):
        entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, turned, 0)
        assert read_header(make.exif_jpeg(make.exif(entry, 1, order=order))).orientation == turned


BROKEN_EXIF = {
    "no byte order": b"XX*\x00" + bytes(20),
    "directory beyond the end": b"II*\x00\xff\xff\xff\x7f",
    "directory cut off": make.exif(b"", 3),
    "zero": make.orientation_tag(0),
    "text": make.exif(struct.pack("<HHI4s", 0x0112, 2, 2, b"6\x00\x00\x00"), 1),
}


@pytest.mark.parametrize("block", BROKEN_EXIF.values(), ids=BROKEN_EXIF)
def test_without_an_orientation_that_can_be_read_an_image_is_upright(block):
    assert read_header(make.exif_jpeg(block)).orientation == UPRIGHT
    assert read_header(make.before_pixels(PNG, make.chunk(b"eXIf", block))).orientation == UPRIGHT


def test_only_the_first_exif_segment_counts():
    block = make.segment(0xE1, b"Exif\x00\x00" + make.orientation_tag(3))
    assert read_header(make.after_soi(rotated_jpeg(6), block)).orientation == 3
    assert read_header(make.after_soi(JPEG, make.segment(0xE1, b"http://ns.adobe.com/"), block)).orientation == 3


INFLATED = {
    "zTXt": make.ztxt,
    "iCCP": make.iccp,
    "iTXt": lambda size: make.chunk(b"iTXt", b"a\x00\x01\x00en\x00b\x00" + zlib.compress(bytes(size), 9)),
}


@pytest.mark.parametrize("make_chunk", INFLATED.values(), ids=INFLATED)
def test_texts_and_profiles_may_inflate_to_8_mebibytes_in_all(make_chunk):
    limit = 8 << 20
    for place in (make.before_pixels, make.before_end):
        assert read_header(place(PNG, make_chunk(limit // 2), make_chunk(limit // 2))) == read_header(PNG)
        with pytest.raises(
            BadImage, match="^bad_header: png: its texts and profiles inflate to more than 8388608 bytes$"
        ):
            read_header(place(PNG, make_chunk(limit // 2), make_chunk(limit // 2 + 1)))


def test_a_text_that_is_not_compressed_or_damaged_inflates_to_nothing():
    plain = make.chunk(b"iTXt", b"a\x00\x00\x00en\x00b\x00" + bytes(10_000_000))
    damaged = make.chunk(b"zTXt", b"a\x00\x00" + b"nothing that zlib wrote" * 1000)
    assert read_header(make.before_pixels(PNG, plain, damaged)) == read_header(PNG)


def test_a_gif_is_animated_from_the_second_image_on():
    for count, frames in ((1, 1), (2, 2), (3, 2)):
        assert read_header(make.gif(frames=count)).frames == frames
    assert read_header(make.gif(before=b"!\xfe\x03abc\x00")).frames == 1
    assert read_header(make.gif()[:-1]).frames == 1  # without its end mark
    assert read_header(make.gif() + make.gif()).frames == 1  # what comes behind it
    assert read_header(encode(PIXELS, "GIF")[:2000]).frames == 1  # cut off


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_the_tags_of_a_tiff_may_hold_4096_fractions():
    assert read_header(make.tiff_fractions(4096)).format == "tiff"
    with pytest.raises(BadImage, match="^bad_header: tiff: its tags hold more than 4096 fractions$"):
        read_header(make.tiff_fractions(4097))


@pytest.mark.parametrize("tag", [322, 323])
def test_the_tiles_of_a_tiff_may_have_a_side_of_4096(tag):
    tile = {322: (4, (16,)), 323: (4, (16,)), 324: (4, (8,)), 325: (4, (9,))}
    assert read_header(make.tiff(bytes(9), 60, 80, tile | {tag: (4, (4096,))})).format == "tiff"
    for value in ((4, (4097,)), (3, (4112,))):
        with pytest.raises(
            BadImage, match=r"^bad_header: tiff: tiles with a side of 4\d+ pixels; up to 4096 are decoded$"
        ):
            read_header(make.tiff(bytes(9), 60, 80, tile | {tag: value}))


def test_a_tag_of_a_named_directory_counts_as_well():
    block = make.exif(struct.pack("<HHII", 0x9000, 7, 1_000_000, 8), 1)[8:]
    data = make.tiff(GREY.tobytes(), 60, 80, {34665: (4, (8,))})
    start = len(data)
    for where, refused in ((start, True), (start + 100_000, False)):
        pointed = make.tiff(GREY.tobytes(), 60, 80, {34665: (4, (where,))}) + block
        if refused:
            with pytest.raises(BadImage, match="^bad_header: tiff: its tags claim more"):
                read_header(pointed)
        else:
            assert read_header(pointed).format == "tiff"
    loop = make.tiff(GREY.tobytes(), 60, 80, {34665: (4, (start - 12 * 10 - 6,))})
    with pytest.raises(BadImage, match="^bad_header: tiff: its tags claim more"):
        read_header(loop)

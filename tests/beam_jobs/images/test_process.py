from __future__ import annotations

import hashlib
import io
import re
from dataclasses import asdict, replace

import google_crc32c
import numpy as np
import pytest
from PIL import Image, ImageOps

from beam_jobs.errors import BadImage
from beam_jobs.images import process
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import RejectReason
from tests.beam_jobs.make_hostile_images import PIXELS, SIXTEEN, with_orientation
from tests.make_images import crop, encode, flipped, jpeg, photograph, pixels_of, png, rotated_jpeg

LIMITS = ImageLimits()
JPEG, PNG = jpeg(), png()
PALETTE = Image.fromarray(PIXELS).quantize(16)
OPAQUE = np.dstack([PIXELS, np.full((60, 80), 255, np.uint8)])
HALF_CLEAR = OPAQUE.copy()
HALF_CLEAR[:30, :, 3] = 0
COPY = PixelOptions()


def resize(side: int, **options) -> PixelOptions:
    return PixelOptions(policy="resize", side_px=side, **options)


def raw(side: int) -> PixelOptions:
    return PixelOptions(policy="raw", side_px=side)


def examine(data: bytes, pixels: PixelOptions = COPY, limits: ImageLimits = LIMITS, facts: str = "all"):
    """Examines and asserts what holds for every image that is accepted."""
    encoded, known = process.examine(data, limits, pixels, facts)
    stored = pixels_of(encoded, known)
    assert stored.shape == (known.height, known.width, 3)
    assert known.bytes == len(encoded)
    assert known.sha256 == hashlib.sha256(encoded).hexdigest()
    assert known.source_sha256 == hashlib.sha256(data).hexdigest()
    assert known.crc32c == google_crc32c.value(encoded)
    if facts == "all":
        flat = stored.reshape(-1, 3).astype(float)
        np.testing.assert_allclose(known.mean_rgb, flat.mean(0), rtol=1e-6)
        np.testing.assert_allclose(known.var_rgb, flat.var(0), rtol=1e-6, atol=1e-9)
    return encoded, known


ACCEPTED_AS_THEY_ARE = {
    "jpeg with trailing bytes": (JPEG + b"trailing" * 9, "jpeg", 3),
    "opaque grey png with alpha": (encode(Image.fromarray(OPAQUE).convert("LA"), "PNG"), "png", 1),
}


@pytest.mark.parametrize(("data", "kind", "channels"), ACCEPTED_AS_THEY_ARE.values(), ids=ACCEPTED_AS_THEY_ARE)
def test_what_the_trainer_can_read_is_stored_as_it_is(data, kind, channels):
    encoded, facts = examine(data)
    assert encoded is data
    assert (facts.format, facts.source_format, facts.channels, facts.normalised) == (kind, kind, channels, "")
    assert (facts.height, facts.width) == (facts.source_height, facts.source_width) == (60, 80)
    assert facts.sha256 == facts.source_sha256


NORMALISED = {
    "grey alpha png": (encode(Image.fromarray(HALF_CLEAR).convert("LA"), "PNG"), "png", "png", 1, "alpha"),
    "webp": (encode(PIXELS, "WEBP"), "jpeg", "webp", 3, "format"),
    "sixteen bit tiff": (encode(Image.fromarray(SIXTEEN), "TIFF"), "png", "tiff", 1, "format+sixteen_bit"),
}


@pytest.mark.parametrize(("data", "kind", "source", "channels", "reasons"), NORMALISED.values(), ids=NORMALISED)
def test_what_the_trainer_cannot_read_well_is_normalised(data, kind, source, channels, reasons):
    encoded, facts = examine(data)
    assert (facts.format, facts.source_format, facts.channels, facts.normalised) == (kind, source, channels, reasons)
    assert (facts.height, facts.width) == (facts.source_height, facts.source_width) == (60, 80)
    assert facts.sha256 != facts.source_sha256
    again, nothing_more = process.examine(encoded, LIMITS)
    assert (again, nothing_more.normalised) == (encoded, "")


LARGE_JPEG = encode(photograph(), "JPEG", quality=90)
REJECTED = [
    (JPEG[: len(JPEG) // 2], COPY, "all", "^jpeg::Uncompress failed"),
    (JPEG[:-2], resize(20), "basic", "^jpeg::Uncompress failed"),
    (JPEG[:-10], raw(20), "all", "^jpeg::Uncompress failed"),
    (LARGE_JPEG[:-2000], COPY, "basic", "^jpeg::Uncompress failed"),  # decoded at a smaller size
    (PNG[: len(PNG) // 2], raw(20), "basic", "^Invalid PNG data, size"),
    (PNG[:-12], COPY, "basic", "^Invalid PNG data, size"),
    (flipped(PNG, len(PNG) // 2), resize(20), "all", "^Invalid PNG data, size"),
    (encode(PIXELS, "BMP")[:5000], resize(20), "all", "^bmp: .*truncated"),
]


@pytest.mark.parametrize(("data", "pixels", "facts", "detail"), REJECTED)
def test_what_cannot_be_decoded_is_rejected_whatever_is_made_of_it(data, pixels, facts, detail):
    with pytest.raises(BadImage, match="^undecodable: ") as caught:
        process.examine(data, LIMITS, pixels, facts)
    assert caught.value.reason is RejectReason.UNDECODABLE
    assert re.search(detail, caught.value.detail), caught.value.detail


@pytest.mark.parametrize("pixels", [COPY, resize(20)], ids=["copy", "resize"])
def test_metadata_does_not_survive_normalisation(pixels):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "taken at home"
    data = jpeg(exif=exif.tobytes())
    assert b"taken at home" in data
    assert b"taken at home" not in examine(data, pixels)[0]


# The policy `resize`.

KINDS = {
    "jpeg": (LARGE_JPEG, "jpeg", 3),
    "png": (encode(photograph(), "PNG"), "png", 3),
    "grey jpeg": (encode(photograph()[..., 1], "JPEG", quality=90), "jpeg", 1),
    "grey png": (encode(photograph()[..., 1], "PNG"), "png", 1),
    "webp": (encode(photograph(), "WEBP", quality=90), "jpeg", 3),
    "bmp": (encode(photograph(), "BMP"), "png", 3),
}


@pytest.mark.parametrize(
    ("name", "fit"), zip(KINDS, ("short", "inside", "inside", "short", "short", "inside"), strict=True)
)
def test_a_large_image_becomes_smaller_and_stays_what_it_is(name, fit):
    data, kind, channels = KINDS[name]
    size = (100, 150) if fit == "short" else (67, 100)
    encoded, facts = examine(data, resize(100, fit=fit, quality=95))
    assert (facts.format, facts.channels) == (kind, channels)
    assert (facts.height, facts.width) == size
    assert (facts.source_height, facts.source_width) == (427, 640)
    assert facts.normalised == ("format+resized" if facts.source_format in ("webp", "bmp") else "resized")
    with Image.open(io.BytesIO(encoded)) as image:
        assert (image.format.lower(), image.mode) == (kind, "RGB" if channels == 3 else "L")
    source = photograph() if channels == 3 else photograph()[..., 1]
    best = Image.fromarray(source).resize(size[::-1], Image.Resampling.LANCZOS).convert("RGB")
    assert np.abs(pixels_of(encoded, facts) - np.asarray(best, dtype=float)).mean() < 6


@pytest.mark.parametrize(("data", "options"), [(JPEG, resize(60)), (PNG, resize(80, fit="inside"))])
def test_an_image_that_is_small_enough_is_stored_untouched(data, options):
    encoded, facts = examine(data, options)
    assert encoded is data
    assert facts == examine(data)[1]


def test_an_image_that_is_small_enough_is_normalised_all_the_same():
    encoded, facts = examine(rotated_jpeg(6), resize(4096))
    assert facts.normalised == "exif_orientation"
    assert (encoded, facts) == examine(rotated_jpeg(6))


@pytest.mark.parametrize(("orientation", "kind"), enumerate(["JPEG", "PNG", "TIFF", "WEBP"] * 2, start=1))
def test_a_resized_image_is_upright(kind, orientation):
    data = with_orientation(kind, orientation)
    encoded, facts = examine(data, resize(30, quality=95))
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    assert (facts.source_width, facts.source_height) == upright.size
    assert (facts.height, facts.width) == ((30, 40) if orientation < 5 else (40, 30))
    expected = np.asarray(upright.resize((facts.width, facts.height), Image.Resampling.BOX), dtype=float)
    assert np.abs(pixels_of(encoded, facts) - expected).mean() < 7  # the wrong way round it is over 20
    assert ("exif_orientation" in facts.normalised) == (orientation != 1)


def test_quality_is_that_of_the_resized_jpeg():
    data = KINDS["jpeg"][0]
    sizes = [len(examine(data, resize(200, quality=quality))[0]) for quality in (30, 60, 90)]
    assert sizes[0] < sizes[1] < sizes[2]


# The policy `raw`.


@pytest.mark.parametrize("name", ["jpeg", "grey png", "webp"])
def test_raw_pixels_are_a_square_from_the_centre(name):
    data, _, channels = KINDS[name]
    encoded, facts = examine(data, raw(100))
    assert len(encoded) == 100 * 100 * 3
    assert (facts.format, facts.channels, facts.height, facts.width) == ("raw", 3, 100, 100)
    assert (facts.source_height, facts.source_width) == (427, 640)
    assert facts.normalised == ("format+raw" if facts.source_format in ("webp", "bmp") else "raw")
    source = Image.fromarray(photograph() if channels == 3 else photograph()[..., 1]).convert("RGB")
    best = source.resize((150, 100), Image.Resampling.LANCZOS).crop((25, 0, 125, 100))
    assert np.abs(pixels_of(encoded, facts) - np.asarray(best, dtype=float)).mean() < 6


def test_raw_pixels_of_the_right_size_are_the_pixels():
    data = png(height=24, width=24)
    assert (pixels_of(*examine(data, raw(24))) == crop(0, 24, 24)).all()


# The facts.


WEBP, GIF = encode(PIXELS, "WEBP"), encode(PALETTE, "GIF", transparency=3)


@pytest.mark.parametrize(
    ("data", "pixels"),
    [(LARGE_JPEG, COPY), (LARGE_JPEG, raw(40)), (KINDS["grey png"][0], resize(100)), (WEBP, COPY), (GIF, raw(40))],
)
def test_basic_facts_are_all_facts_without_moments(data, pixels):
    encoded, known = examine(data, pixels)
    stored, basic = examine(data, pixels, facts="basic")
    assert stored == encoded
    assert basic.mean_rgb == basic.var_rgb == (0.0, 0.0, 0.0)
    left_out = {"mean_rgb", "var_rgb", "dhash"}
    assert {k: v for k, v in asdict(basic).items() if k not in left_out} == {
        k: v for k, v in asdict(known).items() if k not in left_out
    }
    assert ((basic.dhash ^ known.dhash) & (2**64 - 1)).bit_count() <= 8


def test_the_hash_of_basic_facts_is_the_same_up_to_the_size_from_which_less_is_decoded():
    for side in (64, 127):
        data = jpeg(height=side, width=side + 30)
        assert examine(data, facts="basic")[1].dhash == examine(data)[1].dhash


def test_basic_facts_find_near_duplicates():
    close = []
    for seed in range(20):
        pixels = crop(seed, 300, 400)
        smaller = np.asarray(Image.fromarray(pixels).resize((300, 225), Image.Resampling.LANCZOS))
        one, other = (examine(encode(photo, "JPEG", quality=85), facts="basic")[1].dhash for photo in (pixels, smaller))
        close.append(((one ^ other) & (2**64 - 1)).bit_count() <= 4)
    assert sum(close) >= 16


def test_the_limits_are_those_of_the_source():
    tight = replace(LIMITS, max_side_px=80, min_side_px=60)
    assert examine(JPEG, resize(20), tight)[1].height == 20
    for limits in (replace(tight, max_side_px=79), replace(tight, min_side_px=61)):
        with pytest.raises(BadImage, match="^too_"):
            process.examine(JPEG, limits, resize(20))

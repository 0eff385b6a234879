from __future__ import annotations

import hashlib
import io
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageOps

from beam_jobs import images
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import ImageLimits
from tests.make_images import crop, encode, flipped, forged_png, jpeg, png, rotated_jpeg

LIMITS = ImageLimits()
PIXELS = crop(0)
JPEG, PNG = jpeg(), png()
GREY = Image.fromarray(PIXELS).convert("L")
PALETTE = Image.fromarray(PIXELS).quantize(16)
SIXTEEN = (np.arange(4800).reshape(60, 80) * 13).astype(np.uint16)
OPAQUE = np.dstack([PIXELS, np.full((60, 80), 255, np.uint8)])
HALF_CLEAR = OPAQUE.copy()
HALF_CLEAR[:30, :, 3] = 0


def animated(kind: str) -> bytes:
    frames = [Image.fromarray(crop(seed)) for seed in range(3)]
    out = io.BytesIO()
    frames[0].save(out, kind, save_all=True, append_images=frames[1:])
    return out.getvalue()


def png_with_orientation(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(PIXELS, "PNG", exif=exif)


def forged_jpeg(side: int, **options) -> bytes:
    data = bytearray(jpeg(**options))
    start = data.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def rgb(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def examine(data: bytes, limits: ImageLimits = LIMITS):
    """Examines and asserts what holds for every image that is accepted."""
    encoded, facts = images.examine(data, limits)
    assert images.store(data, facts) == encoded
    assert images.decode_rgb(encoded).shape == (facts.height, facts.width, 3)
    assert facts.bytes == len(encoded)
    assert facts.sha256 == hashlib.sha256(encoded).hexdigest()
    assert facts.source_sha256 == hashlib.sha256(data).hexdigest()
    return encoded, facts


ACCEPTED_AS_THEY_ARE = {
    "jpeg": (JPEG, "jpeg", 3),
    "png": (PNG, "png", 3),
    "jpeg with trailing bytes": (JPEG + b"trailing" * 9, "jpeg", 3),
    "png with trailing bytes": (PNG + b"trailing", "png", 3),
    "progressive jpeg": (jpeg(progressive=True), "jpeg", 3),
    "grey jpeg": (encode(GREY, "JPEG"), "jpeg", 1),
    "grey png": (encode(GREY, "PNG"), "png", 1),
    "one bit png": (encode(GREY.convert("1"), "PNG"), "png", 1),
    "palette png": (encode(PALETTE, "PNG"), "png", 3),
    "opaque rgba png": (encode(OPAQUE, "PNG"), "png", 3),
    "orientation upright": (rotated_jpeg(1), "jpeg", 3),
    "orientation out of range": (rotated_jpeg(9), "jpeg", 3),
    "jpeg with a broken exif block": (jpeg(exif=b"Exif\x00\x00broken"), "jpeg", 3),
    "multi-picture jpeg": (animated("MPO"), "jpeg", 3),
}


@pytest.mark.parametrize(("data", "kind", "channels"), ACCEPTED_AS_THEY_ARE.values(), ids=ACCEPTED_AS_THEY_ARE)
def test_what_the_trainer_can_read_is_stored_as_it_is(data, kind, channels):
    encoded, facts = examine(data)
    assert encoded == data
    assert (facts.format, facts.source_format, facts.channels, facts.normalised) == (kind, kind, channels, "")
    assert (facts.height, facts.width) == (60, 80)
    assert facts.sha256 == facts.source_sha256


NORMALISED = {
    "cmyk jpeg": (encode(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"), "jpeg", "jpeg", 3, "colour_space"),
    "half clear png": (encode(HALF_CLEAR, "PNG"), "png", "png", 3, "alpha"),
    "grey alpha png": (encode(Image.fromarray(HALF_CLEAR).convert("LA"), "PNG"), "png", "png", 3, "alpha"),
    "clear palette png": (encode(PALETTE, "PNG", transparency=3), "png", "png", 3, "alpha"),
    "sixteen bit grey png": (encode(Image.fromarray(SIXTEEN), "PNG"), "png", "png", 1, "sixteen_bit"),
    "animated png": (animated("PNG"), "png", "png", 3, "animated"),
    "rotated png": (png_with_orientation(3), "png", "png", 3, "exif_orientation"),
    "gif": (encode(PIXELS, "GIF"), "png", "gif", 3, "format"),
    "clear gif": (encode(PALETTE, "GIF", transparency=3), "png", "gif", 3, "format+alpha"),
    "animated gif": (animated("GIF"), "png", "gif", 3, "format+animated"),
    "bmp": (encode(PIXELS, "BMP"), "png", "bmp", 3, "format"),
    "webp": (encode(PIXELS, "WEBP"), "jpeg", "webp", 3, "format"),
    "half clear webp": (encode(HALF_CLEAR, "WEBP"), "jpeg", "webp", 3, "format+alpha"),
    "animated webp": (animated("WEBP"), "jpeg", "webp", 3, "format+animated"),
    "tiff": (encode(PIXELS, "TIFF"), "png", "tiff", 3, "format"),
    "sixteen bit tiff": (encode(Image.fromarray(SIXTEEN), "TIFF"), "png", "tiff", 1, "format+sixteen_bit"),
}


@pytest.mark.parametrize(("data", "kind", "source", "channels", "reasons"), NORMALISED.values(), ids=NORMALISED)
def test_what_the_trainer_cannot_read_well_is_normalised(data, kind, source, channels, reasons):
    encoded, facts = examine(data)
    assert (facts.format, facts.source_format, facts.channels, facts.normalised) == (kind, source, channels, reasons)
    assert (facts.height, facts.width) == (60, 80)
    assert facts.sha256 != facts.source_sha256
    again, nothing_more = images.examine(encoded, LIMITS)
    assert (again, nothing_more.normalised) == (encoded, "")


REJECTED = {
    "empty": (b"", RejectReason.EMPTY_FILE, "^the file has 0 bytes$"),
    "text": (b"hello world", RejectReason.NOT_AN_IMAGE, "^it starts with b'hello wo'; known are jpeg, png, gif"),
    "wave in riff": (b"RIFF\x24\x00\x00\x00WAVEfmt ", RejectReason.NOT_AN_IMAGE, "^it starts with b'RIFF"),
    "two bytes of jpeg": (JPEG[:2], RejectReason.NOT_AN_IMAGE, r"xff\\xd8"),
    "three bytes of jpeg": (JPEG[:3], RejectReason.BAD_HEADER, "^jpeg: "),
    "jpeg cut in its tables": (JPEG[:200], RejectReason.BAD_HEADER, "^jpeg: Truncated"),
    "half a jpeg": (JPEG[: len(JPEG) // 2], RejectReason.UNDECODABLE, "^jpeg::Uncompress failed"),
    "jpeg cut near its end": (JPEG[:-10], RejectReason.UNDECODABLE, "^jpeg::Uncompress failed"),
    "jpeg without end marker": (JPEG[:-2], RejectReason.UNDECODABLE, "^jpeg::Uncompress failed"),
    "text that starts like a bmp": (b"BM, said the consultant, and left it there", RejectReason.BAD_HEADER, "^bmp: "),
    "png cut in its header": (PNG[:20], RejectReason.BAD_HEADER, "^png: Truncated"),
    "half a png": (PNG[: len(PNG) // 2], RejectReason.UNDECODABLE, "^Invalid PNG data, size"),
    "png without end chunk": (PNG[:-12], RejectReason.UNDECODABLE, "^Invalid PNG data, size"),
    "png with a flipped byte": (flipped(PNG, len(PNG) // 2), RejectReason.UNDECODABLE, "^Invalid PNG data, size"),
    "half a gif": (encode(PIXELS, "GIF")[:1500], RejectReason.UNDECODABLE, "^gif: .*truncated"),
    "half a bmp": (encode(PIXELS, "BMP")[:5000], RejectReason.UNDECODABLE, "^bmp: .*truncated"),
    "half a tiff": (encode(PIXELS, "TIFF")[:5000], RejectReason.UNDECODABLE, "^tiff: .*truncated"),
    "half a webp": (encode(PIXELS, "WEBP")[:500], RejectReason.BAD_HEADER, "^webp: "),
    "png of no size": (forged_png(0), RejectReason.BAD_HEADER, "^png: "),
    "png that claims 900 Mpx": (forged_png(30_000), RejectReason.TOO_LARGE, "900000000 pixels"),
    "png that claims 49 Mpx": (forged_png(7000), RejectReason.FORGED_SIZE, "^7000x7000 pixels cannot fit in 12700"),
    "png that claims a little": (forged_png(300), RejectReason.UNDECODABLE, "^Invalid PNG data, size 12700"),
    "jpeg that claims 49 Mpx": (forged_jpeg(7000), RejectReason.FORGED_SIZE, "^7000x7000 pixels cannot fit in"),
    "too low": (jpeg(height=7), RejectReason.TOO_SMALL, "^80x7 pixels; min_side_px is 8$"),
    "too narrow": (jpeg(width=7), RejectReason.TOO_SMALL, "^7x60 pixels; min_side_px is 8$"),
    "too long": (jpeg(height=8, width=161), RejectReason.BAD_ASPECT, "^161x8 pixels; max_aspect is 20$"),
}


@pytest.mark.parametrize(("data", "reason", "detail"), REJECTED.values(), ids=REJECTED)
def test_what_cannot_be_used_is_rejected_with_its_reason(data, reason, detail):
    with pytest.raises(BadImage, match=f"^{reason.value}: ") as caught:
        images.examine(data, LIMITS)
    assert caught.value.reason is reason
    assert re.search(detail, caught.value.detail), caught.value.detail
    # The detail goes into rejects.parquet, which must not differ between two runs over the same files.
    assert "object at 0x" not in caught.value.detail


AT_THE_LIMIT = {
    "max_bytes": (len(JPEG), len(JPEG) - 1, RejectReason.TOO_MANY_BYTES),
    "max_pixels": (4800, 4799, RejectReason.TOO_LARGE),
    "max_side_px": (80, 79, RejectReason.TOO_LARGE),
    "min_side_px": (60, 61, RejectReason.TOO_SMALL),
    "max_aspect": (80 / 60, 1.33, RejectReason.BAD_ASPECT),
}


def test_every_limit_is_in_the_table():
    assert set(AT_THE_LIMIT) == set(vars(LIMITS))


@pytest.mark.parametrize(("name", "allowed", "crossed", "reason"), [(k, *v) for k, v in AT_THE_LIMIT.items()])
def test_a_limit_is_kept_to_the_last_pixel_and_byte(name, allowed, crossed, reason):
    assert examine(JPEG, replace(LIMITS, **{name: allowed}))[0] == JPEG
    with pytest.raises(BadImage, match=f"^{reason.value}: .*{name} is {crossed}") as caught:
        images.examine(JPEG, replace(LIMITS, **{name: crossed}))
    assert caught.value.reason is reason


def test_a_progressive_jpeg_may_be_smaller_than_a_baseline_one():
    header = images.gate(forged_jpeg(7000, progressive=True), LIMITS)
    assert (header.height, header.width, header.progressive) == (7000, 7000, True)


def test_a_long_image_is_accepted_up_to_the_aspect():
    assert examine(jpeg(height=8, width=160))[1].width == 160


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_exif_orientation_is_applied_to_the_pixels(orientation):
    data = rotated_jpeg(orientation)
    encoded, facts = examine(data)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), dtype=float)
    stored = images.decode_rgb(encoded).numpy().astype(float)
    assert (facts.height, facts.width) == upright.shape[:2] == ((60, 80) if orientation < 5 else (80, 60))
    assert np.abs(stored - upright).mean() < 4  # of 255; the wrong way round it is over 20
    assert not Image.open(io.BytesIO(encoded)).getexif() or orientation == 1


def test_transparency_becomes_white():
    pixels = rgb(examine(encode(HALF_CLEAR, "PNG"))[0])
    assert (pixels[:30] == 255).all()
    assert (pixels[30:] == PIXELS[30:]).all()


def test_sixteen_bits_are_scaled_to_eight_not_clipped():
    pixels = rgb(examine(encode(Image.fromarray(SIXTEEN), "PNG"))[0])
    assert (pixels[..., 0] == SIXTEEN >> 8).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_kept(kind):
    still = Image.open(io.BytesIO(animated(kind))).convert("RGB")
    pixels = rgb(examine(animated(kind))[0]).astype(float)
    assert np.abs(pixels - np.asarray(still, dtype=float)).mean() < 2


@pytest.mark.parametrize("kind", ["BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind):
    assert (rgb(examine(encode(PIXELS, kind))[0]) == PIXELS).all()


def test_metadata_does_not_survive_normalisation():
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "taken at home"
    data = jpeg(exif=exif.tobytes())
    assert b"taken at home" in data
    assert b"taken at home" not in examine(data)[0]


@pytest.mark.parametrize("data", [JPEG, PNG, encode(GREY, "PNG"), rotated_jpeg(6)], ids=["jpeg", "png", "grey", "exif"])
def test_facts_measure_the_pixels_that_training_sees(data):
    encoded, facts = examine(data)
    pixels = images.decode_rgb(encoded).numpy().reshape(-1, 3).astype(float)
    np.testing.assert_allclose(facts.mean_rgb, pixels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(facts.var_rgb, pixels.var(0), rtol=1e-6)


def hamming(one: int, other: int) -> int:
    return ((one ^ other) & (2**64 - 1)).bit_count()


def test_dhash_survives_scaling_and_compression_but_tells_photographs_apart():
    photos = {
        seed: crop(seed, 200, 240, name) for seed, name in [(1, "china.jpg"), (2, "flower.jpg"), (3, "china.jpg")]
    }
    hashes = {seed: images.dhash(pixels) for seed, pixels in photos.items()}
    for seed, pixels in photos.items():
        half = np.asarray(Image.fromarray(pixels).resize((120, 100)))
        poor = rgb(encode(pixels, "JPEG", quality=30))
        assert max(hamming(hashes[seed], images.dhash(changed)) for changed in (half, poor)) <= 8
    assert min(hamming(hashes[one], hashes[other]) for one, other in [(1, 2), (1, 3), (2, 3)]) >= 16


def test_dhash_says_where_brightness_grows_as_a_signed_integer():
    ramp = np.repeat(np.tile(np.arange(0, 90, dtype=np.uint8), (80, 1))[..., None], 3, axis=2)
    assert images.dhash(ramp) == -1  # 64 ones
    assert images.dhash(ramp[:, ::-1]) == 0


def test_store_refuses_a_file_that_is_not_the_examined_one():
    _, facts = images.examine(JPEG, LIMITS)
    with pytest.raises(BadImage, match="^unreadable: the file is not the one that was examined$"):
        images.store(flipped(JPEG, 500), facts)


def test_store_refuses_a_normalisation_that_gives_other_bytes():
    data = encode(PIXELS, "BMP")
    _, facts = images.examine(data, LIMITS)
    with pytest.raises(BadImage, match="^unreadable: normalising it again gave other bytes"):
        images.store(data, replace(facts, sha256="0" * 64))


@pytest.mark.parametrize(("mode", "dtype"), [("I", np.int32), ("F", np.float32)])
def test_pixels_of_unknown_range_are_rejected(mode, dtype):
    # 0-252 in 32 bits, or 0-1 in floats: scaled by any rule, one of them would come out black.
    data = encode(Image.fromarray(crop(1)[..., 0].astype(dtype), mode), "TIFF")
    with pytest.raises(BadImage, match=f"pixels of mode {mode}") as caught:
        images.examine(data, ImageLimits())
    assert caught.value.reason is RejectReason.UNKNOWN_RANGE

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.images import annotations
from beam_jobs.images.annotations import encode_mask, transform_mask
from beam_jobs.images.normalise import Geometry, geometry
from beam_jobs.options import ImageLimits, PixelOptions
from tests.beam_jobs.make_hostile_images import raw_png
from tests.make_images import decode_mask, forged_png, palette, png
from tests.make_images import encode as encode_image

HEIGHT, WIDTH = 12, 20
CLASSES = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 256).astype(np.uint8)
FOUR = CLASSES % 4
SAME = geometry(PixelOptions(), HEIGHT, WIDTH)


def grey(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.astype(np.uint8))


def bands(pixels: np.ndarray, mode: str) -> Image.Image:
    opaque = np.full_like(pixels, 255)
    own = {"RGB": [pixels] * 3, "RGBA": [pixels] * 3 + [opaque], "LA": [pixels, opaque]}[mode]
    return Image.merge(mode, [grey(band) for band in own])


def turned(pixels: np.ndarray) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    return encode_image(np.rot90(pixels), "PNG", exif=exif)


def normalise_mask(data: bytes, plan: Geometry, max_pixels: int) -> bytes:
    """Returns what is stored of a mask."""
    return annotations.normalise_mask(data, plan, ImageLimits(max_pixels=max_pixels))[0]


def bad_mask(data: bytes, plan: Geometry = SAME, max_pixels: int = 10**6) -> str:
    """Returns the detail of the rejection."""
    with pytest.raises(BadImage) as caught:
        normalise_mask(data, plan, max_pixels)
    assert caught.value.reason.value == "bad_mask"
    return caught.value.detail


def test_a_mask_that_can_be_read_as_it_is_stays_untouched():
    data = encode_image(grey(CLASSES), "PNG", optimize=True) + b"trailing"
    assert normalise_mask(data, SAME, 10**6) is data
    np.testing.assert_array_equal(decode_mask(data), CLASSES)


INDICES = {
    "palette of 2 bits": (encode_image(palette(FOUR), "PNG", bits=2), FOUR),
    "palette with alpha": (encode_image(palette(CLASSES), "PNG", transparency=bytes(range(256))), CLASSES),
    "grey with one transparent": (encode_image(grey(CLASSES), "PNG", transparency=3), CLASSES),
    "1 bit": (raw_png(FOUR % 2, 1, 0), FOUR % 2),
    "2 bits": (raw_png(FOUR, 2, 0), FOUR),
    "4 bits": (raw_png(CLASSES % 16, 4, 0), CLASSES % 16),
    "16 bits": (raw_png(CLASSES, 16, 0), CLASSES),
    "RGB": (encode_image(bands(CLASSES, "RGB"), "PNG"), CLASSES),
    "RGBA": (encode_image(bands(CLASSES, "RGBA"), "PNG"), CLASSES),
    "LA": (encode_image(bands(CLASSES, "LA"), "PNG"), CLASSES),
    "turned": (turned(CLASSES), CLASSES),
    "tiff turned": (encode_image(np.rot90(CLASSES), "TIFF", tiffinfo={0x0112: 6}), CLASSES),
    "tiff palette": (encode_image(palette(CLASSES), "TIFF"), CLASSES),
    "tiff bool": (encode_image(Image.fromarray(FOUR > 1), "TIFF"), FOUR > 1),
    "tiff 16 bits": (encode_image(Image.fromarray(CLASSES.astype(np.uint16)), "TIFF"), CLASSES),
    "tiff 32 bits": (encode_image(Image.fromarray(CLASSES.astype(np.int32)), "TIFF"), CLASSES),
    "bmp palette": (encode_image(palette(CLASSES), "BMP"), CLASSES),
}


@pytest.mark.parametrize(("data", "expected"), INDICES.values(), ids=INDICES)
def test_every_way_to_write_class_indices_keeps_every_index(data, expected):
    stored = normalise_mask(data, SAME, 10**6)
    with Image.open(io.BytesIO(stored)) as image:
        assert (image.format, image.mode, image.info) == ("PNG", "L", {})
    np.testing.assert_array_equal(decode_mask(stored), expected)
    assert stored == normalise_mask(data, SAME, 10**6) == encode_mask(np.asarray(expected).astype(np.uint8))


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "mask: the file has 0 bytes"),
        (b"no image at all", "mask: it starts with b'no image'; supported formats are jpeg"),
        (
            encode_image(grey(CLASSES), "JPEG"),
            "mask: it is a jpeg file; masks are read from png, tiff, bmp, which keep",
        ),
        (encode_image(grey(CLASSES), "PNG")[:-30], "mask: "),
        (encode_image(palette(CLASSES), "PNG")[:-30], "mask: the png file cannot be decoded: "),
        (
            raw_png(CLASSES.astype(np.uint16) + 100, 16, 0),
            "mask: values from 100 to 339; class indices go from 0 to 255",
        ),
        (raw_png(np.stack([CLASSES] * 3, axis=-1), 16, 2), "mask: 16-bit pixels of mode RGB; masks hold class indices"),
        (encode_image(Image.fromarray(CLASSES.astype(np.float32)), "TIFF"), "mask: pixels of mode F; masks hold class"),
        (encode_image(Image.fromarray(CLASSES.astype(np.int32) - 1), "TIFF"), "mask: values from -1 to 238; "),
        (encode_image(grey(CLASSES), "TIFF", tiffinfo={262: 0}), "mask: a tiff file in which 0 means white"),
        (encode_image(grey(CLASSES), "TIFF", compression="jpeg"), "mask: a tiff file with JPEG inside"),
        (encode_image(bands(CLASSES, "RGB").convert("CMYK"), "TIFF"), "mask: 8-bit pixels of mode CMYK; masks hold"),
    ],
)
def test_what_holds_no_class_indices_is_refused(data, detail):
    assert bad_mask(data).startswith(detail)


FRAMES = encode_image(grey(CLASSES), "PNG", save_all=True, append_images=[grey(FOUR)])


def square(side: int) -> Geometry:
    return geometry(PixelOptions(), side, side)


@pytest.mark.parametrize(
    ("data", "plan", "max_pixels", "detail"),
    [
        (
            encode_image(np.zeros((HEIGHT, WIDTH + 1), np.uint8), "PNG"),
            SAME,
            10**6,
            "21x12 pixels; the image has 20x12",
        ),
        (turned(CLASSES), square(12), 10**6, "20x12 pixels; the image has 12x12"),  # measured upright
        (png(), SAME, 100, "80x60 pixels; max_pixels is 100"),
        (forged_png(30_000), square(30_000), 10**6, "30000x30000 pixels; max_pixels is 1000000"),
        (FRAMES, SAME, 10**6, "it has 2 frames; it must have one"),
    ],
    ids=["size", "turned", "pixels", "bomb", "frames"],
)
def test_a_mask_is_judged_by_its_header(data, plan, max_pixels, detail):
    assert bad_mask(data, plan, max_pixels) == f"mask: {detail}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_are_refused_with_the_first_pixel_that_has_one(mode):
    image = bands(CLASSES, mode)
    image.putpixel((7, 3), (1, 2, 3) + (255,) * (mode == "RGBA"))
    image.putpixel((7, 4), (1, 2, 3) + (255,) * (mode == "RGBA"))
    expected = "mask: row 3, column 7 has the colour (1, 2, 3); masks hold class indices, not colours"
    assert bad_mask(encode_image(image, "PNG")) == expected


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_have_no_class(mode):
    image = bands(CLASSES, mode)
    image.putalpha(grey(np.where(CLASSES == 9, 254, 255)))
    expected = "mask: the least opaque pixel has alpha 254; transparent pixels have no class"
    assert bad_mask(encode_image(image, "PNG")) == expected


@pytest.mark.parametrize(
    ("policy", "size"), [("resize", (120, 200)), ("raw", (201, 97)), ("raw", (33, 64)), ("resize", (10, 9))]
)
def test_every_pixel_comes_from_the_nearest_one_of_the_source(policy, size):
    plan = geometry(PixelOptions(policy=policy, side_px=31), *size)
    rows, columns = (part.astype(np.uint8) for part in np.indices(size))
    moved = transform_mask(rows, plan), transform_mask(columns, plan)
    for axis, start in enumerate((plan.top, plan.left)):
        assert moved[axis].shape == plan.stored
        chosen = np.moveaxis(moved[axis], axis, 0)
        for position, line in enumerate(chosen):
            centre = (Fraction(2 * (position + start) + 1, 2) * plan.source[axis]) / plan.resized[axis]
            assert len(set(line)) == 1
            assert abs(int(line[0]) + Fraction(1, 2) - centre) <= Fraction(1, 2)
    data = encode_image(grey(rows), "PNG")
    stored = normalise_mask(data, plan, 10**6)
    np.testing.assert_array_equal(decode_mask(stored), moved[0])
    assert (stored is data) == plan.is_identity


def test_a_mask_that_is_normalised_is_moved_too():
    plan = geometry(PixelOptions(policy="raw", side_px=6), HEIGHT, WIDTH)
    stored = normalise_mask(encode_image(palette(CLASSES), "PNG"), plan, 10**6)
    np.testing.assert_array_equal(decode_mask(stored), CLASSES[1::2, 5:16:2])


@pytest.mark.parametrize("how", [grey, palette])
def test_the_values_of_a_mask_are_those_of_all_of_its_pixels(how):
    pixels = FOUR.copy()
    pixels[-1, -1] = 255
    plan = geometry(PixelOptions(policy="raw", side_px=6), HEIGHT, WIDTH)
    assert annotations.normalise_mask(encode_image(how(pixels), "PNG"), plan, ImageLimits())[1] == (0, 1, 2, 3, 255)


@pytest.mark.parametrize(("classes", "ignore", "values"), [(4, -1, (0, 3)), (4, 255, (0, 3, 255)), (256, -1, (0, 255))])
def test_declared_classes_and_what_is_to_be_ignored_are_kept(classes, ignore, values):
    data = encode_image(grey(np.resize(np.array(values, np.uint8), (HEIGHT, WIDTH))), "PNG")
    assert annotations.normalise_mask(data, SAME, ImageLimits(mask_classes=classes, mask_ignore=ignore)) == (
        data,
        values,
    )


@pytest.mark.parametrize(
    ("ignore", "values", "detail"),
    [
        (-1, (0, 3), "contains 3; mask_classes 2 allows 0 to 1"),
        (255, range(20), "contains 2, 3, 4, 5, 6, 7, 8, 9, ...; mask_classes 2 allows 0 to 1"),
        (-1, (0, 255), f"contains 255; mask_classes 2 allows 0 to 1; {annotations.BINARY_OR_IGNORED}"),
    ],
)
def test_values_that_are_no_declared_class_are_refused(ignore, values, detail):
    data = encode_image(grey(np.resize(np.array(values, np.uint8), (HEIGHT, WIDTH))), "PNG")
    with pytest.raises(BadImage) as caught:
        annotations.normalise_mask(data, SAME, ImageLimits(mask_classes=2, mask_ignore=ignore))
    assert (caught.value.reason.value, caught.value.detail) == ("bad_mask", f"mask: it {detail}")

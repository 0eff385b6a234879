"""Images of strangers, looked at: drawn and exported."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.inspect.pictures import BLOCK, half_blocks, image_file, nearest_256, pictures
from beam_jobs.inspect.summary import FeatureRoles
from tests.beam_jobs.make_hostile_images import exif_bomb, exif_jpeg, many_scans, ztxt
from tests.make_images import crop, encode, forged_png, jpeg, png

IMAGE = FeatureRoles(image=("x",))

HOSTILE = {
    "cut off": jpeg()[:700],
    "claims much": forged_png(60_000),
    "many scans": many_scans(400, 64),
    "text bomb": png()[:33] + ztxt(30 << 20) + png()[33:],
    "garbage": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


# --- files


@pytest.mark.parametrize(("data", "suffix"), [(jpeg(), "jpg"), (encode(crop(0), "WEBP"), "webp")])
def test_an_image_is_exported_as_it_is(data, suffix):
    assert image_file({"x": [data]}, IMAGE) == (suffix, data)


@pytest.mark.parametrize("values", [{}, {"x": []}, {"x": [b"text"]}, {"x": [5]}])
def test_what_is_no_image_is_not_exported(values):
    with pytest.raises(BadImage):
        image_file(values, IMAGE)


def bare(data: bytes, height: int, width: int) -> dict[str, list]:
    return {"x": [data], "image/format": [b"raw"], "image/height": [height], "image/width": [width]}


@pytest.mark.parametrize("channels", [1, 3])
def test_bare_pixels_are_exported_as_png(channels):
    pixels = np.arange(6 * 5 * channels, dtype=np.uint8).reshape(6, 5, channels)
    suffix, data = image_file(bare(pixels.tobytes(), 6, 5), IMAGE)
    assert suffix == "png"
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        assert np.array_equal(np.asarray(image).reshape(pixels.shape), pixels)


@pytest.mark.parametrize("sides", [(7, 5), (1 << 40, 1 << 40), (-6, -5)])
def test_sizes_that_do_not_fit_the_pixels_are_not_believed(sides):
    with pytest.raises(BadImage):
        image_file(bare(bytes(90), *sides), IMAGE)


# --- what is seen


def test_hostile_images_cost_their_own_picture():
    records = [{"x": [data]} for data in HOSTILE.values()]
    seen = list(pictures([*records, {"x": [jpeg()]}, {}, {"x": [b"text"]}], IMAGE, 32))
    assert len(seen) == len(HOSTILE) + 3
    for name, picture in zip(HOSTILE, seen, strict=False):
        assert (picture.image is None) == bool(picture.remark), name
        assert picture.image is None or max(picture.image.size) <= 32, name
    by_name = dict(zip(HOSTILE, seen, strict=False))
    assert by_name["claims much"].remark.startswith("too_large: ")
    assert by_name["cut off"].image is None
    assert by_name["garbage"].image is None
    good, nothing, text = seen[len(HOSTILE) :]
    assert good.image.size == (32, 24)
    assert nothing.remark == "no image"
    assert text.remark.startswith("it starts with b'text'")


def test_pictures_are_small_upright_and_rgb():
    wide, tiny = encode(crop(0, 100, 400), "JPEG"), encode(crop(1, 5, 7)[..., 0], "PNG")
    turned = exif_jpeg(exif_bomb())
    seen = [one.image for one in pictures([{"x": [wide]}, {"x": [tiny]}, {"x": [turned]}], IMAGE, 40)]
    assert [image.size for image in seen] == [(40, 10), (7, 5), (40, 30)]
    assert {image.mode for image in seen} == {"RGB"}
    (pixels,) = pictures([bare(crop(0, 6, 5).tobytes(), 6, 5)], IMAGE, 40)
    assert np.array_equal(np.asarray(pixels.image), crop(0, 6, 5))


# --- on a terminal


def test_every_character_shows_two_pixels_in_their_colours():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    cells = re.findall(
        r"\x1b\[38;2;(\d+;\d+;\d+);48;2;(\d+;\d+;\d+)m(.)", half_blocks(Image.fromarray(pixels), 3, 9, True)
    )
    shown = [[[int(part) for part in colour.split(";")] for colour in cell[:2]] for cell in cells]
    assert np.array_equal(np.array(shown).swapaxes(0, 1), pixels)
    assert {cell[2] for cell in cells} == {BLOCK}


@pytest.mark.parametrize("size", [(20, 300), (1, 1), (10_000, 1)])
def test_a_drawing_stays_in_its_room(size):
    drawn = half_blocks(Image.new("RGB", size, (9, 9, 9)), 60, 20, True).split("\n")
    assert 1 <= len(drawn) <= 20
    assert len({line.count(BLOCK) for line in drawn}) == 1
    assert 1 <= drawn[0].count(BLOCK) <= 60
    assert all(line.endswith("\x1b[0m") for line in drawn)


def test_256_colours_are_the_nearest_of_xterm():
    levels = [0, 95, 135, 175, 215, 255]
    palette = [[r, g, b] for r in levels for g in levels for b in levels] + [[8 + 10 * n] * 3 for n in range(24)]
    assert np.array_equal(
        np.array(palette)[nearest_256(np.array(palette, np.uint8)) - 16], palette
    )  # of equal colours either number will do
    colours = np.random.default_rng(0).integers(0, 256, (500, 3)).astype(np.uint8)
    distance = ((colours[:, None].astype(int) - np.array(palette)) ** 2).sum(-1)
    chosen = nearest_256(colours) - 16
    assert (distance[np.arange(500), chosen] <= distance.min(1) * 1.5 + 100).all()
    assert "38;5;" in half_blocks(Image.new("RGB", (4, 4)), 4, 4, False)

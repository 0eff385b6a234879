from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.images import normalise
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.header_check import read_header
from tests.beam_jobs.make_hostile_images import GREY, PIXELS, SIXTEEN
from tests.make_images import encode, flipped, jpeg, rotated_jpeg

ALPHA = (np.arange(4800).reshape(60, 80) * 7 % 256).astype(np.uint8)


def reasons(data: bytes) -> tuple[str, ...]:
    return normalise.conversion_reasons(data, read_header(data))


def plain(data: bytes) -> np.ndarray:
    return normalise.decode_converted(data, read_header(data))


def test_whether_a_png_is_opaque_is_looked_up_in_its_pixels():
    opaque = np.full_like(ALPHA, 255)
    assert reasons(encode(np.dstack([PIXELS, opaque]), "PNG")) == ()
    opaque[59, 79] = 254
    assert reasons(encode(np.dstack([PIXELS, opaque]), "PNG")) == ("alpha",)
    with pytest.raises(BadImage, match="^undecodable: "):
        reasons(flipped(encode(np.dstack([PIXELS, opaque]), "PNG"), 5000))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_colours_are_laid_on_white_by_their_opacity(kind):
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    data = encode(np.dstack([PIXELS, ALPHA]), kind, **options)
    share = ALPHA[..., None] / 255.0
    np.testing.assert_allclose(plain(data), PIXELS * share + 255 * (1 - share), atol=0.51)


def test_sixteen_bits_of_the_other_byte_order_are_scaled():
    data = encode(Image.fromarray(SIXTEEN.astype(">u2"), "I;16B"), "TIFF")
    assert (plain(data) == GREY).all()


def test_an_image_of_many_bands_is_the_same_as_of_one(monkeypatch):
    data = encode(np.dstack([PIXELS, ALPHA]), "TIFF")
    at_once = plain(data)
    monkeypatch.setattr(np, "empty", np.zeros)  # memory that is used again may hold the right pixels by chance
    for size in (240, 1):  # three rows, one row
        monkeypatch.setattr(normalise, "_BAND", size)
        assert (plain(data) == at_once).all()
    assert (plain(encode(np.dstack([PIXELS, ALPHA]), "PNG")) == at_once).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_a_damaged_file_is_a_bad_image(kind):
    data = encode(PIXELS, kind, **({"lossless": True} if kind == "WEBP" else {}))
    header = read_header(data)
    with pytest.raises(BadImage, match=f"^undecodable: {kind.lower()}: "):
        normalise.decode_converted(data[: len(data) // 2], header)


def test_quality_and_subsampling_are_what_was_asked_for():
    good, poor = (normalise.encode(PIXELS, "jpeg", quality) for quality in (95, 30))
    assert len(good) > 2 * len(poor)
    for subsample, factors in ((False, 0x11), (True, 0x22)):
        encoded = normalise.encode(PIXELS, "jpeg", 90, subsample)
        assert encoded[encoded.index(b"\xff\xc0") + 11] == factors


def test_the_pixels_of_a_rotated_jpeg_are_those_of_the_trainers_decoder():
    upright = decode_checked(jpeg())
    assert (plain(rotated_jpeg(6)) == np.rot90(upright, -1)).all()
    assert (plain(rotated_jpeg(2)) == upright[:, ::-1]).all()

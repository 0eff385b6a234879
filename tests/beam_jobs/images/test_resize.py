from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from beam_jobs.images import normalise
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.header_check import Header, read_header
from beam_jobs.images.normalise import Geometry, conversion_reasons, geometry
from beam_jobs.options import PixelOptions
from tests.beam_jobs.make_hostile_images import oriented
from tests.make_images import crop, encode, photograph

PHOTO = photograph()  # 427 x 640
JPEG = encode(PHOTO, "JPEG", quality=95, subsampling=0)


def plan_for(data: bytes, side: int, policy: str = "resize", fit: str = "short") -> Geometry:
    return geometry(PixelOptions(policy=policy, side_px=side, fit=fit), *normalise.upright_size(read_header(data)))


def resized(data: bytes, plan: Geometry) -> np.ndarray:
    header = read_header(data)
    return normalise.resized_pixels(data, header, conversion_reasons(data, header), plan)


SIDES = [(214, 1), (213, 2), (54, 4), (53, 8)]


@pytest.mark.parametrize(("side", "ratio"), SIDES)
def test_a_jpeg_is_decoded_smaller_only_as_long_as_it_stays_large_enough(side, ratio, monkeypatch):
    asked = []

    def spy(encoded: bytes, ratio: int, header: Header) -> np.ndarray:
        asked.append(ratio)
        return decode_checked(encoded, ratio, header)

    monkeypatch.setattr(normalise, "decode_checked", spy)
    assert resized(JPEG, plan_for(JPEG, side)).shape[0] == side
    assert asked == [ratio]


@pytest.mark.parametrize(
    ("data", "side"),
    [(JPEG, 400), (JPEG, 107), (JPEG, 16), (encode(PHOTO, "PNG"), 213)],
    ids=["jpeg", "jpeg halved", "jpeg smallest", "png"],
)
def test_a_smaller_image_is_close_to_the_best_that_pillow_can_do(data, side):
    plan = plan_for(data, side)
    height, width = plan.resized
    best, poor = (
        np.asarray(Image.fromarray(PHOTO).resize((width, height), kind), dtype=float)
        for kind in (Image.Resampling.LANCZOS, Image.Resampling.NEAREST)
    )
    error = np.abs(resized(data, plan) - best).mean()
    assert error < 5
    assert error < 0.6 * np.abs(poor - best).mean()


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_smaller_decode_shifts_nothing(orientation):
    # 427 rows at an eighth are 53.4; the decoder returns 54, the last of which is mostly none of the image.
    tag = Image.Exif()
    tag[0x0112] = orientation
    gradient = np.tile(np.linspace(0, 255, 427)[:, None], (1, 640)).astype(np.uint8)
    data = encode(gradient, "JPEG", quality=95, exif=tag)
    pixels = resized(data, plan_for(data, 53)).astype(float)
    exact = np.asarray(Image.fromarray(gradient).resize((79, 53), Image.Resampling.BOX), dtype=float)
    assert np.abs(pixels - oriented(exact, orientation)).max() < 2.5  # a row further it would be 4.8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_what_the_geometry_cuts_off_is_cut_off(kind):
    plan = Geometry(source=(60, 80), resized=(60, 80), top=10, left=25, stored=(40, 30))
    data = encode(crop(0), kind)
    whole = decode_checked(data) if kind != "BMP" else crop(0)
    assert (resized(data, plan) == whole[10:50, 25:55]).all()


def test_an_image_is_enlarged_on_demand():
    pixels = resized(JPEG, plan_for(JPEG, 854, policy="raw"))
    best = Image.fromarray(PHOTO).resize((1280, 854), Image.Resampling.BILINEAR)
    assert pixels.shape == (854, 854, 3)
    assert np.abs(pixels - np.asarray(best, dtype=float)[:, 213:1067]).mean() < 3

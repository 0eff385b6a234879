from __future__ import annotations

import contextlib
import functools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_jobs.errors import BadImage
from beam_jobs.images.decode import decode_alpha, decode_checked, decode_rgb, decode_sound_jpeg
from beam_jobs.images.header_check import Header, check_header
from beam_jobs.options import ImageLimits
from beam_jobs.rejects import RejectReason
from tests.beam_jobs.make_hostile_images import chunk, palette, raw_png
from tests.make_images import crop, encode, flipped, jpeg, png

PIXELS = crop(0)
LIMITS = ImageLimits(max_pixels=1_000_000)


def test_it_decodes_inside_a_graph():
    decode = tf.function(decode_rgb, input_signature=[tf.TensorSpec([], tf.string)])
    assert (decode(tf.constant(png())).numpy() == PIXELS).all()


@pytest.mark.parametrize("data", [b"", jpeg()[:900], flipped(png(), 5000)], ids=["empty", "cut", "bit"])
def test_what_cannot_be_decoded_is_a_bad_image_with_one_line_of_reason(data):
    with pytest.raises(BadImage) as caught:
        decode_checked(data)
    assert caught.value.reason is RejectReason.UNDECODABLE
    assert 0 < len(caught.value.detail) <= 200
    assert not set("\n{}") & set(caught.value.detail)


def test_transparency_is_decoded_on_demand():
    indices, colours = palette()
    pixels = decode_alpha(raw_png(indices, 2, 3, colours + chunk(b"tRNS", b"\x00\x80")))
    assert (pixels[..., 3] == np.array([0, 128, 255, 255])[indices]).all()
    assert (pixels[..., :3] == decode_checked(raw_png(indices, 2, 3, colours))).all()
    with pytest.raises(BadImage, match="^undecodable: "):
        decode_alpha(flipped(png(), 5000))


# `facts: basic` checks JPEG files by a decode at a fraction of the size. That is sound only if every damage that the
# whole decode refuses is refused there too, and nothing else.

KINDS = {
    "baseline": lambda pixels: encode(pixels, "JPEG", quality=85),
    "without subsampling": lambda pixels: encode(pixels, "JPEG", quality=85, subsampling=0),
    "half the columns": lambda pixels: encode(pixels, "JPEG", quality=85, subsampling=1),
    "progressive": lambda pixels: encode(pixels, "JPEG", quality=85, progressive=True),
    "optimised": lambda pixels: encode(pixels, "JPEG", quality=85, optimize=True),
    "grey": lambda pixels: encode(pixels[..., 0], "JPEG", quality=85),
    "grey progressive": lambda pixels: encode(pixels[..., 0], "JPEG", quality=85, progressive=True),
    "restarts": lambda pixels: encode(pixels, "JPEG", quality=85, restart_marker_blocks=2),
    "progressive restarts": lambda pixels: encode(pixels, "JPEG", progressive=True, restart_marker_rows=1),
    "cmyk": lambda pixels: encode(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=85),
    "poor": lambda pixels: encode(pixels, "JPEG", quality=5),
    "perfect": lambda pixels: encode(pixels, "JPEG", quality=100, subsampling=0),
}


def flip_bits(data: bytearray, random: np.random.Generator, start: int) -> None:
    for place in random.integers(start, len(data), random.integers(1, 5)):
        data[place] ^= 1 << random.integers(8)


def overwrite(data: bytearray, random: np.random.Generator, start: int) -> None:
    place, length = random.integers(start, len(data)), random.integers(1, 40)
    end = min(len(data), place + length)
    data[place:end] = random.bytes(end - place)


def cut_out(data: bytearray, random: np.random.Generator, start: int) -> None:
    place = int(random.integers(start, len(data)))
    del data[place : place + int(random.integers(1, 20))]


def cut_off(data: bytearray, random: np.random.Generator, start: int) -> None:
    del data[int(random.integers(start, len(data))) :]


def resample(data: bytearray, random: np.random.Generator, start: int) -> None:
    """Draws the sampling factors of the components anew."""
    frame = max(data.find(b"\xff\xc0\x00"), data.find(b"\xff\xc2\x00"))
    for component in range(data[frame + 9]):
        data[frame + 11 + 3 * component] = int(random.integers(1, 5) << 4 | random.integers(1, 5))


DAMAGES = (cut_off, flip_bits, overwrite, cut_out, resample)


def whole_files(pixels: np.ndarray) -> dict[str, bytes]:
    return {kind: make(pixels) for kind, make in KINDS.items()}


@functools.cache
def damaged(files: int = 1500, seed: int = 0) -> tuple[tuple[str, bytes, Header], ...]:
    """JPEG files of every kind, damaged in every way and place; without those that the gate refuses."""
    random = np.random.default_rng(seed)
    whole = whole_files(crop(3, 48, 64))
    made = []
    for number in range(files):
        kind = list(whole)[number % len(whole)]
        damage = DAMAGES[number // len(whole) % len(DAMAGES)]
        data = bytearray(whole[kind])
        scan = data.index(b"\xff\xda")
        damage(data, random, int(random.choice([2, scan, scan, len(data) - 20])))
        with contextlib.suppress(BadImage):
            made.append((f"{kind}, {damage.__name__}", bytes(data), check_header(bytes(data), LIMITS)))
    return tuple(made)


def decoded(data: bytes, ratio: int, header: Header | None = None) -> tuple[int, ...] | None:
    try:
        return decode_checked(data, ratio, header).shape
    except BadImage:
        return None


@functools.cache
def shapes() -> tuple[tuple[int, ...] | None, ...]:
    return tuple(decoded(data, 1) for _, data, _ in damaged())


@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_a_smaller_decode_accepts_and_rejects_the_same_files(ratio):
    for (name, data, header), shape in zip(damaged(), shapes(), strict=True):
        assert decoded(data, ratio, header) == (shape and (-(-shape[0] // ratio), -(-shape[1] // ratio), 3)), name


def pixels_compared(files: tuple[tuple[str, bytes, Header], ...], ratio: int) -> Counter[str]:
    """Compares what libjpeg-turbo decodes without a remark with TensorFlow's pixels; returns the files of each kind."""
    kinds: Counter[str] = Counter()
    for name, data, header in files:
        pixels = decode_sound_jpeg(data, header, ratio)
        if pixels is not None:
            assert np.array_equal(pixels, decode_rgb(data, ratio)), name
            kinds[name.partition(",")[0]] += 1
    return kinds


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_the_faster_decoder_gives_the_pixels_of_training_or_none(ratio):
    whole = tuple((kind, data, check_header(data, LIMITS)) for kind, data in whole_files(crop(4, 61, 83)).items())
    assert pixels_compared(whole, ratio).keys() == {
        kind for kind in KINDS if "progressive" not in kind and kind != "cmyk"
    }
    assert pixels_compared(damaged(), ratio).total() > 100


def test_a_png_is_decoded_to_the_pixels_of_training_or_refused_as_there():
    random = np.random.default_rng(2)
    outcomes: Counter[bool] = Counter()
    for number in range(600):
        kind, damage, checksums = random.integers((6, 7, 2))  # any with any
        data = bytearray(pngs(number)[kind])
        if damage < 4:
            DAMAGES[damage](data, random, 33)  # behind the header
        file = with_checksums(bytes(data)) if checksums else bytes(data)
        expected = tensorflow_pixels(file)
        try:
            pixels = decode_checked(file, header=Header(format="png", height=24, width=32, mode="RGB"))
        except BadImage:
            assert expected is None, number
        else:
            assert np.array_equal(pixels, expected), number
        outcomes[expected is not None] += 1
    assert min(outcomes.values()) > 100


def pngs(seed: int) -> tuple[bytes, ...]:
    """Returns a crop as grey, transparent, interlaced, of 16 bits and as it is, and an image with a palette."""
    pixels = crop(seed, 24, 32)
    indices, colours = palette()
    return (
        *(encode(pixels, "PNG"), encode(pixels[..., 0], "PNG"), raw_png(indices, 2, 3, colours)),
        *(encode(np.dstack([pixels, pixels[..., 0]]), "PNG"), raw_png(pixels, 8, 2, interlaced=True)),
        raw_png(pixels.astype(np.uint16) * 257, 16, 2),
    )


def with_checksums(data: bytes) -> bytes:
    """Returns a PNG with the right checksum of each chunk, as far as its lengths make sense."""
    made, place = data[:8], 8
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        made += chunk(data[place + 4 : place + 8], data[place + 8 : place + 8 + size])
        place += 12 + size
    return made


def tensorflow_pixels(data: bytes) -> np.ndarray | None:
    try:
        return decode_rgb(data).numpy()
    except tf.errors.InvalidArgumentError:
        return None


def test_the_header_tells_the_size_of_whatever_can_be_decoded():
    for (name, _, header), shape in zip(damaged(), shapes(), strict=True):
        assert shape in (None, (header.height, header.width, 3)), name


def test_whatever_can_be_decoded_can_be_cropped_while_it_is():
    # Training decodes crops, which takes another way through the decoder.
    random = np.random.default_rng(1)
    cropped = 0
    for (_, data, _), shape in zip(damaged(), shapes(), strict=True):
        if shape is not None:
            top, left = random.integers(0, shape[:2])
            window = [top, left, random.integers(1, shape[0] - top + 1), random.integers(1, shape[1] - left + 1)]
            assert tf.io.decode_and_crop_jpeg(data, window, channels=3).shape == (*window[2:], 3)
            cropped += 1
    assert cropped > 400

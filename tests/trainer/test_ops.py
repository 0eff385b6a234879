from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import record
from beam_jobs.errors import OptionError
from tests.make_images import crop, encode, jpeg, png
from trainer.ops import (
    IMAGE,
    OPS,
    CenterCrop,
    Decode,
    DecodeRandomCrop,
    Flip,
    PadReflect,
    RandomCrop,
    RandomCropResize,
    Resize,
    ResizeShort,
    apply_ops,
    parse_ops,
)

# Op -> (a chain that ends with it, static shape after it, shape of an image of 60 x 80).
CHAINS = {
    "decode": ("decode", (None, None, 3), (60, 80, 3)),
    "decode_random_crop": ("decode_random_crop(24)", (24, 24, 3), (24, 24, 3)),
    "random_crop_resize": ("decode|random_crop_resize(24)", (24, 24, 3), (24, 24, 3)),
    "resize": ("decode|resize(24)", (24, 24, 3), (24, 24, 3)),
    "resize_short": ("decode|resize_short(24)", (None, None, 3), (24, 32, 3)),
    "center_crop": ("decode|center_crop(24)", (24, 24, 3), (24, 24, 3)),
    "pad_reflect": ("decode|resize(24)|pad_reflect(3)", (30, 30, 3), (30, 30, 3)),
    "random_crop": ("decode|random_crop(24)", (24, 24, 3), (24, 24, 3)),
    "flip": ("decode|resize(24)|flip", (24, 24, 3), (24, 24, 3)),
}
RANDOM = {"decode_random_crop", "random_crop_resize", "random_crop", "flip"}
SEEDS = [(number, 3) for number in range(16)]


def seed(*values: int) -> tf.Tensor:
    return tf.constant(values or (0, 0), tf.int64)


def run(op, pixels, *values: int) -> np.ndarray:
    return op({IMAGE: tf.constant(pixels)}, seed(*values))[IMAGE].numpy()


def numbered(height: int, width: int) -> np.ndarray:
    """Every pixel differs from every other, in every channel."""
    grey = np.arange(height * width, dtype=np.uint8).reshape(height, width, 1)
    return np.concatenate([grey, grey + 1, grey + 2], axis=2)


def window_of(height: int, width: int, min_area: float, *values: int) -> tuple[slice, slice]:
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        [height, width, 3],
        tf.zeros([1, 0, 4]),
        seed(*values),
        min_object_covered=0.0,
        aspect_ratio_range=(0.75, 4 / 3),
        area_range=(min_area, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    (top, left, _), (rows, columns, _) = begin.numpy(), size.numpy()
    return slice(top, top + rows), slice(left, left + columns)


def resized(pixels: np.ndarray, side: int) -> np.ndarray:
    return np.round(tf.image.resize(pixels, [side, side]).numpy()).astype(np.uint8)


def test_every_op_has_a_row_here():
    assert CHAINS.keys() == OPS.keys()
    assert {name for name, op in OPS.items() if op.random} == RANDOM


@pytest.mark.parametrize("name", sorted(CHAINS))
@pytest.mark.parametrize("encoded", [png(3), jpeg(3)], ids=["png", "jpeg"])
def test_eager_and_tf_data_give_the_same_pixels_and_static_shapes(name, encoded):
    spec, static, shape = CHAINS[name]
    ops = parse_ops(spec)
    rows = tf.data.Dataset.from_tensor_slices(([encoded] * 4, tf.constant(SEEDS[:4], tf.int64)))
    dataset = rows.map(lambda image, pair: apply_ops(ops, {IMAGE: image}, pair)[IMAGE])
    assert dataset.element_spec == tf.TensorSpec(static, tf.uint8)
    for values, image in zip(SEEDS, dataset.as_numpy_iterator(), strict=False):
        eager = apply_ops(ops, {IMAGE: tf.constant(encoded)}, seed(*values))[IMAGE]
        assert eager.shape == shape
        np.testing.assert_array_equal(eager.numpy(), image)


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_only_random_ops_depend_on_the_seed_and_equal_seeds_give_equal_images(name):
    ops = parse_ops(CHAINS[name][0])
    image = {IMAGE: tf.constant(png(4))}
    seen = [apply_ops(ops, image, seed(*values))[IMAGE].numpy().tobytes() for values in SEEDS]
    assert seen == [apply_ops(ops, image, seed(*values))[IMAGE].numpy().tobytes() for values in SEEDS]
    assert (len(set(seen)) > 1) == (name in RANDOM)
    other_epoch = [apply_ops(ops, image, seed(first, 4))[IMAGE].numpy().tobytes() for first, _ in SEEDS]
    assert (other_epoch != seen) == (name in RANDOM)


def test_two_random_ops_of_a_chain_draw_apart():
    image = {IMAGE: tf.constant(png(4))}
    twice = [apply_ops((Decode(), Flip(), Flip()), image, seed(*values))[IMAGE].numpy() for values in SEEDS]
    # Were the draws one, two flips would always undo each other.
    assert {bool((pixels == twice[0]).all()) for pixels in twice} == {True, False}


def test_other_features_pass_through_a_chain():
    features = {IMAGE: tf.constant(png(4)), "other": tf.constant(7)}
    assert apply_ops(parse_ops("decode|resize(8)|flip"), features, seed())["other"] == 7


def test_decode_returns_the_pixels_of_a_png_and_three_channels_of_a_grey_one():
    pixels = crop(5, 20, 30)
    np.testing.assert_array_equal(run(Decode(), encode(pixels, "PNG")), pixels)
    grey = run(Decode(), encode(pixels[..., 0], "PNG"))
    np.testing.assert_array_equal(grey, np.repeat(pixels[..., :1], 3, axis=2))


def test_resize_averages_neighbours_and_rounds_half_to_even():
    row = np.array([0, 1, 1, 2, 10, 20, 253, 255], np.uint8)
    pixels = np.tile(row[None, :, None], (8, 1, 3))
    assert run(Resize(side=4), pixels)[..., 0].tolist() == [[0, 2, 15, 254]] * 4


@pytest.mark.parametrize(
    ("height", "width", "side", "expected"),
    [(30, 60, 10, (10, 20)), (60, 30, 10, (20, 10)), (7, 9, 256, (256, 329)), (49, 49, 32, (32, 32))],
)
def test_resize_short_scales_the_short_side_and_keeps_the_aspect(height, width, side, expected):
    assert run(ResizeShort(side=side), np.zeros((height, width, 3), np.uint8)).shape == (*expected, 3)


def test_center_crop_cuts_the_middle():
    pixels = numbered(5, 6)
    np.testing.assert_array_equal(run(CenterCrop(side=2), pixels), pixels[1:3, 2:4])
    np.testing.assert_array_equal(run(CenterCrop(side=5), pixels), pixels[:, 0:5])


@pytest.mark.parametrize("op", [CenterCrop(side=6), RandomCrop(side=6)])
def test_a_crop_larger_than_the_image_is_an_error(op):
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(op, numbered(5, 6))


def test_pad_reflect_mirrors_at_the_edge_without_repeating_it():
    padded = run(PadReflect(margin=2), numbered(3, 3))
    assert padded[..., 0].tolist() == [
        [8, 7, 6, 7, 8, 7, 6],
        [5, 4, 3, 4, 5, 4, 3],
        [2, 1, 0, 1, 2, 1, 0],
        [5, 4, 3, 4, 5, 4, 3],
        [8, 7, 6, 7, 8, 7, 6],
        [5, 4, 3, 4, 5, 4, 3],
        [2, 1, 0, 1, 2, 1, 0],
    ]
    np.testing.assert_array_equal(padded[..., 2], padded[..., 0] + 2)


def test_flip_mirrors_left_and_right_in_half_of_the_cases():
    pixels = numbered(2, 3)
    mirrored = 0
    for number in range(200):
        image = run(Flip(), pixels, number, 0)
        if (image == pixels).all():
            continue
        assert image[..., 0].tolist() == [[2, 1, 0], [5, 4, 3]]
        mirrored += 1
    assert 80 <= mirrored <= 120


def test_random_crop_cuts_every_window_of_the_image_and_no_other():
    pixels = numbered(4, 5)
    corners = set()
    for number in range(100):
        image = run(RandomCrop(side=3), pixels, number, 0)
        top, left = divmod(int(image[0, 0, 0]), 5)
        np.testing.assert_array_equal(image, pixels[top : top + 3, left : left + 3])
        corners.add((top, left))
    assert corners == {(top, left) for top in range(2) for left in range(3)}


def test_random_crop_of_the_whole_image_is_the_image():
    np.testing.assert_array_equal(run(RandomCrop(side=4), numbered(4, 4), 9, 9), numbered(4, 4))


@pytest.mark.parametrize("min_area", [0.08, 0.5])
@pytest.mark.parametrize("number", range(6))
def test_decode_random_crop_is_decode_then_slice_then_resize(number, min_area):
    pixels = crop(number)
    rows, columns = window_of(60, 80, min_area, number, 1)
    expected = resized(pixels[rows, columns], 16)
    op = DecodeRandomCrop(side=16, min_area=min_area)
    np.testing.assert_array_equal(run(op, encode(pixels, "PNG"), number, 1), expected)
    np.testing.assert_array_equal(run(RandomCropResize(side=16, min_area=min_area), pixels, number, 1), expected)


@pytest.mark.parametrize("number", range(6))
def test_decode_random_crop_of_a_jpeg_is_that_of_its_pixels_but_for_chroma_at_the_edge(number):
    encoded = jpeg(number, subsampling=0)
    rows, columns = window_of(60, 80, 0.08, number, 1)
    expected = resized(tf.io.decode_jpeg(encoded, channels=3).numpy()[rows, columns], 16).astype(int)
    found = run(DecodeRandomCrop(side=16), encoded, number, 1).astype(int)
    assert np.abs(found - expected).mean() < 0.5
    subsampled = jpeg(number, subsampling=2)
    expected = resized(tf.io.decode_jpeg(subsampled, channels=3).numpy()[rows, columns], 16).astype(int)
    assert np.abs(run(DecodeRandomCrop(side=16), subsampled, number, 1) - expected).mean() < 4


@pytest.mark.parametrize("encoded", [png(7), jpeg(7)], ids=["png", "jpeg"])
def test_decode_random_crop_takes_the_size_of_the_record_when_there_is_one(encoded):
    op = DecodeRandomCrop(side=16)
    size = {record.HEIGHT: tf.constant(60, tf.int64), record.WIDTH: tf.constant(80, tf.int64)}
    for values in SEEDS[:4]:
        with_size = op({IMAGE: tf.constant(encoded), **size}, seed(*values))[IMAGE].numpy()
        np.testing.assert_array_equal(with_size, run(op, encoded, *values))
    # A record that says less than the file holds is believed: the crop never leaves it.
    small = {record.HEIGHT: tf.constant(8, tf.int64), record.WIDTH: tf.constant(8, tf.int64)}
    corner = DecodeRandomCrop(side=1, min_area=1.0)({IMAGE: tf.constant(png(7)), **small}, seed())[IMAGE].numpy()
    np.testing.assert_array_equal(corner, resized(crop(7)[:8, :8], 1))


@pytest.mark.parametrize(("min_area", "least", "most"), [(0.9, 0.8, 1.0), (0.08, 0.05, 0.5)])
def test_min_area_bounds_the_crop(min_area, least, most):
    ramp = np.linspace(0, 255, 100).astype(np.uint8)
    down, across = np.meshgrid(ramp, ramp, indexing="ij")
    pixels = np.stack([down, across, across], axis=2)
    shares = []
    for number in range(60):
        image = run(RandomCropResize(side=32, min_area=min_area), pixels, number, 0).astype(float)
        shares.append(np.ptp(image[..., 0]) * np.ptp(image[..., 1]) / 255**2)
    assert least <= min(shares) <= most


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        ("decode", (Decode(),)),
        ("decode()", (Decode(),)),
        ("decode_random_crop(224)|flip", (DecodeRandomCrop(side=224), Flip())),
        ("decode_random_crop(64, min_area=0.3)", (DecodeRandomCrop(side=64, min_area=0.3),)),
        (" decode | resize( side = 8 ) | flip( ) ", (Decode(), Resize(side=8), Flip())),
        ("decode|pad_reflect(4)|random_crop(32)", (Decode(), PadReflect(margin=4), RandomCrop(side=32))),
        ("decode|resize_short(9)|center_crop(8)", (Decode(), ResizeShort(side=9), CenterCrop(side=8))),
        ("decode|random_crop_resize(8, 0.5)", (Decode(), RandomCropResize(side=8, min_area=0.5))),
    ],
)
def test_chains_are_read(spec, ops):
    assert parse_ops(spec) == ops


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "ops '': '' is not an op; write a chain such as decode|resize(224)"),
        ("decode|", "ops 'decode|': '' is not an op"),
        ("decode;flip", "'decode;flip' is not an op"),
        ("decode|resize(", "'resize(' is not an op"),
        ("decode|3", "'3' is not an op"),
        ("decode|resize(__import__('os'))", "\"resize(__import__('os'))\" is not an op"),
        ("decode|tf.resize(3)", "'tf.resize(3)' is not an op"),
        ("decode|resiz(8)", "there is no op 'resiz'; did you mean resize? known are center_crop, decode"),
        ("decode|qqqq", "there is no op 'qqqq'; known are center_crop"),
        ("decode|resize", "'resize' does not fit; resize takes side"),
        ("decode|resize(8, 9)", "'resize(8, 9)' does not fit; resize takes side"),
        ("decode|resize(size=8)", "'resize(size=8)' does not fit; resize takes side"),
        ("decode_random_crop(8, area=1)", "decode_random_crop takes side, min_area"),
        ("decode|flip(1)", "'flip(1)' does not fit; flip takes no argument"),
        ("resize(8)", "ops 'resize(8)' must start with decode or decode_random_crop and decode only once"),
        ("decode|decode", "ops 'decode|decode' must start with decode"),
        ("decode|resize(8)|decode_random_crop(8)", "decode only once"),
    ],
)
def test_a_wrong_chain_is_refused_with_what_is_wrong(spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        parse_ops(spec)


@pytest.mark.parametrize("part", ["resize(0)", "resize(-3)", "resize('big')", "resize(2.5)", "pad_reflect(-1)"])
def test_an_argument_that_no_image_could_fit_is_refused_when_it_is_read(part):
    with pytest.raises(OptionError, match=re.escape(part)):
        parse_ops(f"decode|{part}")


@pytest.mark.parametrize("min_area", ["0", "-1", "1.5", "'all'"])
def test_an_area_outside_0_to_1_is_refused_when_it_is_read(min_area):
    with pytest.raises(OptionError, match=re.escape(f"min_area={min_area}")):
        parse_ops(f"decode_random_crop(8, min_area={min_area})")

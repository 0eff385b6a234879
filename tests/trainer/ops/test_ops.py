from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from tests.make_images import crop, encode, jpeg, png
from trainer.ops import (
    BOX_LABELS,
    BOXES,
    IMAGE,
    OPS,
    CenterCrop,
    ColorJitter,
    Cutout,
    Decode,
    DecodeRandomCrop,
    Flip,
    FlipVertical,
    MixingOp,
    MultiCrop,
    Normalize,
    PadReflect,
    RandAugment,
    RandomCrop,
    RandomCropResize,
    Resize,
    ResizeShort,
    Rotate,
    apply_ops,
    bind_statistics,
    outputs,
    parse_ops,
    rng,
)
from trainer.ops.rand_augment import KINDS
from trainer.ops.resize import random_window

# Op -> (a chain that ends with it, static shape after it, shape of an image of 60 x 80).
CHAINS = {
    "decode": ("decode", (None, None, 3), (60, 80, 3)),
    "decode_random_crop": ("decode_random_crop(24)", (24, 24, 3), (24, 24, 3)),
    "random_crop_resize": ("decode|random_crop_resize(24)", (24, 24, 3), (24, 24, 3)),
    "resize": ("decode|resize(24)", (24, 24, 3), (24, 24, 3)),
    "resize_short": ("decode|resize_short(24, method='area')", (None, None, 3), (24, 32, 3)),
    "center_crop": ("decode|center_crop(24)", (24, 24, 3), (24, 24, 3)),
    "pad_reflect": ("decode|resize(24)|pad_reflect(3)", (30, 30, 3), (30, 30, 3)),
    "random_crop": ("decode|random_crop(24)", (24, 24, 3), (24, 24, 3)),
    "flip": ("decode|resize(24)|flip", (24, 24, 3), (24, 24, 3)),
    "flip_vertical": ("decode|resize(24)|flip_vertical", (24, 24, 3), (24, 24, 3)),
    "rotate": ("decode|rotate(20)", (None, None, 3), (60, 80, 3)),
    "cutout": ("decode|cutout(20)", (None, None, 3), (60, 80, 3)),
    "color_jitter": ("decode|color_jitter(0.5)", (None, None, 3), (60, 80, 3)),
    "rand_augment": ("decode|rand_augment(2, 15)", (None, None, 3), (60, 80, 3)),
    "multi_crop": ("decode|multi_crop(2, 24)", (4, 24, 24, 3), (4, 24, 24, 3)),
    "normalize": ("decode|resize(24)|normalize((1, 2, 3), (4, 5, 6))", (24, 24, 3), (24, 24, 3)),
}
RANDOM = {
    "decode_random_crop", "random_crop_resize", "random_crop", "flip", "flip_vertical", "rotate", "cutout",
    "color_jitter", "rand_augment", "multi_crop",
}  # fmt: skip
DRAWS = [(number, 3) for number in range(16)]


def image_seed(*values: int) -> tf.Tensor:
    return tf.constant(values or (0, 0), tf.int32)


def numbers_of(op, *values: int) -> tf.Tensor:
    return rng.uniform_for_chain(image_seed(*values), [op.random_count], 0)[0]


def run(op, pixels, *values: int) -> np.ndarray:
    return op({IMAGE: tf.constant(pixels)}, numbers_of(op, *values))[IMAGE].numpy()


def numbered(height: int, width: int) -> np.ndarray:
    """Every pixel differs from every other, in every channel."""
    grey = np.arange(height * width, dtype=np.uint8).reshape(height, width, 1)
    return np.concatenate([grey, grey + 1, grey + 2], axis=2)


def window_of(height: int, width: int, min_area: float, *values: int) -> tuple[slice, slice]:
    begin, size = random_window(tf.constant([height, width]), min_area, numbers_of(RandomCropResize(8), *values))
    (top, left), (rows, columns) = begin.numpy(), size.numpy()
    return slice(top, top + rows), slice(left, left + columns)


def resized(pixels: np.ndarray, side: int) -> np.ndarray:
    return np.floor(tf.image.resize(pixels, [side, side]).numpy() + 0.501).astype(np.uint8)


def test_every_op_has_a_row_here():
    on_images = {name for name, op in OPS.items() if not issubclass(op, MixingOp)}
    assert CHAINS.keys() == on_images
    assert {name for name in on_images if parse_ops(CHAINS[name][0])[-1].random} == RANDOM


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_eager_and_tf_data_give_the_same_pixels_and_static_shapes(name):
    spec, static, shape = CHAINS[name]
    encoded = jpeg(3) if name.startswith("decode") else png(3)
    ops = parse_ops(spec)
    rows = tf.data.Dataset.from_tensor_slices(([encoded] * 4, tf.constant(DRAWS[:4])))
    dataset = rows.map(lambda image, draw: apply_ops(ops, {IMAGE: image}, draw)[IMAGE])
    assert dataset.element_spec == tf.TensorSpec(static, tf.float32 if name == "normalize" else tf.uint8)
    for values, image in zip(DRAWS, dataset.as_numpy_iterator(), strict=False):
        eager = apply_ops(ops, {IMAGE: tf.constant(encoded)}, image_seed(*values))[IMAGE]
        assert eager.shape == shape
        np.testing.assert_array_equal(eager.numpy(), image)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_ops_depend_on_the_draw_and_equal_draws_give_equal_images(name):
    ops = parse_ops(CHAINS[name][0])
    image = {IMAGE: tf.constant(png(4))}
    made = tf.function(lambda draw: apply_ops(ops, image, draw)[IMAGE])

    def seen(epoch: int) -> list[bytes]:
        return [made(image_seed(first, epoch)).numpy().tobytes() for first, _ in DRAWS]

    assert seen(3) == seen(3)
    assert len(set(seen(3))) > 1
    assert seen(4) != seen(3)


def test_two_random_ops_of_a_chain_draw_apart():
    image = {IMAGE: tf.constant(png(4))}
    twice = [apply_ops((Decode(), Flip(), Flip()), image, image_seed(*values))[IMAGE].numpy() for values in DRAWS]
    # Were the draws one, two flips would always undo each other.
    assert {bool((pixels == twice[0]).all()) for pixels in twice} == {True, False}


def test_decode_returns_the_pixels_of_a_png_and_three_channels_of_a_grey_one():
    pixels = crop(5, 20, 30)
    np.testing.assert_array_equal(run(Decode(), encode(pixels, "PNG")), pixels)
    grey = run(Decode(), encode(pixels[..., 0], "PNG"))
    np.testing.assert_array_equal(grey, np.repeat(pixels[..., :1], 3, axis=2))


def test_resize_averages_neighbours_and_rounds_halves_up():
    row = np.array([0, 1, 1, 2, 10, 20, 253, 255], np.uint8)
    pixels = np.tile(row[None, :, None], (8, 1, 3))
    assert run(Resize(side=4), pixels)[..., 0].tolist() == [[1, 2, 15, 254]] * 4


@pytest.mark.parametrize(("height", "width", "side", "expected"), [(60, 30, 10, (20, 10)), (7, 9, 256, (256, 329))])
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


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_a_flip_is_as_probable_as_it_is_told(probability):
    pixels = numbered(2, 3)
    for kind, mirrored in ((Flip, pixels[:, ::-1]), (FlipVertical, pixels[::-1])):
        for values in DRAWS[:4]:
            np.testing.assert_array_equal(run(kind(probability), pixels, *values), mirrored if probability else pixels)


def test_decode_random_crop_is_decode_then_slice_then_resize():
    number = 1
    min_area = 0.5
    pixels = crop(number)
    rows, columns = window_of(60, 80, min_area, number, 1)
    expected = resized(pixels[rows, columns], 16)
    op = DecodeRandomCrop(side=16, min_area=min_area)
    np.testing.assert_array_equal(run(op, encode(pixels, "PNG"), number, 1), expected)
    np.testing.assert_array_equal(run(RandomCropResize(side=16, min_area=min_area), pixels, number, 1), expected)


def test_decode_random_crop_of_a_jpeg_is_that_of_its_pixels_but_for_chroma_at_the_edge():
    number = 1
    encoded = jpeg(number, subsampling=0)
    rows, columns = window_of(60, 80, 0.08, number, 1)
    expected = resized(tf.io.decode_jpeg(encoded, channels=3).numpy()[rows, columns], 16).astype(int)
    whole = DecodeRandomCrop(side=16, scaled=False)
    found = run(whole, encoded, number, 1).astype(int)
    assert np.abs(found - expected).mean() < 0.5
    subsampled = jpeg(number, subsampling=2)
    expected = resized(tf.io.decode_jpeg(subsampled, channels=3).numpy()[rows, columns], 16).astype(int)
    assert np.abs(run(whole, subsampled, number, 1) - expected).mean() < 4


@pytest.mark.parametrize("height", [800, 797])
def test_a_crop_many_times_the_target_is_one_of_the_scaled_image_alone_and_in_a_batch(height):
    noise = np.random.default_rng(0).integers(0, 256, (height, 1003, 3), np.uint8)
    op, encoded, ratios = DecodeRandomCrop(side=48, min_area=0.02), encode(noise, "JPEG", subsampling=0), set()
    seeds = [numbers_of(op, number, 1) for number in range(60)]
    sides = {record.HEIGHT: tf.constant([height] * 60, tf.int64), record.WIDTH: tf.constant([1003] * 60, tf.int64)}
    windows = op.window({IMAGE: tf.constant([encoded] * 60), **sides}, tf.stack(seeds)).numpy()
    for uniforms, (top, left, rows, columns, halvings) in zip(seeds, windows, strict=True):
        ratio = 2**halvings
        assert min(rows, columns) // 48 in (range(ratio, 2 * ratio) if ratio < 8 else range(8, 100)), (rows, columns)
        assert not {number % ratio for number in (top, left, rows, columns)} - {0}
        scaled = tf.io.decode_jpeg(encoded, channels=3, ratio=ratio).numpy()
        cut = scaled[top // ratio : (top + rows) // ratio, left // ratio : (left + columns) // ratio]
        assert cut.shape[:2] == (rows // ratio, columns // ratio)
        found = op({IMAGE: tf.constant(encoded)}, uniforms)[IMAGE].numpy()
        assert np.abs(found.astype(int) - resized(cut, 48)).max() <= 1  # a half may be rounded either way
        ratios.add(ratio)
    assert ratios == {2, 4, 8}


def test_boxes_are_cut_by_the_window_that_moved_to_scaled_pixels():
    op, encoded = DecodeRandomCrop(side=48, min_area=0.2), encode(np.zeros((797, 1003, 3), np.uint8), "JPEG")
    for number in range(8):
        uniforms = numbers_of(op, number, 1)
        sides = {record.HEIGHT: tf.constant(797, tf.int64), record.WIDTH: tf.constant(1003, tf.int64)}
        top, left, rows, columns, _ = op.window({IMAGE: tf.constant(encoded), **sides}, uniforms).numpy()
        inner = np.array([top + 16, left + 16, top + rows - 16, left + columns - 16]) / [797, 1003, 797, 1003]
        features = {IMAGE: tf.constant(encoded), BOXES: tf.constant([inner], tf.float32), BOX_LABELS: tf.constant([1])}
        expected = [[16 / rows, 16 / columns, 1 - 16 / rows, 1 - 16 / columns]]
        np.testing.assert_allclose(op(features, uniforms)[BOXES].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("encoded", [png(7), jpeg(7)], ids=["png", "jpeg"])
def test_decode_random_crop_takes_the_size_of_the_record_when_there_is_one(encoded):
    op = DecodeRandomCrop(side=16)
    size = {record.HEIGHT: tf.constant(60, tf.int64), record.WIDTH: tf.constant(80, tf.int64)}
    for values in DRAWS[:4]:
        with_size = op({IMAGE: tf.constant(encoded), **size}, numbers_of(op, *values))[IMAGE].numpy()
        np.testing.assert_array_equal(with_size, run(op, encoded, *values))
    # A record that says less than the file holds is believed: the crop never leaves it.
    small = {record.HEIGHT: tf.constant(8, tf.int64), record.WIDTH: tf.constant(8, tf.int64)}
    corner = DecodeRandomCrop(side=1, min_area=1.0)({IMAGE: tf.constant(png(7)), **small}, tf.zeros([22]))[
        IMAGE
    ].numpy()
    np.testing.assert_array_equal(corner, resized(crop(7)[:8, :8], 1))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (32, 32)])
def test_windows_are_drawn_as_described(height, width):
    draws = tf.data.Dataset.from_tensor_slices([(number, 0) for number in range(2000)])
    uniforms = draws.map(lambda draw: rng.uniform_for_chain(draw, [22], 0)[0])
    windows = uniforms.map(lambda drawn: random_window(tf.constant([height, width]), 0.08, drawn))
    begin, size = next(windows.batch(2000).as_numpy_iterator())
    (top, left), (rows, columns) = begin.T, size.T
    assert (rows >= 1).all()
    assert (top >= 0).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()
    areas, aspects = rows * columns / (height * width), columns / rows
    slack = 1.5 / min(rows.min(), columns.min())
    assert 0.08 - slack <= areas.min() < 0.12
    assert 0.9 < areas.max() <= 1
    assert aspects.min() >= 0.75 - slack
    assert aspects.max() <= 4 / 3 + slack
    # Small windows get log-uniform aspects: as many wide as tall.
    assert np.mean(aspects[areas < 0.4] > 1) == pytest.approx(0.5, abs=0.08)
    assert np.mean(top[rows < height] / (height - rows[rows < height])) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("height", "width", "expected"), [(100, 10, (43, 0, 13, 10)), (10, 100, (0, 43, 10, 13))])
def test_a_window_that_never_fits_becomes_the_largest_centred_one(height, width, expected):
    begin, size = random_window(tf.constant([height, width]), 1.0, tf.fill([22], 0.9))
    assert (*begin.numpy(), *size.numpy()) == expected


def test_resize_by_area_averages_all_pixels_and_bilinear_only_the_nearest():
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0, 0] = 160
    assert run(Resize(side=2, method="area"), pixels)[0, 0, 0] == 10
    assert run(Resize(side=2), pixels)[0, 0, 0] == 0


def test_cutout_paints_a_square_that_the_edge_may_cut():
    pixels = np.full((16, 16, 3), 9, np.uint8)
    areas = []
    for number in range(60):
        image = run(Cutout(side=6, fill=200), pixels, number, 0)
        rows, columns = np.nonzero((image == 200).all(axis=2))
        areas.append(len(rows))
        assert areas[-1] == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert np.count_nonzero(image == 9) == 3 * (256 - areas[-1])
    assert max(areas) == 36
    assert 9 <= min(areas) < 36


def test_rotate_by_nothing_is_the_image_and_by_a_quarter_is_a_quarter():
    pixels = crop(1, 20, 20)
    np.testing.assert_array_equal(run(Rotate(max_degrees=0), pixels, 5, 0), pixels)
    quarter = Rotate(max_degrees=90)({IMAGE: tf.constant(pixels)}, tf.constant([1.0]))[IMAGE].numpy()
    np.testing.assert_allclose(quarter.astype(int), np.rot90(pixels), atol=1)


def test_rotate_brings_in_its_fill_at_the_corners_only():
    pixels = tf.fill([31, 31, 3], tf.constant(100, tf.uint8))
    image = Rotate(max_degrees=45, fill=7)({IMAGE: pixels}, tf.constant([1.0]))[IMAGE].numpy()
    assert (image[0, 0] == 7).all()
    assert (image[10:20, 10:20] == 100).all()


FLAT = np.tile(np.array([[[200, 100, 50]]], np.uint8), (4, 4, 1))


@pytest.mark.parametrize(
    ("argument", "number", "expected"),
    [
        ({"brightness": 0.5}, 0.0, (100, 50, 25)),
        ({"brightness": 0.2}, 1.0, (240, 120, 60)),
        ({"saturation": 1.0}, 0.0, (124, 124, 124)),
        ({"contrast": 1.0}, 0.0, (124, 124, 124)),
        ({"hue": 0.5}, 0.5, (200, 100, 50)),
        ({"strength": 0.5, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}, 0.9, (200, 100, 50)),
    ],
)
def test_color_jitter_changes_what_its_arguments_name(argument, number, expected):
    image = ColorJitter(**argument)({IMAGE: tf.constant(FLAT)}, tf.fill([4], number))[IMAGE].numpy()
    np.testing.assert_allclose(image[0, 0].astype(int), expected, atol=1)
    assert (image == image[0, 0]).all()


def test_a_turn_of_the_hue_keeps_the_brightness_and_the_greys():
    turned = ColorJitter(hue=0.5)({IMAGE: tf.constant(FLAT)}, tf.constant([0.5, 0.5, 0.5, 0.8]))[IMAGE].numpy()
    assert np.abs(turned.astype(int) - FLAT).max() > 30
    weights = np.array([0.299, 0.587, 0.114])
    assert turned[0, 0] @ weights == pytest.approx(FLAT[0, 0] @ weights, abs=3)
    grey = np.full((4, 4, 3), 90, np.uint8)
    np.testing.assert_array_equal(ColorJitter(hue=0.5)({IMAGE: tf.constant(grey)}, tf.fill([4], 0.8))[IMAGE], grey)


def test_contrast_pulls_towards_the_mean_grey_of_the_image():
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0] = 200
    image = ColorJitter(contrast=0.5)({IMAGE: tf.constant(pixels)}, tf.zeros([4]))[IMAGE].numpy()
    assert image[:, 0, 0].tolist() == [150, 50]


def rand_augmented(kind: str, pixels: np.ndarray, magnitude: float = 15, minus: bool = False) -> np.ndarray:
    """Runs one kind of RandAugment on one image."""
    numbers = tf.constant([(KINDS.index(kind) + 0.5) / len(KINDS), 0.25 if minus else 0.75])
    return RandAugment(count=1, magnitude=magnitude)({IMAGE: tf.constant(pixels)}, numbers)[IMAGE].numpy()


@pytest.mark.parametrize("kind", ["posterize", "solarize", "autocontrast", "equalize", "brightness", "color"])
def test_rand_augment_does_to_colours_what_pillow_does(kind):
    pixels = crop(2, 40, 50, "flower.jpg") // 2 + 30
    image = Image.fromarray(pixels)
    expected = {
        "posterize": lambda: ImageOps.posterize(image, 6),
        "solarize": lambda: ImageOps.solarize(image, 128),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(1.45),
        "color": lambda: ImageEnhance.Color(image).enhance(1.45),
    }[kind]()
    found = rand_augmented(kind, pixels).astype(int)
    assert np.abs(found - np.asarray(expected)).max() <= 1


@pytest.mark.parametrize(("kind", "minus"), [("contrast", True), ("sharpness", True), ("sharpness", False)])
def test_rand_augment_enhances_as_pillow_does_up_to_its_rounding(kind, minus):
    pixels = crop(2, 40, 50)
    enhancer = getattr(ImageEnhance, kind.capitalize())(Image.fromarray(pixels))
    expected = np.asarray(enhancer.enhance(0.55 if minus else 1.45)).astype(int)
    assert np.abs(rand_augmented(kind, pixels, minus=minus) - expected).max() <= 2


@pytest.mark.parametrize("kind", ["identity", "rotate", "autocontrast"])
def test_rand_augment_changes_the_image_by_every_kind_but_identity(kind):
    pixels = crop(2, 40, 50) // 2 + 30
    changed = (rand_augmented(kind, pixels, 30) != pixels).any()
    assert changed == (kind != "identity")
    if kind != "autocontrast":  # this one knows no strength
        np.testing.assert_array_equal(rand_augmented(kind, pixels, 0), pixels)


def test_rand_augment_shifts_by_its_share_of_the_side():
    pixels = crop(2, 31, 331)
    right = rand_augmented("translate_x", pixels, 30, minus=True)
    np.testing.assert_array_equal(right[:, 150:], pixels[:, :181])
    assert (right[:, :150] == 0).all()


def test_multi_crop_gives_windows_and_their_mirror_images():
    pixels = numbered(10, 12)
    images = run(MultiCrop(count=5, side=6), pixels, 4, 4)
    assert images.shape == (10, 6, 6, 3)
    corners = set()
    for plain, mirrored in zip(images[::2], images[1::2], strict=True):
        top, left = divmod(int(plain[0, 0, 0]), 12)
        np.testing.assert_array_equal(plain, pixels[top : top + 6, left : left + 6])
        np.testing.assert_array_equal(mirrored, plain[:, ::-1])
        corners.add((top, left))
    assert len(corners) > 1
    assert run(MultiCrop(count=3, side=6, mirror=False), pixels).shape == (3, 6, 6, 3)


def test_ops_behind_multi_crop_run_on_each_image_with_its_own_draw():
    ops = parse_ops("decode|multi_crop(2, 24)|cutout(8)")
    assert (outputs(ops), outputs(ops[:1])) == (4, 1)
    features = {IMAGE: tf.constant(png(3))}
    crops = apply_ops(ops[:2], features, image_seed(5, 6))[IMAGE]
    draws = rng.split(image_seed(5, 6), 4)
    expected = [apply_ops(ops[2:], {IMAGE: crops[i]}, draws[i], first=2)[IMAGE].numpy() for i in range(4)]
    np.testing.assert_array_equal(apply_ops(ops, features, image_seed(5, 6))[IMAGE], expected)
    assert len({image.tobytes() for image in expected}) == 4


def test_normalize_takes_the_statistics_of_the_dataset():
    pixels = crop(1, 6, 7)
    mean, std = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)
    (bound,) = bind_statistics([Normalize()], mean, std)
    image = run(bound, pixels)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, (pixels - np.array(mean)) / std, rtol=1e-5, atol=1e-6)
    own = Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert bind_statistics([Flip(), own], mean, std) == (Flip(), own)
    with pytest.raises(OptionError, match="normalize has no statistics"):
        run(Normalize(), pixels)


@pytest.mark.parametrize("spec", ["mixup(0.2)", "cutmix(1.0)"])
def test_an_op_that_mixes_refuses_one_image(spec):
    with pytest.raises(OptionError, match="mixes the images of a batch"):
        apply_ops(parse_ops(f"decode|{spec}"), {IMAGE: tf.constant(png(3))}, image_seed())

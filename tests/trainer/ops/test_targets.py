"""Boxes and masks move with the image: an object drawn into the image is still where its box and its mask say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from trainer.ops import BOX_LABELS, BOXES, IMAGE, MASK, OPS, Decode, RandAugment, RandomCrop, apply_ops, parse_ops, rng
from trainer.ops.base import MixingOp
from trainer.ops.rand_augment import KINDS

HEIGHT, WIDTH = 60, 80
OBJECT = (12, 20, 36, 44)  # top, left, bottom, right
BOX = (OBJECT[0] / HEIGHT, OBJECT[1] / WIDTH, OBJECT[2] / HEIGHT, OBJECT[3] / WIDTH)
GEOMETRIC = [
    "resize(50, 'area')", "resize_short(90)", "center_crop(52)", "pad_reflect(9)", "random_crop(50)",
    "random_crop_resize(64, 0.5)", "flip_vertical(1.0)", "flip", "rotate(180)",
    "pad_reflect(4)|random_crop(48)|flip|rotate(10)|cutout(4)", "rand_augment(1, 12)",
]  # fmt: skip
UNMOVED = ["cutout(8)", "color_jitter(0.5)"]
DRAWS = [tf.constant([number, 1]) for number in range(12)]


def scene(box: tuple[float, ...] = BOX) -> dict[str, tf.Tensor]:
    """A bright object on a dark ground, its mask, and its box or another one."""
    top, left, bottom, right = OBJECT
    image = np.full((HEIGHT, WIDTH, 3), 10, np.uint8)
    image[top:bottom, left:right] = 250
    mask = np.zeros((HEIGHT, WIDTH, 1), np.uint8)
    mask[top:bottom, left:right] = 3
    return {
        IMAGE: tf.constant(image),
        MASK: tf.constant(mask),
        BOXES: tf.constant([box]),
        BOX_LABELS: tf.constant([7], tf.int64),
    }


def extent(visible: np.ndarray) -> np.ndarray:
    """Top, left, bottom and right of the true pixels."""
    rows, columns = np.nonzero(visible)
    return np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])


def box_in_pixels(found: dict[str, tf.Tensor]) -> np.ndarray:
    height, width, _ = found[IMAGE].shape
    return found[BOXES].numpy()[-1] * [height, width, height, width]


@pytest.mark.parametrize("spec", GEOMETRIC)
def test_box_and_mask_still_fit_the_object_after_each_op(spec):
    ops = parse_ops(f"decode|{spec}")[1:]
    run = tf.function(lambda features, draw: apply_ops(ops, features, draw))
    colours = "rand_augment" in spec
    seen = set()
    for draw in DRAWS:
        found = run(scene(), draw)
        mask = found[MASK].numpy()[..., 0]
        assert found[MASK].shape[:2] == found[IMAGE].shape[:2]
        assert set(np.unique(mask)) <= {0, 3}, "a mask holds names, and none may be made up"
        if not len(found[BOXES]):
            assert (mask == 3).mean() < 0.1
            continue
        assert found[BOX_LABELS].numpy().tolist() == [7]
        if not colours:
            bright = found[IMAGE].numpy()[..., 0] > 130
            assert np.mean(bright != (mask == 3)) < 0.02 + 0.04 * ("cutout" in spec or "pad" in spec)
        if "pad" in spec:
            continue  # the mirror shows a part of the object again, without a box
        tolerance = 3.0 if colours or "rotate" in spec else 1.5
        np.testing.assert_allclose(box_in_pixels(found), extent(mask == 3), atol=tolerance)
        seen.add(found[BOXES].numpy().tobytes())
    random = any(op.random for op in ops) and "(1.0)" not in spec
    assert (len(seen) > 1) == (random and "pad" not in spec)


@pytest.mark.parametrize("spec", UNMOVED)
def test_ops_that_change_colours_leave_boxes_and_masks_alone(spec):
    before = scene()
    found = apply_ops(parse_ops(f"decode|{spec}")[1:], before, DRAWS[0])
    assert (found[IMAGE].numpy() != before[IMAGE].numpy()).any()
    for name in (BOXES, BOX_LABELS, MASK):
        np.testing.assert_array_equal(found[name], before[name])


def test_every_op_is_in_one_of_the_two_lists_or_makes_the_image():
    named = {op.split("(")[0] for spec in GEOMETRIC + UNMOVED for op in spec.split("|")}
    elsewhere = {"decode", "decode_random_crop", "multi_crop", "normalize"}
    assert named | elsewhere == {name for name, op in OPS.items() if not issubclass(op, MixingOp)}


def test_a_padded_box_keeps_to_its_object_and_not_to_its_mirror_image():
    found = apply_ops(parse_ops("decode|pad_reflect(9)")[1:], scene(), DRAWS[0])
    np.testing.assert_allclose(box_in_pixels(found), np.array(OBJECT) + 9, atol=1e-3)


MOVING = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


@pytest.mark.parametrize(("kind", "minus"), zip((*MOVING, "color"), itertools.cycle([True, False])))
def test_boxes_and_masks_follow_every_kind_of_rand_augment(kind, minus):
    numbers = tf.constant([(KINDS.index(kind) + 0.5) / len(KINDS), 0.25 if minus else 0.75])
    found = RandAugment(count=1, magnitude=9)(scene(), numbers)
    np.testing.assert_allclose(box_in_pixels(found), extent(found[MASK].numpy()[..., 0] == 3), atol=1.5)
    assert (found[MASK].numpy() != scene()[MASK].numpy()).any() == (kind in MOVING)


@pytest.mark.parametrize(("keep", "kept"), [(0.49, True), (0.51, False)])
def test_a_box_is_dropped_when_less_of_it_is_left_than_keep(keep, kept):
    half_out = scene((0.0, -0.1, 0.5, 0.1))
    found = RandomCrop(side=60, keep=keep)(half_out, tf.zeros([2]))
    assert found[BOX_LABELS].numpy().tolist() == ([7] if kept else [])
    assert found[BOXES].shape[0] == int(kept)


def test_boxes_go_with_the_crop_of_the_decoder():
    before = scene()
    encoded = tf.io.encode_png(before[IMAGE])
    op = parse_ops("decode_random_crop(64, 0.4)")[0]
    for draw in DRAWS[:6]:
        numbers = rng.uniform_for_chain(draw, [op.random_count], 0)[0]
        found = op({**before, IMAGE: encoded}, numbers)
        expected = op.on_pixels()(before, numbers)
        for name in (IMAGE, MASK, BOXES, BOX_LABELS):
            np.testing.assert_array_equal(found[name], expected[name])
    assert Decode()({**before, IMAGE: encoded}, numbers)[BOXES] is before[BOXES]

"""Chains over batches on the host: the same pixels as image by image."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from tests.make_images import crop
from trainer.ops import IMAGE, apply_batch_ops, apply_ops, first_batch_op, mix_batch_labels, parse_ops, tf_ops
from trainer.ops.mixing import beta, take_partner

COUNT = 24
IMAGES = np.stack([crop(number, 32, 32) for number in range(COUNT)])
DRAWS = np.stack([np.arange(COUNT) * 7919 - 50_000, np.full(COUNT, 3)], axis=1).astype(np.int32)
STATISTICS = "normalize((120, 110, 100), (60, 50, 40))"


@pytest.mark.parametrize(
    "spec",
    [
        f"pad_reflect(4)|random_crop(32)|flip|cutout(8)|{STATISTICS}",
        "random_crop(28)|cutout(8)|flip_vertical|pad_reflect(3)|center_crop(30)|flip",
    ],
)
def test_a_batch_gives_the_pixels_of_its_images(spec):
    ops = parse_ops(f"decode|{spec}")[1:]
    rows = tf.data.Dataset.from_tensor_slices((IMAGES, DRAWS))
    one_by_one = rows.map(lambda image, draw: apply_ops(ops, {IMAGE: image}, draw, first=1)[IMAGE])
    batched = rows.batch(COUNT).map(lambda images, draws: apply_batch_ops(ops, images, draws, first=1))
    expected = np.stack(list(one_by_one.as_numpy_iterator()))
    (found,) = batched.as_numpy_iterator()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert batched.element_spec.shape[1:] == expected.shape[1:], "what follows must be able to compile"


@pytest.mark.parametrize(
    ("spec", "position"),
    [
        ("decode|resize(32)|flip", 2),
        ("decode|resize(224)|random_crop(200)|flip", 4),
        ("decode|resize(32)|pad_reflect(4)|random_crop(32)|flip|cutout(8)|normalize", 2),
        ("decode|pad_reflect(4)|random_crop(32)|flip|cutout(8)", 3),
        ("decode_random_crop(224)|color_jitter(0.5)|mixup(0.2)", 2),
        ("decode|multi_crop(5, 24)|flip", 2),
        ("decode|resize(32)|rand_augment(1, 15)|flip", 3),
        ("decode|resize(32)|rotate(20)|flip", 3),
    ],
)
def test_only_the_end_of_a_chain_that_is_faster_on_batches_runs_on_them(spec, position):
    assert first_batch_op(parse_ops(spec)) == position


def test_boxes_and_masks_keep_a_chain_off_batches_but_for_what_leaves_them_alone():
    assert first_batch_op(parse_ops("decode|resize(32)|flip|normalize"), moves_targets=True) == 3


def test_images_of_many_sizes_cannot_be_mixed():
    with pytest.raises(OptionError, match="must have one size; put"):
        first_batch_op(parse_ops("decode|resize_short(32)|cutmix(1.0)|normalize"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random_crop(40)", "random_crop(40) needs images of at least 40x40 pixels; these have 32x32"),
        ("center_crop(33)", "center_crop(33) needs images of at least 33x33"),
        ("pad_reflect(32)", "pad_reflect(32) needs images of at least 33x33"),
    ],
)
def test_images_that_are_too_small_are_named_before_anything_runs(spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        apply_batch_ops(parse_ops(f"decode|{spec}")[1:], tf.constant(IMAGES), DRAWS)


def test_labels_mix_by_the_share_of_the_pixels():
    spec = "mixup(1.0)|cutmix(1.0)"
    ops = parse_ops(f"decode|{spec}")[1:]
    # Images of one value, which is the number of the image, tell by their mean what they are mixed of.
    side = 256
    values = np.arange(COUNT, dtype=np.uint8) * 10
    images = np.tile(values[:, None, None, None], (1, side, side, 3))
    mixed = apply_batch_ops(ops, tf.constant(images), DRAWS, first=4).numpy()
    labels = mix_batch_labels(ops, tf.eye(COUNT), DRAWS, first=4).numpy()
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(mixed.mean(axis=(1, 2, 3)), labels @ values.astype(float), atol=240 * 2 / side + 1)
    assert (np.count_nonzero(labels > 1e-6, axis=1) > 1).mean() > 0.7


@pytest.mark.parametrize("spec", ["mixup(0.4, probability=0.0)", "cutmix(1.0, probability=0.0)"])
def test_what_is_not_drawn_is_not_mixed(spec):
    ops = parse_ops(f"decode|{spec}")[1:]
    np.testing.assert_array_equal(apply_batch_ops(ops, tf.constant(IMAGES), DRAWS), IMAGES)
    np.testing.assert_array_equal(mix_batch_labels(ops, tf.eye(COUNT), DRAWS), np.eye(COUNT))


def test_the_partner_is_never_the_image_itself_but_in_a_batch_of_one():
    values = tf.range(5)
    found = {tuple(take_partner(tf_ops, values, tf.fill([5, 3], number / 10)).numpy()) for number in range(10)}
    assert found == {tuple((np.arange(5) + places) % 5) for places in range(1, 5)}
    assert take_partner(tf_ops, tf.range(1), tf.fill([1, 3], 0.9)).numpy().tolist() == [0]


@pytest.mark.parametrize("alpha", [0.05, 10.0])
def test_shares_come_from_the_beta_distribution(alpha):
    steps = (np.arange(100_000) + 0.5) / 100_000
    shares = beta(tf_ops, alpha, tf.constant(steps, tf.float32)).numpy()
    assert (np.diff(shares) >= -1e-6).all()
    samples = np.sort(np.random.default_rng(0).beta(alpha, alpha, 400_000))
    # The two-sample Kolmogorov-Smirnov distance that is passed once in ten thousand times is 0.008 at these sizes.
    places = np.linspace(0.001, 0.999, 999)
    below = np.searchsorted(np.sort(shares), places) / 1e5 - np.searchsorted(samples, places) / 4e5
    assert np.abs(below).max() < 0.006
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.01)

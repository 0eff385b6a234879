"""Augmentation on the device against the ops of the host, image by image and number by number."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from tests.make_images import crop
from trainer.ops import IMAGE, OPS, BatchOp, apply_batch_ops, apply_ops, mix_batch_labels
from trainer.ops.device import DEVICE_OPS, FIRST_SALT, apply_device_ops, mix_labels, output_side, parse_device_ops

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 16
IMAGES = np.stack([crop(number, 32, 32) for number in range(COUNT)])
DRAWS = np.stack([np.arange(COUNT) * 7919 - 50_000, np.full(COUNT, 3)], axis=1).astype(np.int32)
# Op -> a use of it, and the largest difference to the host, which rounds to whole numbers, in 255ths.
ROWS = {
    "center_crop": ("center_crop(24)", 0),
    "color_jitter": ("color_jitter(0.5)", 0.51),
    "cutmix": ("cutmix(1.0)", 0),
    "cutout": ("cutout(8)", 0),
    "flip": ("flip", 0),
    "flip_vertical": ("flip_vertical", 0),
    "mixup": ("mixup(0.4)", 0.51),
    "normalize": ("normalize((120, 110, 100), (60, 50, 40))", 1e-5),
    "pad_reflect": ("pad_reflect(4)", 0),
    "rand_augment": ("rand_augment(2, 15)", 1),
    "random_crop": ("random_crop(24)", 0),
    "rotate": ("rotate(20)", 1),
}
# Two chains of all ops; where values lie between two whole numbers a compiler may round the other way.
OTHERS = "center_crop(24)|flip_vertical|rotate(20)|normalize((120, 110, 100), (60, 50, 40))"
CHAIN = "pad_reflect(4)|random_crop(32)|flip|cutout(8)|color_jitter(0.4)|rand_augment|mixup(0.2)|cutmix(1.0)"


def on_device(spec: str, images: np.ndarray = IMAGES) -> np.ndarray:
    return keras.ops.convert_to_numpy(apply_device_ops(parse_device_ops(spec), images, DRAWS))


def on_host(spec: str) -> np.ndarray:
    ops = parse_device_ops(spec)
    if spec.startswith(("mixup", "cutmix")):
        return apply_batch_ops(ops, tf.constant(IMAGES), DRAWS, FIRST_SALT).numpy()
    rows = tf.data.Dataset.from_tensor_slices((IMAGES, DRAWS))
    rows = rows.map(lambda image, draw: apply_ops(ops, {IMAGE: image}, draw, FIRST_SALT)[IMAGE])
    return np.stack(list(rows.as_numpy_iterator()))


def compiled(spec: str) -> tf.types.experimental.PolymorphicFunction:
    """A chain compiled for batches of any size."""
    ops = parse_device_ops(spec)
    signature = [tf.TensorSpec([None, 32, 32, 3], tf.uint8), tf.TensorSpec([None, 2], tf.int32)]
    return tf.function(lambda images, draw: apply_device_ops(ops, images, draw), signature, jit_compile=True)


def test_every_op_of_the_device_has_a_row_here_and_every_batch_op_is_there():
    assert ROWS.keys() == DEVICE_OPS.keys() == {name for name, op in OPS.items() if issubclass(op, BatchOp)}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_device_ops_give_the_same_images_as_host_ops(name):
    spec, allowed = ROWS[name]
    found, expected = on_device(spec), on_host(spec)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=0, atol=allowed)
    assert found.shape != IMAGES.shape or (found != IMAGES).any()


@pytest.mark.parametrize("spec", [CHAIN, OTHERS, "rand_augment(2, 15)"])
def test_compiled_gives_what_eager_gives(spec):
    found, eager = compiled(spec)(IMAGES, DRAWS).numpy(), on_device(spec)
    # What was rounded the other way may be spread by the next op.
    assert np.mean(np.abs(found - eager) > 0.01) < 1e-3
    assert spec == CHAIN or np.abs(found - eager).max() <= 1


def test_no_loop_over_images_is_in_the_graph():
    ops = parse_device_ops("pad_reflect(4)|random_crop(32)|flip|cutout(8)|rand_augment(1)|mixup(0.2)|cutmix(1.0)")

    def nodes(count: int) -> int:
        step = tf.function(lambda images, draw: apply_device_ops(ops, images, draw))
        concrete = step.get_concrete_function(
            tf.TensorSpec([count, 32, 32, 3], tf.uint8), tf.TensorSpec([count, 2], tf.int32)
        )
        return len(concrete.graph.get_operations())

    assert nodes(4) == nodes(64)


def test_bytes_and_floats_give_the_same_images():
    np.testing.assert_array_equal(on_device(CHAIN), on_device(CHAIN, IMAGES.astype(np.float32)))


def test_labels_mix_as_those_of_the_host_and_as_the_images():
    ops, labels = parse_device_ops(CHAIN), np.eye(COUNT, dtype=np.float32)
    found = keras.ops.convert_to_numpy(mix_labels(ops, labels, DRAWS))
    np.testing.assert_allclose(found, mix_batch_labels(ops, tf.constant(labels), DRAWS, FIRST_SALT), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (np.diag(found) < 1).any()
    step = tf.function(lambda values, draw: mix_labels(ops, values, draw), jit_compile=True)
    np.testing.assert_allclose(step(labels, DRAWS), found, atol=1e-5)


def test_a_chain_of_the_device_draws_apart_from_that_of_the_host():
    ops = parse_device_ops("random_crop(20)")
    host = [apply_ops(ops, {IMAGE: image}, draw)[IMAGE].numpy() for image, draw in zip(IMAGES, DRAWS, strict=True)]
    assert (on_device("random_crop(20)") != np.stack(host)).any()


@pytest.mark.parametrize(("spec", "side"), [("flip|cutout(8)", 32), ("pad_reflect(4)|random_crop(28)", 28)])
def test_the_side_that_a_chain_leaves_is_known(spec, side):
    assert output_side(parse_device_ops(spec), 32) == side
    assert on_device(spec).shape[1] == side


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("decode|flip", "there is no device op 'decode'"),
        ("mixup(0.2)|flip", "only mixup, cutmix and normalize may follow"),
    ],
)
def test_a_wrong_chain_is_refused(spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        parse_device_ops(spec)

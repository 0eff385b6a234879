from __future__ import annotations

import keras
import numpy as np
import pytest

from beam_jobs.errors import OptionError
from trainer.models import ModelSpec, build_model
from trainer.ops.device import Augmented, apply_device_ops, mix_labels, parse_device_ops

pytestmark = pytest.mark.filterwarnings("ignore")

SIDE, BATCH, CLASSES = 8, 6, 3
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
DRAW = RANDOM.integers(-(2**31), 2**31, (BATCH, 2)).astype(np.int32)
LABELS = np.eye(CLASSES, dtype=np.float32)[np.arange(BATCH) % CLASSES]
INPUTS = {"image": IMAGES, "draw": DRAW}


def linear(activation: str = "softmax") -> keras.Model:
    """Every pixel counts, without chance, dropout or statistics; classes and weights in sight."""
    inputs = keras.Input([SIDE, SIDE, 3], dtype="uint8")
    pixels = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation=activation)(pixels))
    values = np.sin(np.arange(SIDE * SIDE * 3 * CLASSES)).reshape(-1, CLASSES) / 10
    model.set_weights([values, np.zeros(CLASSES)])
    return model


def augmented(spec: str, **compiled) -> Augmented:
    model = Augmented(linear(), parse_device_ops(spec))
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", **compiled)
    return model


def crossentropy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float(-np.mean(np.sum(labels * np.log(probabilities), axis=1)))


def as_bytes(spec: str) -> np.ndarray:
    changed = np.asarray(apply_device_ops(parse_device_ops(spec), IMAGES, DRAW))
    return np.clip(np.round(changed), 0, 255).astype(np.uint8)


def test_in_training_the_model_sees_the_changed_images_rounded_to_bytes():
    spec = "pad_reflect(2)|random_crop(8)|flip|cutout(4)"
    model = augmented(spec)
    changed = as_bytes(spec)
    assert (changed != IMAGES).any()
    np.testing.assert_allclose(model(INPUTS, training=True), model.inner(changed), atol=1e-6)


def test_out_of_training_nothing_is_changed_and_no_draw_is_needed():
    model = augmented("flip|mixup(0.4)")
    np.testing.assert_array_equal(model({"image": IMAGES}, training=False), model.inner(IMAGES))
    expected = crossentropy(LABELS, model.inner(IMAGES).numpy())
    assert model.evaluate({"image": IMAGES}, LABELS, verbose=0) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(model.predict({"image": IMAGES}, verbose=0), model.inner(IMAGES), atol=1e-6)


@pytest.mark.parametrize(("spec", "jit"), [("cutmix(1.0)", True), ("flip|cutout(4)|mixup(0.4)|cutmix(1.0)", False)])
def test_the_loss_compares_with_labels_mixed_as_the_images_were(spec, jit):
    model = augmented(spec, jit_compile=jit)
    labels = np.asarray(mix_labels(parse_device_ops(spec), LABELS, DRAW))
    expected = crossentropy(labels, model.inner(as_bytes(spec)).numpy())
    assert model.train_on_batch(INPUTS, LABELS) == pytest.approx(expected, rel=1e-5)
    assert (labels != LABELS).any() == ("mix" in spec)
    if "mix" in spec:
        assert abs(expected - crossentropy(LABELS, linear()(as_bytes(spec)).numpy())) > 1e-3


def test_several_labels_an_image_are_mixed_too():
    model = Augmented(linear("sigmoid"), parse_device_ops("mixup(0.4)"))
    model.compile("sgd", "binary_crossentropy")
    several = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]] * 2, np.float32)
    mixed = np.asarray(mix_labels(model.device_ops, several, DRAW))
    shown = model.inner(as_bytes("mixup(0.4)")).numpy()
    expected = -np.mean(mixed * np.log(shown) + (1 - mixed) * np.log(1 - shown))
    assert model.train_on_batch(INPUTS, several) == pytest.approx(float(expected), rel=1e-4)


def test_a_model_with_batch_normalisation_and_dropout_knows_that_it_is_trained():
    inner = build_model("small_cnn", ModelSpec(side_px=SIDE, classes=CLASSES, mean_rgb=(127,) * 3, std_rgb=(74,) * 3))
    model = Augmented(inner, parse_device_ops("flip"))
    model.compile("sgd", "categorical_crossentropy")
    before = [weight.numpy() for weight in inner.non_trainable_weights if "moving" in weight.path]
    model.train_on_batch(INPUTS, LABELS)
    after = [weight.numpy() for weight in inner.non_trainable_weights if "moving" in weight.path]
    assert len(before) == 2
    assert all((one != other).any() for one, other in zip(before, after, strict=True))


def test_a_chain_that_the_model_cannot_take_is_refused():
    with pytest.raises(OptionError, match="device_ops turn images of 8 pixels into 4; the model takes 8"):
        Augmented(linear(), parse_device_ops("random_crop(4)"))
    with pytest.raises(OptionError, match="device_ops contain normalize; leave it out"):
        Augmented(linear(), parse_device_ops("normalize((1, 2, 3), (4, 5, 6))"))


def test_a_mixed_image_weighs_as_both_of_its_parts_do():
    weights = np.arange(BATCH, dtype=np.float32)
    model = augmented("mixup(0.4)")
    # Both losses of each image by hand: the shares of a mixture of one-hot places say who was mixed with whom.
    shares = np.asarray(mix_labels(model.device_ops, np.eye(BATCH, dtype=np.float32), DRAW))
    answers = np.asarray(model(INPUTS, training=True))
    losses = -np.log(answers) @ LABELS.T  # of the answer to image i against the label of image j
    expected = (shares * weights * losses).sum(1).mean()
    found = model.compute_loss(INPUTS, LABELS, answers, sample_weight=weights, training=True)
    assert float(found) == pytest.approx(expected, rel=1e-5)

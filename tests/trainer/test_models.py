from __future__ import annotations

import keras
import numpy as np
import pytest

from beam_jobs.errors import OptionError
from trainer.models import MODELS, ModelSpec, build_model, check_model


def spec(**values) -> ModelSpec:
    return ModelSpec(**{"side_px": 16, "classes": 3, "mean_rgb": (10, 20, 30), "std_rgb": (2, 4, 8), **values})


def filters(side_px: int) -> list[int]:
    layers = build_model("small_cnn", spec(side_px=side_px)).layers
    return [layer.filters for layer in layers if isinstance(layer, keras.layers.Conv2D)]


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize(("side_px", "classes"), [(16, 3), (8, 2), (33, 5)])
def test_every_model_turns_bytes_of_the_given_size_into_probabilities_of_the_given_classes(name, side_px, classes):
    model = build_model(name, spec(side_px=side_px, classes=classes))
    assert model.input_shape == (None, side_px, side_px, 3)
    assert model.inputs[0].dtype == "uint8"
    images = np.random.default_rng(0).integers(0, 256, (4, side_px, side_px, 3), dtype=np.uint8)
    probabilities = model(images).numpy()
    assert (probabilities.shape, probabilities.dtype) == ((4, classes), np.float32)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert (probabilities >= 0).all()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_normalises_each_channel_by_its_statistics(name):
    layer = build_model(name, spec(side_px=8)).get_layer("normalise")
    image = np.tile(np.array([12, 12, 46], np.uint8), (1, 8, 8, 1))
    np.testing.assert_allclose(layer(image)[0, 3, 5], [1, -2, 2], rtol=1e-5)


def test_a_channel_that_never_varies_is_not_divided_by_zero():
    layer = build_model("small_cnn", spec(side_px=8, std_rgb=(0, 0.5, 8))).get_layer("normalise")
    image = np.tile(np.array([12, 12, 46], np.uint8), (1, 8, 8, 1))
    np.testing.assert_allclose(layer(image)[0, 0, 0], [2, -8, 2], rtol=1e-5)


@pytest.mark.parametrize(
    ("side_px", "expected"),
    [(2, [32]), (4, [32]), (8, [32]), (16, [32, 64]), (32, [32, 64, 128]), (224, [32, 64, 128, 256, 256, 256])],
)
def test_small_cnn_halves_until_four_pixels(side_px, expected):
    assert filters(side_px) == expected


def test_probabilities_stay_float32_under_mixed_precision():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = build_model("small_cnn", spec())
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert model.get_layer("logits").output.dtype == "float16"
    assert model.output.dtype == "float32"


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="no model 'small_cnm'; did you mean small_cnn"):
        check_model("small_cnm")
    with pytest.raises(OptionError, match="no model 'zzz'; known are small_cnn"):
        build_model("zzz", spec())
    assert check_model("small_cnn") is None

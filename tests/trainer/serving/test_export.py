from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.make_images import crop, encode, grey_image, jpeg, png
from tests.trainer.conftest import bright_sky
from tests.trainer.evaluation.brightness import linear
from trainer.input.parse import DecodeRaw
from trainer.ops import parse_ops
from trainer.serving.export import DESCRIPTION_NAME, PROBABILITIES, export


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.fixture(scope="module")
def sky(sky_model):
    return tf.saved_model.load(str(sky_model))


def test_the_default_signature_takes_files_and_names_its_outputs(sky):
    serve = sky.signatures["serving_default"]
    assert serve.structured_input_signature[1] == {"image_bytes": tf.TensorSpec([None], tf.string, "image_bytes")}
    types = {name: (spec.dtype, spec.shape.as_list()) for name, spec in serve.structured_outputs.items()}
    assert types == {
        "class": (tf.int64, [None]),
        "text": (tf.string, [None]),
        "probability": (tf.float32, [None]),
        PROBABILITIES: (tf.float32, [None, 2]),
    }


def test_class_text_and_probability_are_those_of_the_most_likely_class(sky):
    levels = [255, 0, 144, 112]
    outputs = sky.signatures["serving_default"](image_bytes=tf.constant([grey_image(level) for level in levels]))
    assert outputs["class"].numpy().tolist() == [1, 0, 1, 0]
    assert outputs["text"].numpy().tolist() == [b"light", b"dark", b"light", b"dark"]
    expected = [sigmoid(127 / 16), sigmoid(8), sigmoid(1), sigmoid(1)]
    np.testing.assert_allclose(outputs["probability"], expected, atol=1e-5)
    np.testing.assert_allclose(outputs[PROBABILITIES][:, 1], [sigmoid((g - 128) / 16) for g in levels], atol=1e-5)


def test_any_number_of_files_of_any_size_and_kind_is_served_at_once(sky):
    serve = sky.signatures["serving_default"]
    mixed = [png(1, 30, 90), jpeg(2), encode(crop(3, 50, 40)[..., 0], "PNG"), grey_image(200, "JPEG")]
    together = serve(image_bytes=tf.constant(mixed))[PROBABILITIES].numpy()
    alone = [serve(image_bytes=tf.constant([data]))[PROBABILITIES].numpy()[0] for data in mixed]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert serve(image_bytes=tf.constant([], tf.string))[PROBABILITIES].shape == (0, 2)


def test_with_several_labels_an_image_the_class_is_the_most_probable_one(tmp_path):
    model = linear([0.0, 0.0, 0.0], [2.0, 3.0, -2.0], "sigmoid", 16)
    export(model, parse_ops("decode|resize(16)"), ("a", "b", "c"), 16, str(tmp_path / "model"))
    outputs = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](tf.constant([png(0)]))
    assert (outputs["class"].numpy().tolist(), outputs["text"].numpy().tolist()) == ([1], [b"b"])
    expected = [sigmoid(2), sigmoid(3), sigmoid(-2)]
    np.testing.assert_allclose(outputs[PROBABILITIES], [expected], atol=1e-6)
    assert float(outputs["probability"][0]) == pytest.approx(sigmoid(3), abs=1e-6)


def test_a_file_that_is_no_image_is_an_error(sky):
    with pytest.raises(tf.errors.InvalidArgumentError):
        sky.signatures["serving_default"](image_bytes=tf.constant([b"hello"]))


def test_models_that_can_be_compared_have_equal_descriptions(tmp_path):
    ops, raw = parse_ops("decode|resize(16)"), (DecodeRaw(16, 16),)
    kinds = {
        "first": (ops, ("dark", "light"), ()),
        "other_ops": (parse_ops("decode|center_crop(8)|resize(16)"), ("dark", "light"), ()),
        "other_labels": (ops, ("dark", "l\u00fcx"), ()),
        "other_records": (ops, ("dark", "light"), raw),
    }
    found = {}
    for name, (chain, labels, record_ops) in kinds.items():
        export(bright_sky(16), chain, labels, 16, str(tmp_path / name), record_ops)
        found[name] = (tmp_path / name / DESCRIPTION_NAME).read_bytes()
    assert found["first"] == found["other_ops"]
    assert len(set(found.values())) == 3
    assert json.loads(found["other_labels"])["labels"] == ["dark", "l\u00fcx"]

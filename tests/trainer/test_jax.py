"""The JAX backend of Keras, fed by the same input pipeline. The backend is chosen when Keras is imported, so it gets a
process of its own; this one has TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command import python
from tests.make_images import jpeg, png
from tests.trainer.evaluation.brightness import figures
from trainer.input_fn import FOREVER, make_dataset
from trainer.models import ModelSpec, build_model
from trainer.ops import parse_ops
from trainer.ops.device import Augmented, parse_device_ops
from trainer.options import InputOptions
from trainer.serving.export import PROBABILITIES, export
from trainer.training.transfer import leaves

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parent.parent.parent
STEPS = 6
OPTIONS = InputOptions(image_side_px=32, batch_size=8, device_ops="pad_reflect(2)|random_crop(32)|flip|mixup(0.4)")


def build() -> tuple[keras.Model, keras.Model]:
    """Returns what is trained, and the model within it. Without dropout: its masks differ between backends."""
    inner = build_model("small_cnn", ModelSpec(side_px=32, classes=2, mean_rgb=(120,) * 3, std_rgb=(60,) * 3))
    for layer in leaves(inner):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return Augmented(inner, parse_device_ops(OPTIONS.device_ops)), inner


def batches(dataset: str, training: bool) -> tf.data.Dataset:
    stream = make_dataset(dataset, "train", OPTIONS, training, FOREVER if training else 1)
    return stream.map(
        lambda features, label: ({name: features[name] for name in ("image", "draw")}, tf.one_hot(label, 2))
    )


def train(dataset: str, folder: str) -> dict[str, list[float]]:
    """Trains a few steps from the weights in a folder, and leaves there what they became. Runs with either backend."""
    backend = keras.backend.backend()
    model, inner = build()
    inner.load_weights(os.path.join(folder, "first.weights.h5"))
    model.compile(keras.optimizers.SGD(0.01, 0.9), "categorical_crossentropy", jit_compile=backend == "jax")
    model.fit(batches(dataset, True), epochs=STEPS, steps_per_epoch=1, verbose=0)
    inner.save_weights(os.path.join(folder, f"{backend}.weights.h5"))
    evaluated = model.evaluate(batches(dataset, False), verbose=0)
    return {"backend": [backend], "losses": model.history.history["loss"], "evaluated": [evaluated]}


@pytest.fixture(scope="module")
def runs(photographs, shades, tmp_path_factory):
    """What `train` returns with TensorFlow and with JAX, and the folder of the weights."""
    folder = str(tmp_path_factory.mktemp("weights"))
    keras.utils.set_random_seed(0)
    build()[1].save_weights(os.path.join(folder, "first.weights.h5"))
    code = (
        "import json, sys\n"
        "from tests.trainer import test_jax\n"
        "from tests.trainer.evaluation import brightness\n"
        "found = test_jax.train(*sys.argv[1:3])\n"
        "print(json.dumps({**found, 'figures': brightness.figures(sys.argv[3])}))\n"
        "test_jax.export_trained(sys.argv[2], 'jax')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(photographs), folder, str(shades)],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = {"tensorflow": train(str(photographs), folder)}
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err[-3000:]
    found["jax"] = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return found, folder


def test_both_backends_make_the_same_losses_of_the_same_weights_and_data(runs):
    found, _ = runs
    tensorflow, jax = found["tensorflow"], found["jax"]
    assert (tensorflow["backend"], jax["backend"]) == (["tensorflow"], ["jax"])
    assert len(tensorflow["losses"]) == STEPS
    # The first step has only the rounding of one pass between them; every update adds to it.
    assert jax["losses"][0] == pytest.approx(tensorflow["losses"][0], rel=1e-4)
    np.testing.assert_allclose(jax["losses"], tensorflow["losses"], rtol=2e-2)
    np.testing.assert_allclose(jax["evaluated"], tensorflow["evaluated"], rtol=2e-2)
    assert np.ptp(tensorflow["losses"]) > 1e-3  # training moves


def test_an_evaluation_with_jax_finds_the_figures_of_tensorflow(runs, shades):
    accuracy, loss = figures(str(shades))
    assert runs[0]["jax"]["figures"] == [accuracy, pytest.approx(loss, rel=1e-4)]


def test_weights_trained_with_jax_are_those_of_tensorflow_and_load_there(runs):
    _, folder = runs
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    answers = []
    for backend in ("tensorflow", "jax"):
        model = build()[1]
        model.load_weights(os.path.join(folder, f"{backend}.weights.h5"))
        answers.append(model(images).numpy())
    np.testing.assert_allclose(answers[0], answers[1], atol=5e-3)


def test_a_model_of_the_jax_backend_is_exported_to_the_same_graph(runs):
    _, folder = runs
    export_trained(folder, "tensorflow")
    files = tf.constant([jpeg(1), png(2)])
    found = [
        tf.saved_model.load(os.path.join(folder, name)).signatures["serving_default"](files)[PROBABILITIES].numpy()
        for name in ("jax", "tensorflow")
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


class Square(keras.layers.Layer):
    """A layer such as a user writes, which no file of a model holds the class of."""

    def call(self, inputs):
        return keras.ops.square(inputs)


def export_trained(folder: str, name: str) -> None:
    """Exports what JAX trained, with a layer of the user's behind it."""
    model = build()[1]
    model.load_weights(os.path.join(folder, "jax.weights.h5"))
    model = keras.Model(model.inputs, Square()(model.output))
    export(model, parse_ops(OPTIONS.eval_spec), ("china", "flower"), 32, os.path.join(folder, name))


def test_the_input_pipeline_needs_no_keras(photographs):
    code = (
        "import sys\n"
        "sys.modules.update(keras=None, tf_keras=None, jax=None)  # None makes every import of it fail\n"
        "from trainer.input_fn import make_dataset\n"
        "from trainer.options import InputOptions\n"
        "options = InputOptions(image_side_px=32, batch_size=8, train_ops='decode_random_crop(32)|flip|cutout(4)')\n"
        "features, label = next(iter(make_dataset(sys.argv[1], 'train', options, training=True)))\n"
        "print(features['image'].shape)\n"
    )
    done = python(code, photographs, cwd=ROOT)
    assert done.stdout.strip() == "(8, 32, 32, 3)", done.stderr

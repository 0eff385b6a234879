from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from trainer.models import ModelSpec, build_model
from trainer.training.transfer import freeze, head, leaves, load_weights, unfreeze

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIDE = 32
IMAGES = np.random.default_rng(0).integers(0, 256, (24, SIDE, SIDE, 3), dtype=np.uint8)
LABELS = keras.utils.to_categorical(np.arange(24) % 3, 3)


def build(name: str = "MobileNetV2", seed: int = 0, classes: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return build_model(name, ModelSpec(side_px=SIDE, classes=classes, mean_rgb=(120,) * 3, std_rgb=(60,) * 3))


def base_of(model: keras.Model) -> keras.Model:
    return next(layer for layer in model.layers if isinstance(layer, keras.Model))


def weights_of(model: keras.Model, without_head: bool = True) -> list[np.ndarray]:
    return [
        weight.numpy()
        for layer in leaves(model)
        if layer is not head(model) or not without_head
        for weight in layer.weights
        if weight.dtype == "float32"
    ]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    """A model with weights that no initialiser draws. Read only."""
    model = build(seed=7)
    random = np.random.default_rng(1)
    model.set_weights(
        [weight + random.uniform(0.01, 0.02, weight.shape).astype(weight.dtype) for weight in model.get_weights()]
    )
    return model


def save(model: keras.Model, path: str) -> str:
    if path.endswith(".weights.h5"):
        model.save_weights(path)
    else:
        model.save(path)
    return path


@pytest.mark.parametrize("name", ["m.weights.h5", "m.keras", "m.h5"])
def test_a_file_of_the_whole_model_gives_all_its_weights(trained, tmp_path, name):
    model = build()
    load_weights(model, save(trained, str(tmp_path / name)))
    assert same(weights_of(model, without_head=False), weights_of(trained, without_head=False))


@pytest.mark.parametrize(("classes", "part", "name"), [(5, None, "m.weights.h5"), (3, base_of, "m_no_top.keras")])
def test_weights_for_other_classes_or_the_base_load_all_but_the_head(trained, tmp_path, classes, part, name):
    model = build(classes=classes)
    before = [weight.numpy() for weight in head(model).weights]
    load_weights(model, save(part(trained) if part else trained, str(tmp_path / name)))
    assert same(weights_of(model), weights_of(trained))
    assert same([weight.numpy() for weight in head(model).weights], before)


def test_weights_are_read_from_every_file_system_of_tensorflow(tmp_path):
    first = build("small_cnn", seed=7)
    path = save(first, str(tmp_path / "m.weights.h5"))
    with open(path, "rb") as source, tf.io.gfile.GFile("ram://weights/m.weights.h5", "wb") as target:
        target.write(source.read())
    model = build("small_cnn")
    load_weights(model, "ram://weights/m.weights.h5")
    assert same(weights_of(model, without_head=False), weights_of(first, without_head=False))


@pytest.mark.parametrize("name", ["m.weights.h5", "m.h5"])
def test_a_file_of_another_model_is_refused_and_changes_nothing(tmp_path, name):
    path = save(build("small_cnn"), str(tmp_path / name))
    model = build()
    before = weights_of(model, without_head=False)
    with pytest.raises(OptionError, match=f"^the weights of .*{name} do not fit .*: .+$"):
        load_weights(model, path)
    assert same(weights_of(model, without_head=False), before)


def test_a_file_without_one_layer_of_the_base_is_refused_and_the_layer_named(tmp_path):
    def network(width: int) -> keras.Model:
        sizes = (8, width, 3)
        return keras.Sequential([keras.Input([4]), *(keras.layers.Dense(n, name=f"d{n}") for n in sizes)], name="net")

    network(6).save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(
        OptionError, match="do not fit net: 2 weights are absent or of another shape, first net/d7/kernel"
    ):
        load_weights(network(7), str(tmp_path / "m.weights.h5"))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("m.bin", b"x", "it must be imagenet or a file that ends in .weights.h5, .keras, .h5"),
        ("absent.h5", None, "there is no such file"),
        ("m.h5", b"no HDF5 at all", "do not fit"),
        ("m.keras", b"no archive", "do not fit"),
    ],
)
def test_a_file_that_holds_no_weights_is_refused_in_a_line(tmp_path, name, content, complaint):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=f"^.*{complaint}.*$"):
        load_weights(build("small_cnn"), str(tmp_path / name))


def test_with_a_frozen_base_only_the_head_changes():
    model = build("MobileNetV2")
    freeze(model)
    assert [weight.path for weight in model.trainable_weights] == ["logits/kernel", "logits/bias"]
    base, top = weights_of(model), head(model).get_weights()
    model.compile("sgd", "categorical_crossentropy")
    model.fit(IMAGES, LABELS, batch_size=8, verbose=0)
    assert same(weights_of(model), base)  # the moving averages of batch normalisation are among them
    assert not same(head(model).get_weights(), top)


def test_a_frozen_base_sees_in_training_what_it_sees_in_evaluation():
    model = build()
    base = base_of(model)
    pixels = IMAGES[:4].astype(np.float32) / 127.5 - 1
    size = np.abs(base(pixels, training=True)).max()
    assert not np.allclose(base(pixels, training=True) / size, base(pixels, training=False) / size, atol=1e-3)
    freeze(model)
    np.testing.assert_array_equal(base(pixels, training=True), base(pixels, training=False))


def test_unfreezing_gives_the_last_layers_but_never_batch_normalisation_to_training():
    model = build()
    unfreeze(model, 2)
    names = [weight.path for weight in model.trainable_weights]
    assert names == ["block_16_project/kernel", "Conv_1/kernel", "logits/kernel", "logits/bias"]
    unfreeze(model)
    kinds = {type(layer) for layer in leaves(model) if layer.trainable_weights}
    assert kinds == {keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense}
    assert sum(bool(layer.trainable_weights) for layer in leaves(model)) == 53
    unfreeze(model, 1)
    assert len(model.trainable_weights) == 3
    with pytest.raises(OptionError, match="layers to unfreeze is -1; it must be a whole number of at least 0"):
        unfreeze(model, -1)

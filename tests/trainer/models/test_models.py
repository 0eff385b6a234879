from __future__ import annotations

import io
import socket
import sys
import types

import keras
import numpy as np
import pytest

from beam_jobs.errors import OptionError
from trainer.job import _mixed_precision as mixed_precision
from trainer.models import MODELS, ModelSpec, build_model, builtin, check_model, content_digest
from trainer.options import TrainOptions

pytestmark = pytest.mark.filterwarnings("ignore")

# One scales to -1..1, one subtracts means from BGR, one has it among its layers.
FAMILIES = ("MobileNetV2", "VGG16", "MobileNetV3Small")


def spec(**values) -> ModelSpec:
    return ModelSpec(**{"side_px": 16, "classes": 3, "mean_rgb": (10, 20, 30), "std_rgb": (2, 4, 8), **values})


def noise(count: int, side: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def filters(side_px: int) -> list[int]:
    layers = build_model("small_cnn", spec(side_px=side_px)).layers
    return [layer.filters for layer in layers if isinstance(layer, keras.layers.Conv2D)]


@pytest.fixture
def own_module(monkeypatch):
    """A module of the user's with the functions that a test puts into it."""
    module = types.ModuleType("my_models")
    monkeypatch.setitem(sys.modules, "my_models", module)
    return module


@pytest.mark.parametrize(
    ("name", "side_px", "classes"),
    [(name, *size) for name, size in zip(MODELS, [(4, 2), (33, 5), (4, 3)], strict=True)],
)
def test_every_model_turns_bytes_of_the_given_size_into_probabilities_of_the_given_classes(name, side_px, classes):
    model = build_model(name, spec(side_px=side_px, classes=classes))
    assert model.input_shape == (None, side_px, side_px, 3)
    assert model.inputs[0].dtype == "uint8"
    probabilities = model(noise(4, side_px)).numpy()
    assert (probabilities.shape, probabilities.dtype) == ((4, classes), np.float32)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert (probabilities >= 0).all()
    image = np.tile(np.array([12, 12, 46], np.uint8), (1, side_px, side_px, 1))
    np.testing.assert_allclose(model.get_layer("normalise")(image)[0, 3, 2], [1, -2, 2], rtol=1e-5)


def test_a_channel_that_never_varies_is_not_divided_by_zero():
    layer = build_model("small_cnn", spec(side_px=8, std_rgb=(0, 0.5, 8))).get_layer("normalise")
    image = np.tile(np.array([12, 12, 46], np.uint8), (1, 8, 8, 1))
    np.testing.assert_allclose(layer(image)[0, 0, 0], [2, -8, 2], rtol=1e-5)


@pytest.mark.parametrize(
    ("side_px", "expected"),
    [
        *((2, [32]), (8, [32]), (16, [32, 64]), (127, [32, 64, 128, 256, 256])),
        *((128, [32, 64, 128, 256]), (224, [32, 64, 128, 256, 256])),
    ],
)
def test_small_cnn_halves_the_side_down_to_four_pixels(side_px, expected):
    assert filters(side_px) == expected
    model = build_model("small_cnn", spec(side_px=side_px))
    sides = [layer.output.shape[1] for layer in model.layers if isinstance(layer, keras.layers.MaxPooling2D)]
    assert sides[-1] in (1, 3, 4)


# 0.27 million weights is what the paper counts (table 6); 6.6 million what Page does.
@pytest.mark.parametrize(("name", "millions"), [("resnet20", 0.27), ("cifar_resnet", 6.6)])
def test_a_residual_network_has_the_size_of_its_paper(name, millions):
    model = build_model(name, spec(side_px=32, classes=10))
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    assert trained / 1e6 == pytest.approx(millions, rel=0.02)


def test_resnet20_has_twenty_layers_with_weights_on_the_longest_path():
    layers = build_model("resnet20", spec(side_px=32)).layers
    weighted = [layer for layer in layers if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))]
    shortcuts = [layer for layer in weighted if getattr(layer, "kernel_size", None) == (1, 1)]
    assert (len(weighted) - len(shortcuts), len(shortcuts)) == (20, 2)
    assert [layer.output.shape[1:] for layer in layers if isinstance(layer, keras.layers.Add)] == (
        [(32, 32, 16)] * 3 + [(16, 16, 32)] * 3 + [(8, 8, 64)] * 3
    )


def test_a_residual_network_learns_one_batch_completely():
    keras.utils.set_random_seed(0)
    model = build_model("cifar_resnet", spec(classes=4, mean_rgb=(128,) * 3, std_rgb=(74,) * 3))
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    # Batch normalisation sees this one batch alone, so what training reports is what it has learned.
    history = model.fit(noise(16, 16), np.arange(16) % 4, batch_size=16, epochs=12, verbose=0).history
    assert history["accuracy"][-1] == 1
    assert history["loss"][-1] < history["loss"][0] / 3


def test_probabilities_stay_float32_under_mixed_precision():
    with mixed_precision(TrainOptions(mixed_precision="float16")):
        models = [build_model("small_cnn", spec()), build_model("MobileNetV2", spec(side_px=32))]
    for model in models:
        assert model.get_layer("logits").output.dtype == "float16"
        assert model.output.dtype == "float32"
    assert models[1].get_layer("pixels").output.dtype == "float32"


@pytest.mark.parametrize("name", ["small_cnn", "cifar_resnet"])
def test_with_several_labels_an_image_each_class_has_a_probability_of_its_own(name):
    model = build_model(name, spec(side_px=32, multi_label=True))
    logits = keras.Model(model.inputs, model.get_layer("logits").output)(noise(3, 32)).numpy()
    np.testing.assert_allclose(model(noise(3, 32)), 1 / (1 + np.exp(-logits)), atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_keras_applications_gets_the_pixels_its_family_wants_from_bytes(name):
    keras.utils.set_random_seed(0)
    model = build_model(name, spec(side_px=32))
    assert (model.inputs[0].dtype, model.output_shape) == ("uint8", (None, 3))
    (base,) = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    builder = getattr(keras.applications, name)
    family = getattr(keras.applications, builder.__module__.rpartition(".")[2])
    wanted = base(family.preprocess_input(noise(2, 32).astype(np.float32)), training=False).numpy()
    size = np.abs(wanted).max()  # random weights may leave next to nothing after fifty layers
    pooled = keras.Model(model.inputs, model.get_layer("logits").input)(noise(2, 32), training=False)
    np.testing.assert_allclose(pooled / size, wanted.mean(axis=(1, 2)) / size, atol=1e-4)
    unprepared = base(noise(2, 32).astype(np.float32), training=False).numpy()
    assert np.allclose(unprepared / size, wanted / size, atol=1e-2) == (name == "MobileNetV3Small")


@pytest.mark.parametrize("name", ["MobileNetV2", "resnet50"])
def test_the_models_of_keras_applications_are_known_in_any_case(name):
    assert check_model(name) is None


def test_every_model_of_keras_applications_has_preprocessing_where_it_is_looked_for():
    assert len(builtin.application_names()) >= 38
    for name in builtin.application_names().values():
        module = getattr(keras.applications, name).__module__.rpartition(".")[2]
        assert callable(getattr(keras.applications, module).preprocess_input), name


def test_images_too_small_for_a_model_are_refused_in_a_line():
    with pytest.raises(OptionError, match="^InceptionV3 does not take images of 16 pixels: .*75x75.*$"):
        build_model("inceptionv3", spec())


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (False, r"Connection refused.*fetch http://127\.0\.0\.1:\d+/w\.h5 on a machine with a network"),
        (True, "timed out.*fetch its weights file without top .*on a machine with a network"),
    ],
    ids=["refused", "silent"],
)
def test_without_a_network_the_error_has_the_url_of_the_weights(monkeypatch, tmp_path, answers, message):
    def builder(**arguments):
        return keras.utils.get_file("w.h5", f"http://127.0.0.1:{server.getsockname()[1]}/w.h5", cache_dir=tmp_path)

    builder.__module__ = "keras.src.applications.vgg16"
    monkeypatch.setattr(builtin, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(keras.applications, "Absent", builder, raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answers:
            server.listen()  # takes the connection, and says nothing
        with pytest.raises(OptionError, match=f"^the imagenet weights of Absent cannot be fetched .*{message}.*$"):
            build_model("absent", spec(weights="imagenet"))


def test_imagenet_is_refused_for_a_model_that_has_no_such_weights():
    with pytest.raises(OptionError, match="weights is imagenet, .*; model is small_cnn"):
        build_model("small_cnn", spec(weights="imagenet"))


def test_the_weights_of_a_file_are_where_training_begins(tmp_path):
    first = build_model("small_cnn", spec())
    first.save_weights(tmp_path / "first.weights.h5")
    second = build_model("small_cnn", spec(weights=str(tmp_path / "first.weights.h5")))
    np.testing.assert_array_equal(second(noise(3, 16)), first(noise(3, 16)))


def test_an_own_model_is_found_by_its_dotted_path_and_told_the_spec(own_module):
    asked = []

    def build(wanted: ModelSpec) -> keras.Model:
        asked.append(wanted)
        layers = [keras.Input([16, 16, 3]), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
        return keras.Sequential(layers)

    own_module.build = build
    assert check_model("my_models.build") is None
    assert asked == []
    assert build_model("my_models.build", spec()).output_shape == (None, 3)
    assert asked == [spec()]


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda wanted: "hello", "it returned str; it must return a keras.Model"),
        (
            lambda wanted: keras.Sequential([keras.Input([16, 16, 3]), keras.layers.Flatten(), keras.layers.Dense(7)]),
            r"returns the shape \(1, 7\) for 1 image; it must be \(1, 3\)",
        ),
        (
            lambda wanted: keras.Sequential([keras.Input([9, 9, 3]), keras.layers.Flatten(), keras.layers.Dense(3)]),
            r"does not take uint8\[1, 16, 16, 3\]: .+",
        ),
    ],
)
def test_an_own_model_that_does_not_fit_is_refused_before_training(own_module, build, complaint):
    own_module.build = build
    with pytest.raises(OptionError, match=f"^model 'my_models.build'.*{complaint}$"):
        build_model("my_models.build", spec())


def test_an_own_model_that_is_not_there_is_refused_with_what_to_do(own_module, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="my_models has no function build; define one that takes a ModelSpec"):
        check_model("my_models.build")
    with pytest.raises(OptionError, match="no_such_package.models cannot be imported: .*PYTHONPATH"):
        check_model("no_such_package.models.build")
    (tmp_path / "broken_models.py").write_text("import no_such_neighbour\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match="broken_models cannot be imported: No module named 'no_such_neighbour'$"):
        check_model("broken_models.build")


def test_code_that_changed_after_its_import_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_models.py").write_text("def build(spec): ...\n")
    check_model("edited_models.build")
    check_model("edited_models.build")
    (tmp_path / "edited_models.py").write_text("def build(spec): return 1\n")
    with pytest.raises(OptionError, match=r"^model 'edited_models.build': its source has changed since .* again$"):
        check_model("edited_models.build")


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="no model 'small_cnm'; did you mean small_cnn"):
        check_model("small_cnm")
    with pytest.raises(OptionError, match="no model 'MobilNetV2'; did you mean MobileNetV2"):
        check_model("MobilNetV2")
    with pytest.raises(OptionError, match="no model 'zzz'; known are small_cnn, resnet20, .*MobileNetV2"):
        build_model("zzz", spec())
    assert check_model("small_cnn") is None


@pytest.fixture
def own_package(monkeypatch, tmp_path):
    """Source files of a package and of what it imports, on the path; nothing of it is imported."""
    files = {
        "own/__init__.py": "",
        "own/models.py": "import os, keras\nfrom . import blocks\nfrom own.parts.heads import head\nimport lonely\n",
        "own/blocks.py": "from .parts import names\n",
        "own/parts/__init__.py": "",
        "own/parts/heads.py": "def head():\n    import late_import.deep\n",
        "own/parts/names.py": "raise RuntimeError('executed')\n",
        "own/unused.py": "",
        "lonely.py": "import own.models\n",
        "late_import/deep.py": "",  # a package without __init__
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path, set(files)


def test_the_digest_of_an_own_model_is_that_of_its_module_and_of_all_local_modules_it_imports(own_package):
    folder, names = own_package
    before = content_digest("own.models.build", "")
    changing = set()
    for name in sorted(names):
        source = (folder / name).read_text()
        (folder / name).write_text(source + "# changed\n")
        if content_digest("own.models.build", "") != before:
            changing.add(name)
        (folder / name).write_text(source)
    assert changing == names - {"own/unused.py"}
    assert content_digest("own.models.build", "") == before
    assert not {"own", "lonely", "late_import"} & sys.modules.keys()


def test_a_module_with_an_error_of_syntax_has_a_digest_of_its_own(own_package):
    folder, _ = own_package
    before = content_digest("own.models.build", "")
    (folder / "own" / "models.py").write_text("import (")
    assert len({before, content_digest("own.models.build", ""), content_digest("absent.models.build", "")}) == 3


def test_the_digest_of_weights_is_that_of_their_file(tmp_path):
    file = tmp_path / "first.weights.h5"
    found = [content_digest("small_cnn", str(file))]
    for content in (b"1", b"2", b"1"):
        file.write_bytes(content)
        found.append(content_digest("small_cnn", str(file)))
    assert found[1] == found[3]
    assert len(set(found)) == 3
    none = content_digest("small_cnn", "")
    assert {none} == {found[0], content_digest("small_cnn", str(tmp_path)), content_digest("MobileNetV2", "imagenet")}

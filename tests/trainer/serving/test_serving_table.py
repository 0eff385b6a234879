"""Every pixel policy x source format x orientation, through ingest, evaluation, `predict` and the serving signature.

The oracle is the decoded record. The model answers with pixels of it, so that what it saw is known: of four places of
the image, the share of each channel among the classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_jobs.dataset import manifest, record
from beam_jobs.ingest import run
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from tests.make_images import crop, encode
from tests.trainer.conftest import records_of
from trainer.input.parse import adapt_ops_to_records
from trainer.input.plan import evaluation_ops
from trainer.input_fn import KEY, make_dataset
from trainer.ops import IMAGE
from trainer.options import InputOptions
from trainer.serving.export import EVALUATE_SIGNATURE, PROBABILITIES, DecodeSource, ServingSpec, export
from trainer.serving.predict import predict

pytestmark = pytest.mark.slow

POLICIES = {
    "copy": PixelOptions(),
    "resize": PixelOptions(policy="resize", side_px=20),
    "resize_half": PixelOptions(policy="resize", side_px=24),  # of 48 rows
    "resize_inside": PixelOptions(policy="resize", side_px=72, fit="inside", quality=60),  # smaller for one format
    "raw": PixelOptions(policy="raw", side_px=33),
    "raw_larger": PixelOptions(policy="raw", side_px=80),
    "raw_tiny": PixelOptions(policy="raw", side_px=8),
}
SIDE = 16
OPTIONS = InputOptions(image_side_px=SIDE, batch_size=7)
# What the graph decodes; a level of difference is allowed where an area average lies between two levels.
GRAPH_FORMATS = ("jpeg", "jpeg_grey", "jpeg_cmyk", "jpeg_large", "png", "png_rgba", "png_la", "png_palette", "png_deep")
OTHER_FORMATS = ("webp", "webp_rgba", "gif", "bmp", "tiff")


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x010F] = "maker"  # an entry before the one that counts
    block[0x0112] = orientation
    return block.tobytes()


def source(kind: str, orientation: int) -> bytes:
    """An image file whose halves, thirds and corners differ, of a format and an EXIF orientation."""
    height, width = (410, 630) if kind == "jpeg_large" else (48, 72)
    pixels = crop(0, height, width)
    rgba = np.dstack([pixels, np.linspace(0, 255, pixels[..., 0].size).reshape(pixels.shape[:2]).astype(np.uint8)])
    pillow: dict[str, tuple[Any, str, dict[str, Any]]] = {
        "jpeg": (pixels, "JPEG", {"quality": 90}),
        "jpeg_grey": (pixels[..., 0].copy(), "JPEG", {"quality": 90}),
        "jpeg_cmyk": (Image.fromarray(pixels).convert("CMYK"), "JPEG", {}),
        "jpeg_large": (pixels, "JPEG", {"progressive": True}),
        "png": (pixels, "PNG", {}),
        "png_rgba": (rgba, "PNG", {}),
        "png_la": (Image.fromarray(rgba).convert("LA"), "PNG", {}),
        "png_palette": (Image.fromarray(pixels).convert("P"), "PNG", {"transparency": 3}),
        "png_deep": (pixels[..., 0].astype(np.uint16) * 257, "PNG", {}),
        "webp": (pixels, "WEBP", {"quality": 90}),
        "webp_rgba": (rgba, "WEBP", {"lossless": True}),
        "gif": (pixels, "GIF", {}),
        "bmp": (pixels, "BMP", {}),
        "tiff": (pixels, "TIFF", {}),
    }
    image, name, options = pillow[kind]
    rotated = {} if name in ("GIF", "BMP") else {"exif": exif(orientation)}
    return encode(image, name, **options, **rotated)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Key -> file: the two formats of most photographs in every orientation, the others in two, in one class."""
    folder = tmp_path_factory.mktemp("table") / "source" / "all"
    folder.mkdir(parents=True)
    found = {}
    for kind in GRAPH_FORMATS + OTHER_FORMATS:
        for orientation in range(1, 9) if kind in ("jpeg", "png") else (1,) if kind in ("gif", "bmp") else (1, 6):
            name = f"{kind}-{orientation}.{kind.partition('_')[0]}"
            (folder / name).write_bytes(source(kind, orientation))
            found[f"all/{name}"] = folder / name
    return found


def pixel_model() -> keras.Model:
    """Answers with four pixels of what it sees as twelve probabilities: no two images that differ there agree."""
    inputs = keras.Input([SIDE, SIDE, 3], dtype="uint8")
    small = keras.layers.Resizing(2, 2, interpolation="nearest")(keras.layers.Rescaling(1 / 64)(inputs))
    return keras.Model(inputs, keras.layers.Softmax()(keras.layers.Flatten()(small)))


@pytest.fixture(scope="module", params=POLICIES)
def table(request, files, tmp_path_factory) -> Iterator[tuple[str, Path, Path]]:
    """The name of a policy, the dataset that it makes of the files, and a model of that dataset."""
    out, model = tmp_path_factory.mktemp("dataset"), tmp_path_factory.mktemp("model")
    root = next(iter(files.values())).parent.parent
    run(IngestOptions(source=str(root), out=str(out), splits={"eval": 1}, pixels=POLICIES[request.param]))
    dataset = manifest.load(str(out))
    ops = evaluation_ops(OPTIONS)
    labels = tuple(f"{index:02d}" for index in range(12))
    spec = ServingSpec.of(dataset)
    export(pixel_model(), ops, labels, SIDE, str(model), adapt_ops_to_records(ops, dataset), spec)
    return request.param, out, model


@pytest.fixture(scope="module")
def evaluated(table) -> dict[str, np.ndarray]:
    """Key -> what the model answers of the input of evaluation."""
    _, out, _ = table
    network = pixel_model()
    found = {}
    for features, _ in make_dataset(str(out), "eval", OPTIONS, training=False):
        answers = network(features[IMAGE].numpy(), training=False).numpy()
        found.update(zip((key.decode() for key in features[KEY].numpy()), answers, strict=True))
    return found


def test_predict_answers_of_a_file_what_evaluation_answers_of_its_record(table, evaluated, files):
    _, _, model = table
    assert evaluated.keys() == files.keys()
    turned = {evaluated[f"all/png-{orientation}.png"].tobytes() for orientation in range(1, 9)}
    assert len(turned) == 8, "equal answers would say nothing"
    for key, prediction in zip(files, predict(str(model), [str(path) for path in files.values()]), strict=True):
        assert prediction.probability == pytest.approx(evaluated[key].max(), abs=1e-6), key
        assert prediction.label == evaluated[key].argmax(), key


def test_the_signature_of_evaluation_answers_what_evaluation_does(table, evaluated):
    _, out, model = table
    records = records_of(out, "eval")
    keys = [record.decode(payload)[record.FILENAME][0].decode() for payload in records]
    answers = tf.saved_model.load(str(model)).signatures[EVALUATE_SIGNATURE](examples=tf.constant(records))
    assert answers.keys() == {PROBABILITIES}
    for key, answer in zip(keys, answers[PROBABILITIES].numpy(), strict=True):
        np.testing.assert_allclose(answer, evaluated[key], atol=1e-6, err_msg=key)


def test_serving_a_jpeg_or_png_file_equals_evaluating_its_record(table, evaluated, files):
    _, _, model = table
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    keys = [key for key in files if not key.removeprefix("all/").startswith(OTHER_FORMATS)]
    answers = serve(image_bytes=tf.constant([files[key].read_bytes() for key in keys]))[PROBABILITIES].numpy()
    for key, answer in zip(keys, answers, strict=True):
        # A level of 255 changes a logit by 1/64, and the probability by less than a quarter of that.
        np.testing.assert_allclose(answer, evaluated[key], atol=1 / 256, err_msg=key)


@pytest.mark.parametrize("kind", ["webp", "tiff"])
def test_the_serving_signature_refuses_other_formats_and_says_what_to_do(files, kind):
    data = files[f"all/{kind}-1.{kind.partition('_')[0]}"].read_bytes()
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither JPEG nor PNG; convert it, or use `feedline pred"):
        DecodeSource()({IMAGE: tf.constant(data)}, tf.zeros([0]))


def test_what_the_graph_decodes_is_what_the_record_decodes_to_but_for_ties_of_an_area_average(table, files):
    name, out, _ = table
    policy = POLICIES[name]
    stored = {}
    for payload in records_of(out, "eval"):
        values = record.decode(payload)
        data = values[record.ENCODED][0]
        if policy.policy == "raw":
            pixels = np.frombuffer(data, np.uint8).reshape(policy.side_px, policy.side_px, 3)
        else:
            pixels = tf.io.decode_jpeg(data, channels=3).numpy()
        stored[values[record.FILENAME][0].decode()] = pixels
    decode = tf.function(lambda data: DecodeSource(policy)({IMAGE: data}, tf.zeros([0]))[IMAGE], autograph=False)
    different = total = 0
    for key, path in files.items():
        kind = path.name.partition("-")[0]
        if kind in OTHER_FORMATS:
            continue
        found, wanted = decode(tf.constant(path.read_bytes())).numpy(), stored[key]
        assert found.shape == wanted.shape, key
        difference = np.abs(found.astype(int) - wanted)
        if policy.policy == "copy" or (kind.startswith("jpeg") and kind != "jpeg_large"):
            assert difference.max() == 0, key
        assert difference.max() <= 1, key
        different, total = different + np.count_nonzero(difference), total + difference.size
    assert different <= total / 500


def test_the_spec_is_that_of_the_ingest(tmp_path, files):
    limits = ImageLimits(min_side_px=60)
    pixels = POLICIES["resize_inside"]
    source_dir = next(iter(files.values())).parent.parent
    options = IngestOptions(
        source=str(source_dir), out=str(tmp_path), pixels=pixels, limits=limits, max_reject_ratio=1, splits={"eval": 1}
    )
    run(options)
    spec = ServingSpec.of(manifest.load(str(tmp_path)))
    assert spec == ServingSpec(pixels=pixels, limits=limits)
    model = tmp_path / "model"
    dataclasses.replace(spec, multi_label=True).write(str(model))
    assert ServingSpec.read(str(model)) == dataclasses.replace(spec, multi_label=True)

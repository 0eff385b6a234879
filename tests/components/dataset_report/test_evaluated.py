from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from beam_jobs.options import PixelOptions
from components.dataset_report.evaluated import (
    Predictions,
    confusion,
    evaluation_view,
    measure,
    predict,
    worst_mistakes,
)
from components.dataset_report.shown import Renderer
from components.evaluation import Accuracy, Evaluation, load_evaluation
from tests.components.dataset_report.page import ingest
from tests.make_images import grey_image, png
from tests.trainer.evaluation.brightness import linear
from trainer.input.parse import DecodeRaw
from trainer.ops import parse_ops
from trainer.serving.export import export

LEVELS = {"bright": 200, "dark": 20}


@pytest.fixture(scope="module")
def bright_or_dark(tmp_path_factory):
    """An exported model of `bright` and `dark` that is always right."""
    path = tmp_path_factory.mktemp("bright_or_dark")
    export(linear([5 / 255, -5 / 255], [-7.0, 7.0]), parse_ops("decode|resize(8)"), ("bright", "dark"), 8, str(path))
    return path


def predictions(true: list[int], said: list[int], certainty: list[float], classes: int = 3) -> Predictions:
    probabilities = np.full((len(true), classes), 0.0, np.float32)
    probabilities[np.arange(len(true)), said] = certainty
    return Predictions(
        split="eval",
        images=len(true),
        rows=np.arange(len(true)),
        true=np.array(true),
        predicted=np.array(said),
        probabilities=probabilities,
    )


def test_the_model_is_asked_about_every_image_of_the_held_back_split(dataset, always_first_class, images_of):
    images = images_of(dataset)
    found = predict(images, str(dataset), str(always_first_class))
    made = manifest.load(str(dataset))
    assert (found.split, found.images, len(found.rows)) == ("eval", made.splits["eval"].records, found.images)
    assert set(found.predicted) == {0}
    assert found.certainty == pytest.approx(np.e / (1 + np.e), abs=1e-5)
    # What stands in one place is about one image.
    rows = [images.row(int(index)) for index in found.rows]
    assert [row["label_index"] for row in rows] == found.true.tolist()
    assert [row["offset"] for row in rows if row["shard"] == 0] == sorted(
        row["offset"] for row in rows if row["shard"] == 0
    )


def test_answers_stand_beside_the_image_that_was_asked_about(tmp_path, bright_or_dark, images_of):
    files = {f"{name}/{index}.png": grey_image(level + index) for name, level in LEVELS.items() for index in range(20)}
    made = ingest(tmp_path, files, splits={"train": 0.5, "eval": 0.5}, shards=2)
    found = predict(images_of(made), str(made), str(bright_or_dark))
    assert len(found.rows) > 10
    assert found.predicted.tolist() == found.true.tolist()


def test_only_so_many_images_are_asked_about(dataset, always_first_class, images_of):
    found = predict(images_of(dataset), str(dataset), str(always_first_class), most=3)
    assert (len(found.rows), len(found.predicted)) == (3, 3)
    assert evaluation_view(None, found, ["china", "flower"]).note == (
        f"Measured for this page on 3 of the {found.images} images of eval."
    )


def test_stored_pixels_are_asked_about_too(tmp_path, always_first_class, images_of):
    files = {f"{label}/{index}.png": png(index) for label in ("china", "flower") for index in range(4)}
    made = ingest(tmp_path, files, pixels=PixelOptions(policy="raw", side_px=8))
    model = tmp_path / "model"
    network = linear([0.0, 0.0], [1.0, 0.0])
    export(network, parse_ops("decode|resize(8)"), ("china", "flower"), 8, str(model), (DecodeRaw(8, 8),))
    assert len(predict(images_of(made), str(made), str(model)).predicted) == 8
    with pytest.raises(OptionError, match="cannot read the records of the dataset, .*; give the model that was"):
        predict(images_of(made), str(made), str(always_first_class))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/1.png": 1, "b/1.png": 2, "c/1.png": 3}, "the model has 2 classes, the dataset 3"),
        ({"a/1.png": 1, "b/1.png": 2}, "class 0 of the model is 'china', of the dataset 'a'"),
    ],
)
def test_a_model_of_another_dataset_is_refused(tmp_path, always_first_class, files, message, images_of):
    made = ingest(tmp_path, {name: png(seed) for name, seed in files.items()})
    with pytest.raises(OptionError, match=message):
        predict(images_of(made), str(made), str(always_first_class))


def test_what_is_no_model_of_ours_is_refused(dataset, tmp_path, images_of):
    with pytest.raises(OptionError, match="holds no model"):
        predict(images_of(dataset), str(dataset), str(tmp_path))
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    with pytest.raises(OptionError, match="was not exported by feedline"):
        predict(images_of(dataset), str(dataset), str(tmp_path / "other"))


def test_the_most_certain_mistakes_come_first(dataset, images_of):
    images = images_of(dataset)
    found = worst_mistakes(
        images, Renderer(str(dataset), images.dataset), predictions([0, 1, 0, 1], [0, 0, 1, 0], [1, 0.6, 0.9, 0.7])
    )
    assert [round(row.probability, 3) for row in found.rows] == [0.9, 0.7, 0.6]
    assert [(row.predicted, row.true) for row in found.rows] == [("flower", "china")] + 2 * [("china", "flower")]
    assert found.rows[0].key == images.row(2)["key"]
    assert found.rows[0].picture is not None
    assert (found.wrong, found.predicted) == (3, 4)


def test_what_the_page_measures_is_what_tfma_measures(dataset, always_first_class, evaluation_dir, images_of):
    labels = manifest.load(str(dataset)).labels
    asked = measure(predict(images_of(dataset), str(dataset), str(always_first_class)), labels)
    known = load_evaluation(str(evaluation_dir), labels)
    assert asked.overall == known.overall
    assert asked.classes == known.classes
    assert asked.precision == known.precision
    assert asked.confusion == known.confusion
    assert asked.calibration["ece"] == pytest.approx(known.calibration["ece"], abs=1e-4)


def test_measures_are_those_of_a_count_by_hand():
    found = measure(predictions([0, 0, 1, 2], [0, 1, 1, 2], [0.95, 0.55, 0.55, 1.0]), ["a", "b", "c"])
    assert (found.overall.value, found.overall.images) == (0.75, 4)
    assert {name: value.value for name, value in found.classes.items()} == {"a": 0.5, "b": 1.0, "c": 1.0}
    assert {name: value.value for name, value in found.precision.items()} == {"a": 1.0, "b": 0.5, "c": 1.0}
    assert found.confusion["counts"] == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    bins = {item["low"]: item for item in found.calibration["bins"] if item["images"]}
    assert {low: item["images"] for low, item in bins.items()} == {0.5: 2, 0.9: 2}
    assert found.calibration["ece"] == pytest.approx((2 * 0.05 + 2 * 0.025) / 4, abs=1e-6)
    view = evaluation_view(found, None, ["a", "b", "c"])
    assert view.f1 == pytest.approx({"a": 2 / 3, "b": 2 / 3, "c": 1.0})
    (_, *macro), (_, *weighted) = view.averages  # of recall, precision and F1
    assert macro == pytest.approx([5 / 6, 5 / 6, 7 / 9])
    assert weighted == pytest.approx([0.75, 0.875, 0.75])


def test_a_class_without_images_has_no_accuracy():
    assert list(measure(predictions([0, 0], [0, 1], [1, 1]), ["a", "b", "c"]).classes) == ["a"]


def test_the_confusion_shows_the_classes_that_are_most_confused():
    counts = np.diag(np.full(50, 90))
    counts[7, 30] = 10
    counts[30, 7] = 5
    counts[40, 41] = 1
    found = confusion([f"{index:02d}" for index in range(50)], counts)
    assert {"07", "30", "40", "41"} < set(found.labels)
    assert (len(found.labels), found.left_out) == (20, 30)
    assert list(found.labels) == sorted(found.labels)
    assert found.pairs[0] == ("07", "30", 10, 0.1)
    assert [pair[:2] for pair in found.pairs] == [("07", "30"), ("30", "07"), ("40", "41")]
    row = found.rows[found.labels.index("40")]
    cell = row[found.labels.index("41")]
    assert (cell.images, cell.level) == (1, 1)  # a single mistake has a shade
    assert row[found.labels.index("07")].level == 0
    assert row[found.labels.index("40")].level == 8


def test_what_evaluator_measured_goes_before_what_the_page_measures():
    half = Accuracy.from_share(0.5, 100)
    given = Evaluation(overall=half, classes={"a": half})
    found = evaluation_view(given, predictions([0, 1], [0, 1], [1, 1], 2), ["a", "b"])
    assert (found.overall, found.note) == (half, "")
    assert [cell.images for row in found.confusion.rows for cell in row] == [1, 0, 0, 1]
    assert evaluation_view(None, None, ["a"]) is None

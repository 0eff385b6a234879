"""The real clients that live in this environment: TFDS, TFDV, TFXIO and Keras, on what the page shows."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np
import pytest

from tests.interop import page

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def run(place, monkeypatch):
    """Runs the Python of a section where the dataset is, and returns the names it leaves."""
    monkeypatch.chdir(place)

    def execute(section: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        exec(page.code(section), values)
        return values

    return execute


def test_tfds_opens_the_directory(run, rows):
    values = run("TensorFlow Datasets")
    found = {one["image"]["filename"].numpy().decode() for one in values["train"]}
    assert found == {key for key, row in rows.items() if row["split"] == "train"}


def test_tfds_reads_array_records_at_any_place(run, rows):
    source = run("ArrayRecord")["source"]
    found = {}
    for place in reversed(range(len(source))):
        image = source[place]["image"]
        found[image["filename"].decode()] = (*image["encoded"].shape[:2], int(image["class"]["label"]))
    assert found == {
        key: (row["height"], row["width"], row["label_index"]) for key, row in rows.items() if row["split"] == "train"
    }


def test_tfdv_makes_statistics_and_a_schema_and_tfxio_record_batches(run, rows):
    values = run("TFX, TFDV and TFXIO")
    train = {key: row for key, row in rows.items() if row["split"] == "train"}
    (statistics,) = values["statistics"].datasets
    assert statistics.num_examples == len(train)
    by_name = {feature.path.step[0]: feature for feature in statistics.features}
    assert by_name["image/width"].num_stats.mean == pytest.approx(np.mean([row["width"] for row in train.values()]))
    assert by_name["image/class/text"].string_stats.unique == 2
    assert {feature.name for feature in values["schema"].feature} == by_name.keys()
    found: list[str] = []
    for batch in values["batches"]:
        found += [cell[0].decode() for cell in batch.column(batch.schema.get_field_index("image/filename")).to_pylist()]
    assert sorted(found) == sorted(train)


def test_keras_fits_and_validates(run):
    values = run("Keras")
    history = values["history"].history
    assert history.keys() == {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert np.isfinite(history["loss"]).all()
    batches = sum(1 for _ in values["images_of"]("train", True))
    assert int(values["model"].optimizer.iterations.numpy()) == batches * len(history["loss"])


def test_the_export_of_the_page_writes_the_files_it_prints(run, place, capsys):
    run("Exports")
    assert capsys.readouterr().out == "['train-000000.tar']\n"
    assert (place / "train_tar" / "train-000000.tar").is_file()


def test_the_table_of_the_page_names_the_versions_of_this_environment():
    here = ("array-record", "keras", "tensorflow", "tensorflow-data-validation", "tensorflow-datasets", "tfx-bsl")
    named = page.versions()
    assert {name: metadata.version(name) for name in here if metadata.version(name) not in named.get(name, ())} == {}

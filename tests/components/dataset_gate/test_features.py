from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.types import Annotations
from components.dataset_gate.drift_and_skew import open_dataset
from components.dataset_gate.limits import FACTS, full_name, is_feature, short_name
from tests.beam_jobs.make_rows import make_ref
from tests.components.conftest import manifest_of


@pytest.fixture
def values_of(tmp_path):
    """Returns the values of a feature with the row of each, for images with these cells of the table."""

    def values(name, extra=("{}",), annotations=("",), label_kind="single", as_categories=False):
        count = max(len(extra), len(annotations))
        cells = {"extra": [*extra] * (count // len(extra)), "annotations": [*annotations] * (count // len(annotations))}
        cells["split"] = ["train"] * count
        empty = {pa.string(): "", pa.int64(): 1, pa.list_(pa.float32()): [10.0, 20.0, 60.0]}
        columns = {field.name: cells.get(field.name, [empty[field.type]] * count) for field in schemas.IMAGES}
        schemas.write_table(str(tmp_path / "images" / "part-0.parquet"), pa.table(columns, schemas.IMAGES))
        part = manifest.TablePart(name="part-0.parquet", rows=count, bytes=0, sha256="")
        made = dataclasses.replace(manifest_of({"train": {"a": count}}), label_kind=label_kind, images=(part,))
        manifest.write(made, str(tmp_path))
        with open_dataset(str(tmp_path)) as dataset:
            feature = dataset.features[name]
            feature = feature.as_categories() if as_categories else feature
            parameters = {"column": feature.column} if feature.column else {}
            found = dataset.database.query(f"SELECT * FROM ({feature.query}) ORDER BY row", **parameters)
        return found["value"].to_pylist(), found["row"].to_pylist()

    return values


@pytest.mark.parametrize(
    ("extra", "expected", "owners"),
    [
        (['{"x": 1}', '{"x": 2.5}'], [1, 2.5], [0, 1]),
        (['{"x": ["p", "q"]}', "{}"], ["p", "q", "(missing)"], [0, 0, 1]),
        (['{"x": 1}', '{"x": "q"}'], ["1", "q"], [0, 1]),
    ],
)
def test_user_columns(values_of, extra, expected, owners):
    assert values_of("extra/x", extra) == (expected, owners)


def test_a_missing_number_is_not_a_number_and_as_a_category_missing(values_of):
    extra = ['{"x": 1}', "{}"]
    assert np.isnan(values_of("extra/x", extra)[0][1])
    assert values_of("extra/x", extra, as_categories=True) == (["1", "(missing)"], [0, 1])


def test_every_label_of_an_image_counts_and_one_without_labels_is_missing(values_of):
    labelled = [make_ref(annotations=Annotations(labels=labels)) for labels in (("a", "b"), (), None)]
    first, second, last = (schemas.ref_row(ref)["annotations"] for ref in labelled)
    said = [first, second, "", last]
    found = values_of("image/class/text", annotations=said, label_kind="multi")
    assert found == (["a", "b", "(missing)", "(missing)", "(missing)"], [0, 0, 1, 2, 3])


def test_names_have_two_spellings():
    name = "class"
    assert name in FACTS
    assert short_name(full_name(name)) == name
    assert full_name(full_name(name)) == full_name(name)
    assert is_feature(name)
    assert is_feature(full_name(name))


@pytest.mark.parametrize("name", ["extra/", "weight", 3])
def test_what_is_no_feature(name):
    assert not is_feature(name)

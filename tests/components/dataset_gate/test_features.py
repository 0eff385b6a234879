from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.types import Annotations
from components.dataset_gate.drift_and_skew import Side, open_dataset
from tests.beam_jobs.make_rows import make_ref
from tests.components.conftest import manifest_of


@pytest.fixture
def side_of(tmp_path):
    """Returns the only split of a dataset of images with these cells of the table."""
    with contextlib.ExitStack() as stack:

        def side(extra=("{}",), annotations=("",), label_kind="single"):
            count = max(len(extra), len(annotations))
            cells = {
                "key": [f"{row}.png" for row in range(count)],
                "extra": [*extra] * (count // len(extra)),
                "annotations": [*annotations] * (count // len(annotations)),
                "split": ["train"] * count,
            }
            empty = {pa.string(): "", pa.int64(): 1, pa.list_(pa.float32()): [10.0, 20.0, 60.0]}
            columns = {field.name: cells.get(field.name, [empty[field.type]] * count) for field in schemas.IMAGES}
            schemas.write_table(str(tmp_path / "images" / "part-0.parquet"), pa.table(columns, schemas.IMAGES))
            part = manifest.TablePart(name="part-0.parquet", rows=count, bytes=0, sha256="")
            made = dataclasses.replace(manifest_of({"train": {"a": count}}), label_kind=label_kind, images=(part,))
            manifest.write(made, str(tmp_path))
            return Side(stack.enter_context(open_dataset(str(tmp_path))), "train", "this dataset")

        yield side


@pytest.fixture
def values_of(side_of):
    """Returns the values of a feature with the row of each, for images with these cells of the table."""

    def values(name, *cells, as_categories=False, **more_cells):
        side = side_of(*cells, **more_cells)
        feature = side.dataset.features[name]
        found = side.values(feature.as_categories() if as_categories else feature)
        rows = found.database.query(f"SELECT * FROM ({found.query}) ORDER BY row, value", **found.parameters)
        return rows["value"].to_pylist(), rows["row"].to_pylist()

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


def test_an_image_with_several_values_of_a_feature_weighs_more_in_its_size_alone(side_of):
    side = side_of(['{"tags": ["p", "q"], "x": 1}', '{"tags": ["p"], "x": [2, null]}'])
    sizes = {name: side.effective_size(feature) for name, feature in side.dataset.features.items()}
    assert (sizes["extra/tags"], sizes["extra/x"], sizes["image/bytes"]) == (9 / 5, 2, 2)

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import schemas
from components.dataset_gate.drift_and_skew import features
from components.dataset_gate.limits import FACTS, full_name, is_feature, short_name


def images(extra=("{}",), labels=("a",), annotations=None) -> pa.Table:
    count = max(len(extra), len(labels), len(annotations or ()))
    columns = {
        "label": list(labels) * (count // len(labels)),
        "format": ["jpeg"] * count,
        "height": [30] * count,
        "width": [60] * count,
        "bytes": [1000] * count,
        "mean_rgb": [[10.0, 20.0, 60.0]] * count,
        "extra": list(extra) * (count // len(extra)),
        "annotations": annotations or [""] * count,
    }
    return pa.table({name: pa.array(values, schemas.IMAGES.field(name).type) for name, values in columns.items()})


def values_of(feature) -> list:
    return feature.values.tolist() if feature.names is None else [feature.names[code] for code in feature.values]


@pytest.mark.parametrize(
    ("extra", "expected", "owners"),
    [
        (['{"x": 1}', '{"x": 2.5}'], [1, 2.5], [0, 1]),
        (['{"x": ["p", "q"]}', "{}"], ["p", "q", "(missing)"], [0, 0, 1]),
        (['{"x": 1}', '{"x": "q"}'], ["1", "q"], [0, 1]),
    ],
)
def test_user_columns(extra, expected, owners):
    found = features(images(extra), "single", channel_statistics=True)["extra/x"]
    assert values_of(found) == expected
    assert found.owners.tolist() == owners


def test_a_missing_number_is_not_a_number_and_as_a_category_missing():
    found = features(images(['{"x": 1}', "{}"]), "single", channel_statistics=True)["extra/x"]
    assert np.isnan(found.values[1])
    assert values_of(found.as_categories()) == ["1", "(missing)"]


def test_every_label_of_an_image_counts_and_one_without_labels_is_missing():
    said = ['{"labels": ["a", "b"]}', '{"labels": []}', "", '{"labels": null}']
    found = features(images(annotations=said), "multi", channel_statistics=True)["image/class/text"]
    assert values_of(found) == ["a", "b", "(missing)", "(missing)", "(missing)"]
    assert values_of(found.select(np.array([True, False, False, True]))) == ["a", "b", "(missing)"]


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

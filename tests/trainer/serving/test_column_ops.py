"""The ops of user columns, analysed by Transform and then applied to single rows by a saved function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from tests.trainer.conftest import analyze
from trainer.serving.preprocessing import vocabulary_name

pytestmark = pytest.mark.filterwarnings("ignore")
COLUMNS = {
    "price": "scale",
    "age": "zscore",
    "rank": "bucketise(4)",
    "city": "vocabulary(2, oov=3)",
    "code": "vocabulary(2)",
    "user": "hashed(1000)",
    "pair": "scale",
    "flat": "scale",
    "level": "zscore",
    "unseen": "scale",
    "unseen rank": "bucketise(3)",
    "unseen city": "vocabulary(5)",
}
ANY, ONE = tf.io.VarLenFeature, lambda dtype: tf.io.FixedLenFeature([1], dtype)
SPEC = {
    "price": ANY(tf.float32),
    "age": ONE(tf.int64),
    "rank": ONE(tf.float32),
    "city": ANY(tf.string),
    "code": ONE(tf.int64),
    "user": ANY(tf.string),
    "pair": tf.io.FixedLenFeature([2], tf.float32),
    "flat": ONE(tf.int64),
    "level": ONE(tf.float32),
    "unseen": ANY(tf.float32),
    "unseen rank": ANY(tf.float32),
    "unseen city": ANY(tf.string),
    "left out": ONE(tf.int64),
}
ODD = [float("nan"), float("inf")]
CITIES = [b"oslo", b"rome", b"oslo", b"bonn", b"rome", b"oslo"]
# Everything a serving row must hold; tests change single columns of it.
USUAL: dict[str, list] = {
    "age": [50],
    "rank": [0.0],
    "code": [7],
    "pair": [0.0, 0.0],
    "flat": [5],
    "level": [3.0],
    "left out": [0],
}


def rows() -> list[dict[str, list]]:
    made = []
    for place in range(100):
        row: dict[str, list] = {name: [] for name in COLUMNS}
        row |= {
            "price": [float(place), 200.0 - place, *ODD] if place % 2 else [],
            "age": [place],
            "rank": [float(place * place)],
            "city": CITIES[: place % 7],
            "code": [place % 3 and 7],
            "user": [b"user %d" % place],
            "pair": [float(place), -50.0],
            "flat": [5],
            "level": [ODD[place == 9] if place in (9, 12) else 3.0 if place % 2 else 5.0],
            "left out": [place],
        }
        made.append(row)
    return made


class Served(tf.Module):
    """The transform graph inside a saved model that takes serialised records."""

    def __init__(self, output: tft.TFTransformOutput) -> None:
        super().__init__()
        self._spec = output.raw_feature_spec()
        self._layer = output.transform_features_layer()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, records: tf.Tensor) -> dict[str, Any]:
        return dict(self._layer(tf.io.parse_example(records, self._spec)))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> tft.TFTransformOutput:
    spec = {record.EXTRA_PREFIX + name: kind for name, kind in SPEC.items()}
    named = [{record.EXTRA_PREFIX + name: values for name, values in row.items()} for row in rows()]
    return tft.TFTransformOutput(str(analyze(named, spec, tmp_path_factory.mktemp("columns"), COLUMNS)))


@pytest.fixture(scope="module")
def served(output: tft.TFTransformOutput, tmp_path_factory: pytest.TempPathFactory):
    path = str(tmp_path_factory.mktemp("served"))
    tf.saved_model.save(Served(output), path)
    return tf.saved_model.load(path)


def ask(served: Any, *rows: dict[str, list]) -> dict[str, list[list]]:
    """The values of each column of each row."""
    examples = []
    for row in rows:
        example = tf.train.Example()
        for name, values in {**USUAL, **row}.items():
            feature = example.features.feature[record.EXTRA_PREFIX + name]
            if SPEC[name].dtype == tf.string:
                feature.bytes_list.value.extend(value.encode() for value in values)
            elif SPEC[name].dtype == tf.int64:
                feature.int64_list.value.extend(values)
            else:
                feature.float_list.value.extend(values)
        examples.append(example.SerializeToString())
    found = {}
    for name, column in served(tf.constant(examples)).items():
        sparse = isinstance(column, tf.SparseTensor)
        lists = tf.RaggedTensor.from_sparse(column).to_list() if sparse else column.numpy().tolist()
        found[name.removeprefix(record.EXTRA_PREFIX)] = lists
    return found


def test_the_graph_holds_the_columns_that_were_asked_for_in_their_types(output):
    types = {name: spec.dtype for name, spec in output.transformed_feature_spec().items()}
    floats = ("scale", "zscore")
    expected = {name: tf.float32 if spec in floats else tf.int64 for name, spec in COLUMNS.items()}
    assert types == {record.EXTRA_PREFIX + name: dtype for name, dtype in expected.items()}


def test_scaled_numbers_run_from_the_least_to_the_greatest_and_are_clipped_outside(served):
    # The training split runs from 1 to 199 in price, and from -50 to 99 over both places of pair.
    found = ask(served, {"price": [1.0, 100.0, 199.0]}, {"price": [-1e9, float("inf")], "pair": [-50.0, 24.5]})
    np.testing.assert_allclose(found["price"][0], [0, 0.5, 1])
    assert found["price"][1] == [0, 1]
    np.testing.assert_allclose(found["pair"][1], [0, 0.5])


def test_scores_are_those_of_the_training_split_however_far_the_value(served):
    ages = np.arange(100)
    found = ask(served, {"age": [0]}, {"age": [99]}, {"age": [100_000]})
    expected = [(age - ages.mean()) / ages.std() for age in (0, 99, 100_000)]
    np.testing.assert_allclose(np.ravel(found["age"]), expected, rtol=1e-6)


def test_buckets_hold_a_quarter_each_and_the_outer_ones_are_open(served):
    inside = ask(served, *({"rank": [float(place * place)]} for place in range(100)))["rank"]
    counts = np.bincount(np.ravel(inside), minlength=4)
    assert len(counts) == 4
    assert counts.min() >= 24
    assert np.all(np.diff(np.ravel(inside)) >= 0)
    outside = ask(served, {"rank": [-1e9]}, {"rank": [1e9]}, {"rank": [float("nan")]})
    assert outside["rank"] == [[0], [3], [0]]


def test_frequent_values_are_ranked_and_the_others_share_what_follows(served, output):
    found = ask(served, {"city": ["oslo", "rome", "bonn", "paris", ""]}, {"city": []})["city"]
    assert found[0][:2] == [0, 1]
    assert set(found[0][2:]) <= {2, 3, 4}
    assert found[1] == []
    assert ask(served, {"code": [7]}, {"code": [0]}, {"code": [-3]})["code"] == [[0], [1], [2]]
    assert output.vocabulary_by_name(vocabulary_name("city")) == [b"oslo", b"rome"]


def test_hashes_need_no_analysis_and_rarely_meet(served):
    found = ask(served, *({"user": [f"user {place}", f"new {place}"]} for place in range(100)))["user"]
    values = np.ravel(found)
    assert (values.min() >= 0, values.max() < 1000) == (True, True)
    assert len(set(values.tolist())) > 150
    assert ask(served, {"user": ["user 3"]})["user"] == [[found[3][0]]]


def test_a_constant_column_scales_to_nothing_and_a_number_that_is_none_counts_nowhere(served):
    assert ask(served, {"flat": [5]}, {"flat": [9]})["flat"] == [[0], [0]]
    odd = np.array([3.0 if place % 2 else 5.0 for place in range(100) if place not in (9, 12)])
    found = ask(served, {"level": [3.0]}, {"level": [float("nan")]}, {"level": [float("inf")]})["level"]
    np.testing.assert_allclose(np.ravel(found), [(3 - odd.mean()) / odd.std(), 0, 0], rtol=1e-6)


def test_a_column_that_the_training_split_does_not_hold_is_served_all_the_same(served):
    found = ask(served, {"unseen": [4.0], "unseen rank": [4.0], "unseen city": ["oslo"]}, {})
    assert found["unseen"] == [[0], []]
    assert found["unseen rank"][0][0] in range(3)
    assert len(found["unseen city"][0]) == 1


@pytest.mark.parametrize(
    ("columns", "spec", "message"),
    [
        ({"city": "scale"}, {"city": ANY(tf.string)}, "city is scale, .* has text; use vocabulary or hash"),
        ({"price": "vocabulary(3)"}, {"price": ANY(tf.float32)}, "price is vocabulary, .* fractions; use bucketise, "),
        ({"prise": "scale"}, {"price": ANY(tf.float32)}, ": there is no user column 'prise'"),
    ],
)
def test_an_op_that_does_not_fit_the_column_is_refused(columns, spec, message, tmp_path: Path):
    named = {record.EXTRA_PREFIX + name: kind for name, kind in spec.items()}
    with pytest.raises(OptionError, match="^transform.columns.?" + message):
        analyze([], named, tmp_path, columns)


def test_columns_whose_names_differ_have_vocabularies_of_their_own():
    names = ["city", "city ", "city/", "c\u00edty", "c_ty"]
    files = {vocabulary_name(name) for name in names}
    assert len(files) == len(names)
    assert all(name.replace("_", "").isalnum() and name.isascii() for name in files)

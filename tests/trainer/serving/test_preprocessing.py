from __future__ import annotations

import functools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs.dataset import record
from tests.trainer.conftest import analyze, column_spec, records_of
from trainer.input.columns import CONFIG_KEY, TransformOptions
from trainer.serving.preprocessing import LABEL, LABEL_VOCABULARY, MEAN_RGB, STD_RGB, preprocessing_fn

COLUMNS = (record.HEIGHT, record.WIDTH, record.MEAN_RGB, record.VAR_RGB, record.LABEL, record.TEXT)


def row(height: int, width: int, mean: list[float], var: list[float], label: int, text: bytes) -> dict:
    values = ([height], [width], mean, var, [label], [text])
    return dict(zip(COLUMNS, values, strict=True))


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> tft.TFTransformOutput:
    rows = [
        row(10, 10, [100, 7, 0], [0, 0, 9], 1, b"b b"),
        row(10, 30, [200, 7, 0], [0, 0, 1], 0, b"a"),
        row(30, 10, [200, 7, 0], [0, 0, 1], 1, b"b b"),
    ]
    out = analyze(rows, column_spec(COLUMNS), tmp_path_factory.mktemp("by_hand"))
    return tft.TFTransformOutput(str(out))


def transformed(output: tft.TFTransformOutput, *labels: int) -> dict[str, np.ndarray]:
    count = len(labels)
    columns = {
        name: tf.zeros([count, *spec.shape], spec.dtype) if spec.dtype != tf.string else tf.fill([count, 1], b"a")
        for name, spec in column_spec(COLUMNS).items()
    }
    columns[record.LABEL] = tf.constant([[label] for label in labels], tf.int64)
    return {name: tensor.numpy() for name, tensor in output.transform_raw_features(columns).items()}


def test_images_count_by_their_pixels(by_hand):
    # Of 700 pixels, 100 have 100 and 600 have 200; variances within images and between them add up.
    found = transformed(by_hand, 0)
    np.testing.assert_allclose(found[MEAN_RGB], [[1300 / 7, 7, 0]], rtol=1e-6)
    between = 100 * math.sqrt(6) / 7
    np.testing.assert_allclose(found[STD_RGB], [[between, 0, math.sqrt(15 / 7)]], rtol=1e-6)


def test_every_row_gets_its_label_and_the_same_statistics(by_hand):
    found = transformed(by_hand, 1, 0, 5)
    assert found[LABEL].tolist() == [1, 0, 5]
    assert (found[LABEL].dtype, found[MEAN_RGB].dtype, found[STD_RGB].dtype) == (np.int64, np.float32, np.float32)
    assert found.keys() == {LABEL, MEAN_RGB, STD_RGB}
    assert found[MEAN_RGB].shape == found[STD_RGB].shape == (3, 3)
    assert np.ptp(found[MEAN_RGB], axis=0).max() == np.ptp(found[STD_RGB], axis=0).max() == 0


def test_the_vocabulary_holds_the_class_names_with_their_counts(by_hand, transform_output, dataset):
    with open(by_hand.vocabulary_file_by_name(LABEL_VOCABULARY), "rb") as stream:
        assert stream.read() == b"2 b b\n1 a\n"
    counts = Counter(record.decode(item)[record.TEXT][0] for item in records_of(dataset, "train"))
    with open(tft.TFTransformOutput(str(transform_output)).vocabulary_file_by_name(LABEL_VOCABULARY), "rb") as stream:
        assert sorted(stream.read().splitlines()) == sorted(b"%d %s" % (n, text) for text, n in counts.items())


def test_statistics_of_photographs_are_those_of_all_their_pixels(transform_output, dataset):
    encoded = [record.decode(item)[record.ENCODED][0] for item in records_of(dataset, "train")]
    pixels = np.concatenate([tf.io.decode_jpeg(data, channels=3).numpy().reshape(-1, 3) for data in encoded])
    output = tft.TFTransformOutput(str(transform_output))
    columns = {
        name: tf.fill([1, *spec.shape], tf.constant(b"" if spec.dtype == tf.string else 0, spec.dtype))
        for name, spec in column_spec(record.STATISTICS_FEATURES).items()
    }
    empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.constant([], tf.string), [1, 0])
    found = output.transform_raw_features({**columns, "extra/tags": empty})
    np.testing.assert_allclose(found[MEAN_RGB][0], pixels.astype(np.float64).mean(0), rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(found[STD_RGB][0], pixels.astype(np.float64).std(0), rtol=1e-6, atol=1e-4)


def analysed(rows: list[dict], spec: dict, out: Path, columns: dict[str, str] | None = None) -> dict[str, Any]:
    """What the graph analysed from rows makes of all of them at once."""
    output = tft.TFTransformOutput(str(analyze(rows, spec, out, columns)))
    raw = {}
    for name, kind in spec.items():
        lists = tf.ragged.constant([row[name] for row in rows], dtype=kind.dtype, ragged_rank=1)
        sparse = isinstance(kind, tf.io.VarLenFeature)
        ragged = isinstance(kind, tf.io.RaggedFeature)
        raw[name] = lists if ragged else lists.to_sparse() if sparse else lists.to_tensor()
    return {"output": output, **output.transform_raw_features(raw)}


def test_images_of_any_number_of_labels_keep_them(tmp_path):
    spec = {record.LABEL: tf.io.VarLenFeature(tf.int64), record.TEXT: tf.io.VarLenFeature(tf.string)}
    rows = [{record.LABEL: [1, 0], record.TEXT: [b"b", b"a"]}, {record.LABEL: [], record.TEXT: []}]
    rows.append({record.LABEL: [1], record.TEXT: [b"b"]})
    found = analysed(rows, spec, tmp_path)
    assert found.keys() == {"output", LABEL}
    assert tf.RaggedTensor.from_sparse(found[LABEL]).to_list() == [[1, 0], [], [1]]
    with open(found["output"].vocabulary_file_by_name(LABEL_VOCABULARY), "rb") as stream:
        assert stream.read() == b"2 b\n1 a\n"


def test_two_labels_each_are_not_twice_as_many_images(tmp_path):
    spec = {**column_spec(COLUMNS), record.LABEL: tf.io.FixedLenFeature([2], tf.int64)}
    rows = [{**row(10, 10, [1, 2, 3], [0, 0, 0], 0, b"a"), record.LABEL: [0, place]} for place in range(3)]
    found = analysed(rows, spec, tmp_path)
    assert found[LABEL].numpy().tolist() == [[0, 0], [0, 1], [0, 2]]
    assert found[MEAN_RGB].shape == (3, 3)


def test_images_without_labels_and_moments_have_their_columns_alone(tmp_path):
    spec = {record.HEIGHT: column_spec([record.HEIGHT])[record.HEIGHT]}
    spec["extra/iso"] = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    rows = [{record.HEIGHT: [5], "extra/iso": values} for values in ([100, 400], [], [200])]
    found = analysed(rows, spec, tmp_path, {"iso": "scale"})
    assert found.keys() == {"output", "extra/iso"}
    column = found["extra/iso"]
    assert isinstance(column, tf.RaggedTensor)
    np.testing.assert_allclose(column.flat_values, [0, 1, 1 / 3], rtol=1e-6)
    assert column.row_lengths().numpy().tolist() == [2, 0, 1]


def test_image_bytes_go_into_no_analysis_and_no_transform():
    # TFX reads what these name, and of the schema nothing else.
    types = {
        name: tf.TensorSpec([None, *kind.shape], kind.dtype)
        for name, kind in column_spec([*COLUMNS, record.ENCODED]).items()
    }
    types["extra/iso"] = tf.SparseTensorSpec([None, None], tf.int64)
    config = {CONFIG_KEY: TransformOptions(columns={"iso": "zscore"}).to_json()}
    function = functools.partial(preprocessing_fn, custom_config=config)
    assert set(tft.get_analyze_input_columns(function, types)) == {*COLUMNS, "extra/iso"} - {record.LABEL}
    assert set(tft.get_transform_input_columns(function, types)) == {record.LABEL, record.HEIGHT, "extra/iso"}

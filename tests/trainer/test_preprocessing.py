from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft

from beam_jobs import record
from tests.trainer.conftest import analyze, column_spec, records_of
from trainer.preprocessing import LABEL, LABEL_VOCABULARY, MEAN_RGB, STD_RGB

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
    assert len({tuple(values) for values in found[MEAN_RGB].tolist() + found[MEAN_RGB].tolist()}) == 1


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

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError

from beam_jobs import record
from tests.beam_jobs.make_rows import make_facts, make_record, sha

EXPECTED = {
    "image/encoded": [b"pixels"],
    "image/format": [b"jpeg"],
    "image/height": [60],
    "image/width": [80],
    "image/channels": [3],
    "image/filename": ["cat/ä.jpg".encode()],
    "image/source_uri": ["far/ä.jpg".encode()],
    "image/key/sha256": [sha("a").encode()],
    "image/bytes": [1000],
    "image/mean_rgb": [10.0, 20.0, 30.0],
    "image/var_rgb": [1.0, 4.0, 9.0],
    "image/class/label": [3],
    "image/class/text": ["kätzchen".encode()],
}


def test_a_record_holds_the_published_layout():
    assert record.decode(record.encode(make_record())) == EXPECTED
    assert set(record.FEATURES) == set(EXPECTED)


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ({"encoded": b"x"}, "image/encoded"),
        ({"key": "x"}, "image/filename"),
        ({"uri": "x"}, "image/source_uri"),
        ({"label": 9}, "image/class/label"),
        ({"text": "x"}, "image/class/text"),
        ({"facts": make_facts(format="png")}, "image/format"),
        ({"facts": make_facts(height=9)}, "image/height"),
        ({"facts": make_facts(width=9)}, "image/width"),
        ({"facts": make_facts(channels=1)}, "image/channels"),
        ({"facts": make_facts(bytes=9)}, "image/bytes"),
        ({"facts": make_facts(sha256="x")}, "image/key/sha256"),
        ({"facts": make_facts(mean_rgb=(1, 2, 3))}, "image/mean_rgb"),
        ({"facts": make_facts(var_rgb=(1, 2, 3))}, "image/var_rgb"),
    ],
)
def test_each_field_is_one_feature(change, feature):
    values = record.decode(record.encode(replace(make_record(), **change)))
    assert {name for name in EXPECTED if values[name] != EXPECTED[name]} == {feature}


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (7, [7]),
        (-(2**63), [-(2**63)]),
        (0.5, [0.5]),
        ("grün", ["grün".encode()]),
        ("", [b""]),
        ([1, 2, 3], [1, 2, 3]),
        ([0.5, 2], [0.5, 2.0]),
        (["a", "b"], [b"a", b"b"]),
        ((1, 2), [1, 2]),
        ([], []),
    ],
)
def test_an_extra_column_keeps_its_type(value, stored):
    values = record.decode(record.encode(make_record(extra={"NAME": value})))
    assert values["extra/NAME"] == stored
    assert [type(item) for item in values["extra/NAME"]] == [type(item) for item in stored]


@pytest.mark.parametrize("value", [["a", 1], [None], {"a": 0.5}.items(), [b"bytes"]])
def test_an_extra_column_of_anything_else_is_refused(value):
    with pytest.raises(TypeError, match="^extra column 'age' holds .*; it must be int, float, str or a list of one"):
        record.encode(make_record(extra={"age": value}))


def test_equal_records_give_equal_bytes():
    one = make_record(extra={"a": 1, "b": 2.0, "c": "x"})
    other = make_record(extra={"c": "x", "b": 2.0, "a": 1})
    assert record.encode(one) == record.encode(other)


def test_tensorflow_parses_records_by_the_feature_spec():
    import tensorflow as tf

    parsed = tf.io.parse_single_example(record.encode(make_record()), record.feature_spec())
    assert {name: tuple(value.shape) for name, value in parsed.items()} == {
        name: shape for name, (_, shape) in record.FEATURES.items()
    }
    assert {name: value.dtype.name for name, value in parsed.items()} == {
        name: dtype for name, (dtype, _) in record.FEATURES.items()
    }
    assert parsed["image/mean_rgb"].numpy().tolist() == [10.0, 20.0, 30.0]


def test_a_feature_spec_may_name_some_features_and_no_unknown_one():
    assert list(record.feature_spec(["image/encoded", "image/class/label"])) == ["image/encoded", "image/class/label"]
    with pytest.raises(KeyError, match="image/nothing"):
        record.feature_spec(["image/nothing"])


def test_statistics_leave_out_what_is_large_or_unique():
    left_out = {"image/encoded", "image/filename", "image/source_uri", "image/key/sha256"}
    assert set(record.STATISTICS_FEATURES) == set(record.FEATURES) - left_out


def test_what_is_not_an_example_is_not_decoded():
    with pytest.raises(DecodeError, match="."):
        record.decode(b"\xff\xff\xff")


def test_a_feature_without_values_is_an_empty_list():
    from tensorflow.core.example import example_pb2

    example = example_pb2.Example()
    example.features.feature["bare"].SetInParent()
    assert record.decode(example.SerializeToString()) == {"bare": []}

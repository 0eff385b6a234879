from __future__ import annotations

import re

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from beam_jobs.dataset import record
from beam_jobs.types import RecordObject
from tests.beam_jobs.make_rows import make_record, sha
from tests.doc_pages import text_of

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
    "image/brightness": [20.0],
    "image/aspect_ratio": [float(np.float32(80 / 60))],
    "image/class/label": [3],
    "image/class/text": ["kätzchen".encode()],
}


def test_a_record_holds_the_published_layout():
    assert record.decode(record.encode(make_record())) == EXPECTED
    assert set(record.FEATURES) == set(EXPECTED)


OBJECTS = (
    RecordObject(label=4, text="Tür", bbox=(0.125, 0.25, 0.5, 0.75), crowd=False, area=12.5, mask=b"png of it"),
    RecordObject(label=0, text="cat", bbox=(0.0, 0.5, 1.0, 0.625), crowd=True, area=0.0),
)


def test_an_image_of_no_object_has_empty_lists_and_not_no_lists():
    # A parser with a fixed list of features must not fail on an image that happens to be empty.
    values = record.decode(record.encode(make_record(objects=())))
    found = {name: stored for name, stored in values.items() if name.startswith(record.OBJECT_PREFIX)}
    sides = [f"bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    names = (*sides, "class/label", "class/text", "is_crowd", "area", "mask")
    assert found == {record.OBJECT_PREFIX + name: [] for name in names}


@pytest.mark.parametrize(
    ("change", "features"),
    [
        ({"weight": 0.0}, {"image/weight": [0.0]}),
        (
            {"mask": b"png of classes"},
            {"image/segmentation/class/encoded": [b"png of classes"], "image/segmentation/class/format": [b"png"]},
        ),
        ({"weight": None, "mask": b"", "objects": None, "extra": {}}, {}),
    ],
)
def test_what_the_source_speaks_of_is_written_and_nothing_else(change, features):
    assert record.decode(record.encode(make_record(**change))) == {**EXPECTED, **features}


def test_the_page_of_the_format_names_every_feature():
    page = text_of("record-format")
    objects = (RecordObject(label=0, text="cat", bbox=(0.0, 0.0, 1.0, 1.0), crowd=False, area=1.0),)
    written = record.encode(make_record(objects=objects, mask=b"png", weight=1.0, extra={"NAME": 1}))
    missing = {name for name in record.decode(written) if f"`{name}`" not in page}
    assert missing == {record.OBJECT_PREFIX + f"bbox/{side}" for side in ("ymin", "xmax", "ymax")}
    assert "`image/object/bbox/xmin`, `ymin`, `xmax`, `ymax`" in page


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1e300, [float("inf")]),  # a float32 cannot hold it, and one such cell must not stop an ingest
        ([0.5, 2], [0.5, 2.0]),
        ((1, 2), [1, 2]),
    ],
)
def test_an_extra_column_keeps_its_type(value, stored):
    values = record.decode(record.encode(make_record(extra={"NAME": value})))
    assert values["extra/NAME"] == stored
    assert [type(item) for item in values["extra/NAME"]] == [type(item) for item in stored]


@pytest.mark.parametrize("value", [["a", 1], [b"bytes"]])
def test_an_extra_column_of_anything_else_is_refused(value):
    with pytest.raises(TypeError, match="^extra column 'age' holds .*; it must be int, float, str or a list of one"):
        record.encode(make_record(extra={"age": value}))


def test_tensorflow_parses_records_by_the_feature_spec():
    import tensorflow as tf

    parsed = tf.io.parse_single_example(record.encode(make_record()), record.feature_spec())
    found = {name: (value.dtype.name, tuple(value.shape)) for name, value in parsed.items()}
    assert found == record.FEATURES
    assert parsed["image/mean_rgb"].numpy().tolist() == [10.0, 20.0, 30.0]


def test_a_feature_spec_may_name_some_features_and_no_unknown_one():
    assert list(record.feature_spec(["image/encoded", "image/class/label"])) == ["image/encoded", "image/class/label"]
    with pytest.raises(KeyError, match="image/nothing"):
        record.feature_spec(["image/nothing"])


def test_statistics_leave_out_what_is_large_or_unique():
    left_out = {"image/encoded", "image/filename", "image/source_uri", "image/key/sha256"}
    assert set(record.STATISTICS_FEATURES) == set(record.FEATURES) - left_out


@pytest.mark.parametrize("serialized", [b"\xff\xff\xff", b"\x0a\x00\x04and more"])
def test_what_is_not_an_example_or_not_to_its_end_is_not_decoded(serialized):
    with pytest.raises(DecodeError, match="."):
        record.decode(serialized)


def test_a_feature_of_another_type_is_named():
    values = record.decode(record.encode(make_record(objects=OBJECTS, weight=1.0, mask=b"m", extra={"age": "x"})))
    assert record.type_problem(values) == ""
    for name, kind in (("image/height", b"x"), ("image/encoded", 1), ("image/weight", b"1"), ("image/object/mask", 2)):
        said = record.type_problem({**values, name: [kind]})
        assert re.fullmatch(rf"feature '{name}' holds \w+, it must hold (int|bytes|float)", said)

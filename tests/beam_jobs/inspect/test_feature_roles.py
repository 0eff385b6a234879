from __future__ import annotations

import math

import pytest

from beam_jobs.dataset import record
from beam_jobs.inspect import FeatureSummary, summarise_file
from beam_jobs.inspect.summary import FeatureRoles, detect_roles
from beam_jobs.inspect.view import view_files
from tests.make_images import jpeg, png
from tests.rewrite_records import framed


def test_a_dataset_of_ours_is_known_by_its_features(dataset):
    shard = str(dataset / "Split-train" / "data-00000-of-00002.tfrecord")
    roles = detect_roles(summarise_file(shard).features)
    assert roles.looks_like == "Feedline"
    assert (roles.image, roles.labels, roles.keys) == (
        (record.ENCODED,),
        (record.LABEL, record.TEXT),
        (record.FILENAME,),
    )


@pytest.mark.parametrize(
    ("features", "looks_like", "image", "labels", "keys"),
    [
        (
            ["image/encoded", "image/format", "image/class/label", "image/height"],
            *("TF-Slim", ["image/encoded"], ["image/class/label"], []),
        ),
        (
            ["image/encoded", "image/source_id", "image/object/class/label", "image/object/bbox/xmin"],
            *("TensorFlow Object Detection", ["image/encoded"], ["image/object/class/label"], ["image/source_id"]),
        ),
        (["image", "label", "file_name"], "TFDS", ["image"], ["label"], ["file_name"]),
        (["image", "objects/label", "objects/bbox", "image/id"], "TFDS", ["image"], ["objects/label"], ["image/id"]),
        (["__key__", "cls", "jpg"], "WebDataset", ["jpg"], ["cls"], ["__key__"]),
        (
            ["image_raw", "height", "width", "depth", "label"],
            *("the TFRecord tutorial of TensorFlow", ["image_raw"], ["label"], []),
        ),
    ],
)
def test_well_known_layouts_are_known_by_their_names(features, looks_like, image, labels, keys):
    roles = detect_roles(features)
    assert (roles.looks_like, *map(list, (roles.image, roles.labels, roles.keys))) == (looks_like, image, labels, keys)


@pytest.mark.parametrize("features", [[], ["label", "file_name"], ["image/encoded_mask"]])
def test_nothing_beyond_the_table_is_guessed(features):
    assert detect_roles(features) == FeatureRoles()


def test_a_feature_has_its_role():
    roles = detect_roles(["jpg", "cls", "__key__", "json"])
    assert [roles.role_of(name) for name in ("jpg", "cls", "__key__", "json")] == ["image", "label", "key", ""]


# --- what is seen of their values


def test_ranges_and_formats_are_what_was_seen(tmp_path):
    path = tmp_path / "x.tfrecord"
    records = (
        {
            "image": ("bytes", (image,)),
            "label": ("int64", (label,)),
            "score": ("float", (0.5,)),
            "car": ("bytes", (b"BMW",)),
        }
        for label, image in enumerate((jpeg(), png(), jpeg(1)))
    )
    path.write_bytes(framed(*map(record.encode_example, records)))
    view = view_files(str(path), 0)
    assert {name: holds for name, _, _, _, holds in view.features} == {
        "image": "image, 2 jpeg, 1 png",
        "label": "label, 0 to 2",
        "car": "",
        "score": "0.5",
    }


def test_numbers_that_are_none_spoil_no_range():
    one = FeatureSummary()
    for value in (math.nan, 2.0, math.inf, 1.0):
        one.add([value])
    assert (one.low, one.high) == (1.0, 2.0)

from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.options import ImageLimits, IngestOptions, TableColumns
from components.image_example_gen.component import ImageExampleGen

OPTIONS = IngestOptions(
    source="photos",
    out="",
    splits={"train": 0.5, "eval": 0.25, "audit": 0.25},
    columns=TableColumns(extra=("age", "place")),
    limits=ImageLimits(min_side_px=4),
)


def test_the_options_cross_as_json_with_their_splits_in_order():
    properties = ImageExampleGen(OPTIONS, producer="v1").exec_properties
    assert properties["producer"] == "v1"
    assert properties.get("input_fingerprint") is None
    read = IngestOptions.from_json(json.loads(properties["options"]))
    assert read == OPTIONS
    assert list(read.splits) == ["train", "eval", "audit"]


def test_the_spelling_tells_the_order_of_splits_and_nothing_else_apart():
    text = ImageExampleGen(OPTIONS).exec_properties["options"]
    assert text == json.dumps(json.loads(text), sort_keys=True)
    turned = IngestOptions(source="photos", out="", splits={"eval": 0.5, "train": 0.5})
    straight = IngestOptions(source="photos", out="", splits={"train": 0.5, "eval": 0.5})
    assert ImageExampleGen(turned).exec_properties != ImageExampleGen(straight).exec_properties


def test_a_dataset_to_adopt_crosses_as_its_path_and_no_code_of_ours_makes_it_another():
    properties = ImageExampleGen(dataset="datasets/{SPAN}", producer="v1", span=7).exec_properties
    assert properties["dataset"] == "datasets/{SPAN}"
    assert properties["span"] == 7
    assert properties["producer"] == ""
    assert properties.get("options") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither options nor dataset"),
        ({"options": OPTIONS, "dataset": "dir"}, "both options and dataset dir"),
        ({"options": OPTIONS, "span": 1}, r"span is 1, but the source photos has no \{SPAN\}"),
        ({"dataset": "d/{SPAN}", "version": 1}, r"version is 1, but the source d/\{SPAN\} has no \{VERSION\}"),
        ({"dataset": "d/v{VERSION}"}, r"has \{VERSION\} without \{SPAN\}"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_when_the_pipeline_is_built(given, message):
    with pytest.raises(OptionError, match=message):
        ImageExampleGen(**given)

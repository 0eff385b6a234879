"""Datasets of every kind: several labels, masks, objects and raw pixels, sound and with wrong annotations."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.dataset import record
from beam_jobs.dataset.verify import verify
from tests.make_images import encode
from tests.rewrite_records import edit_manifest, rewrite_shard, set_value


@pytest.fixture
def copy_of(request, tmp_path):
    """Returns a function that copies a dataset by the name of its fixture."""
    return lambda name: Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "copy"))


@pytest.mark.parametrize(("name", "records"), [("rich", 6), ("objects", 2), ("raw", 24)])
def test_datasets_of_every_kind_are_sound(request, name, records):
    result = verify(str(request.getfixturevalue(name)))
    assert (result.records, result.problems) == (records, [])


OBJECT_LABEL, OBJECT_MASK = record.OBJECT_PREFIX + "class/label", record.OBJECT_PREFIX + "mask"
SMALL_MASK = encode(np.zeros((30, 40), np.uint8), "PNG")
WRONG_ANNOTATIONS = {
    "label without a name": (
        "rich",
        lambda feature: feature[record.LABEL].int64_list.value.append(1),
        "label 1 is not None",
    ),
    "name without a label": (
        "rich",
        lambda feature: feature[record.TEXT].bytes_list.value.append(b"a"),
        "label None is not 'a'",
    ),
    "mask of another size": (
        "rich",
        set_value(record.MASK, SMALL_MASK),
        "a mask of '.*' has 40x30 pixels, its image has 80x60",
    ),
    "damaged mask": ("rich", set_value(record.MASK, SMALL_MASK[:-20]), "'.*' cannot be decoded: "),
    "object beyond the classes": ("objects", set_value(OBJECT_LABEL, 2), "label 2 is not 'cat'"),
    "object mask of another size": ("objects", set_value(OBJECT_MASK, SMALL_MASK), r"a mask of '\d.jpg' has 40x30"),
    "too few pixels": (
        "raw",
        set_value(record.HEIGHT, 17),
        r"'.*' has 768 bytes of pixels, not 16x17 pixels of 3 bytes as in its record",
    ),
}


@pytest.mark.parametrize(("name", "change", "message"), WRONG_ANNOTATIONS.values(), ids=WRONG_ANNOTATIONS)
def test_a_wrong_annotation_is_named_even_when_every_checksum_is_right(copy_of, name, change, message):
    dataset = copy_of(name)
    path = rewrite_shard(dataset, change, "all", 0)
    problems = verify(str(dataset)).problems
    assert re.fullmatch(rf"{path} offset 0: ({message}).*", problems[0]), problems[0]


def test_a_histogram_of_several_classes_an_image_is_compared_too(copy_of):
    dataset = copy_of("rich")
    edit_manifest(dataset, lambda values: values["splits"]["all"]["classes"].update(dog=9))
    assert verify(str(dataset)).problems == ["all: the class histogram in dataset.json does not match the records"]

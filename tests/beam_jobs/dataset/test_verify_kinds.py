"""Datasets of every kind: several labels, masks, objects and raw pixels, sound and with wrong annotations."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from beam_jobs import ingest
from beam_jobs.dataset import record
from beam_jobs.dataset.verify import verify
from beam_jobs.options import IngestOptions, PixelOptions, TableColumns
from tests.make_images import class_folders, encode, jpeg
from tests.rewrite_records import edit_manifest, rewrite_shard, set_value


def image_folder(folder: Path) -> Path:
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
        (folder / f"{number}.png").write_bytes(encode(np.full((60, 80), number, np.uint8), "PNG"))
    return folder


def ingested(source: Path, out: Path, **fields) -> Path:
    ingest.run(IngestOptions(source=str(source), out=str(out), splits={"all": 1}, **fields))
    return out


@pytest.fixture(scope="module")
def _many(tmp_path_factory) -> Path:
    folder = image_folder(tmp_path_factory.mktemp("many") / "source")
    lines = [f"{n}.jpg,{'a|b' if n % 2 else ''},{n}.png" for n in range(6)]
    (folder / "table.csv").write_text("\n".join(["image,classes,mask", *lines, ""]))
    columns = TableColumns(labels="classes", mask="mask")
    return ingested(folder / "table.csv", folder.parent / "out", columns=columns)


@pytest.fixture(scope="module")
def _objects(tmp_path_factory) -> Path:
    folder = image_folder(tmp_path_factory.mktemp("objects") / "source")
    outline = [[10, 10, 40, 12, 35, 50]]
    boxes = [
        {"id": n, "image_id": n // 2, "category_id": 1 + n % 2, "bbox": [8, 10, 32, 41], "segmentation": outline}
        for n in range(12)
    ]
    values = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": 60, "width": 80} for n in range(6)],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    (folder / "instances.json").write_text(json.dumps(values))
    return ingested(folder / "instances.json", folder.parent / "out")


@pytest.fixture(scope="module")
def _raw(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    source = class_folders(folder / "source", per_class=3)
    return ingested(source, folder / "out", pixels=PixelOptions(policy="raw", side_px=16))


@pytest.fixture
def copy_of(request, tmp_path):
    """Returns a function that copies a dataset by the name of its fixture."""
    return lambda name: Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "copy"))


@pytest.mark.parametrize("name", ["_many", "_objects", "_raw"])
def test_datasets_of_every_kind_are_sound(copy_of, name):
    result = verify(str(copy_of(name)))
    assert (result.records, result.problems) == (6, [])


OBJECT_LABEL, OBJECT_TEXT, OBJECT_MASK = (record.OBJECT_PREFIX + name for name in ("class/label", "class/text", "mask"))
SMALL_MASK = encode(np.zeros((30, 40), np.uint8), "PNG")
WRONG_ANNOTATIONS = {
    "label without a name": (
        "_many",
        lambda feature: feature[record.LABEL].int64_list.value.append(1),
        "label 1 is not None",
    ),
    "name without a label": (
        "_many",
        lambda feature: feature[record.TEXT].bytes_list.value.append(b"a"),
        "label None is not 'a'",
    ),
    "mask of another size": (
        "_many",
        set_value(record.MASK, SMALL_MASK),
        r"a mask of '\d.jpg' has 40x30 pixels, its image 80x60",
    ),
    "damaged mask": ("_many", set_value(record.MASK, SMALL_MASK[:-20]), r"'\d.jpg' cannot be decoded: "),
    "object beyond the classes": ("_objects", set_value(OBJECT_LABEL, 2), "label 2 is not 'cat'"),
    "name of another class": ("_objects", set_value(OBJECT_TEXT, b"dog"), "label 0 is not 'dog'"),
    "object mask of another size": ("_objects", set_value(OBJECT_MASK, SMALL_MASK), r"a mask of '\d.jpg' has 40x30"),
    "too few pixels": (
        "_raw",
        set_value(record.HEIGHT, 17),
        r"'.*' has 768 bytes of pixels, its record says 16x17 pixels of 3 bytes",
    ),
    "pixels that changed": (
        "_raw",
        set_value(record.ENCODED, bytes(768)),
        "the image of .* does not have the sha256 in its record",
    ),
}


@pytest.mark.parametrize(("name", "change", "message"), WRONG_ANNOTATIONS.values(), ids=WRONG_ANNOTATIONS)
def test_a_wrong_annotation_is_named_even_when_every_checksum_is_right(copy_of, name, change, message):
    dataset = copy_of(name)
    path = rewrite_shard(dataset, change, "all", 0)
    problems = verify(str(dataset)).problems
    assert re.fullmatch(rf"{path} offset 0: ({message}).*", problems[0]), problems[0]


def test_a_histogram_of_several_classes_an_image_is_compared_too(copy_of):
    dataset = copy_of("_many")
    edit_manifest(dataset, lambda values: values["splits"]["all"]["classes"].update(a=4))
    assert verify(str(dataset)).problems == ["all: the class histogram of dataset.json is not that of its records"]

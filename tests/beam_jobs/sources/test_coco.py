from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from beam_jobs.errors import DiskError, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject
from beam_jobs.sources.coco import CocoSource, _candidate_folders
from beam_jobs.sources.coco_json import _Values
from beam_jobs.sources.factory import open_source
from beam_jobs.types import Annotations, ImageObject, ImageRef
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.object_store import SCHEME

HEIGHT, WIDTH = 60, 80
BLOB = np.zeros((HEIGHT, WIDTH), np.uint8)
BLOB[10:30, 20:50] = 1
BLOB[15:20, 25:30] = 0
POLYGON = [[10.5, 10, 40, 12.25, 35, 50]]
COMPRESSED = coco_mask.encode(np.asfortranarray(BLOB))
COMPRESSED = {"size": [HEIGHT, WIDTH], "counts": COMPRESSED["counts"].decode()}
CATEGORIES = [{"id": 18, "name": "dog", "supercategory": "animal"}, {"id": 1, "name": "person"}]


def image(number: int = 1, **fields) -> dict:
    return {"id": number, "file_name": f"{number}.jpg", "height": HEIGHT, "width": WIDTH, **fields}


def annotation(number: int = 1, **fields) -> dict:
    values = {"image_id": 1, "category_id": 18, "bbox": [10, 10, 30, 40], "area": 600.5, "iscrowd": 0}
    return {"id": number, **values, **fields}


def document(images=None, annotations=(), categories=CATEGORIES) -> dict:
    images = [image()] if images is None else images
    return {"info": {}, "images": images, "annotations": list(annotations), "categories": list(categories)}


@pytest.fixture
def coco(tmp_path):
    """Writes a json beside the images 1.jpg to 3.jpg and returns its source."""
    for number in (1, 2, 3):
        (tmp_path / f"{number}.jpg").write_bytes(b"image")

    def write(content, **columns) -> CocoSource:
        path = tmp_path / "instances_val2017.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return CocoSource(str(path), TableColumns(**columns))

    return write


def test_every_part_of_an_image_is_read(coco, tmp_path):
    source = coco(
        document(
            [image()],
            [
                annotation(7, segmentation=COMPRESSED, category_id=1, iscrowd=1),
                annotation(5, segmentation=POLYGON, attributes={"more": 1}),
                annotation(6, segmentation=[], bbox=[0, 0, 80.5, 60], area=0),
            ],
        )
    )
    source.check()
    (ref,) = source.entries()
    box = (10.0, 10.0, 40.0, 50.0)
    assert ref == ImageRef(
        key="1.jpg",
        uri="1.jpg",
        label="",
        bytes=5,
        mtime_ns=(tmp_path / "1.jpg").stat().st_mtime_ns,
        annotations=Annotations(
            labels=("dog", "person"),
            objects=(
                ImageObject(label="dog", bbox=box, area=600.5, segmentation=POLYGON),
                ImageObject(label="dog", bbox=(0.0, 0.0, 80.5, 60.0), area=0.0),
                ImageObject(label="person", bbox=box, crowd=True, area=600.5, segmentation=COMPRESSED),
            ),
            size=(HEIGHT, WIDTH),
        ),
    )
    assert (source.label_kind, source.base) == ("multi", str(tmp_path))


def test_images_keep_the_order_of_the_json_and_have_their_own_annotations(coco):
    annotations = [annotation(n, image_id=n % 3 + 1, category_id=(1, 18)[n % 2]) for n in (6, 5, 4, 3, 2, 1)]
    refs = list(coco(document([image(3), image(1), image(2)], annotations)).entries())
    assert [(ref.key, [item.label for item in ref.annotations.objects]) for ref in refs] == [
        ("3.jpg", ["person", "dog"]),
        ("1.jpg", ["dog", "person"]),
        ("2.jpg", ["dog", "person"]),
    ]


def test_ids_may_be_text_or_the_key_and_categories_share_a_name(coco):
    categories = [{"id": "a", "name": "dog"}, {"id": "b", "name": " dog "}]
    annotations = [annotation("y", image_id="x", category_id="b"), annotation("x", image_id="x", category_id="a")]
    (ref,) = coco(document([image(id="x")], annotations, categories), key="id").entries()
    assert (ref.key, ref.uri) == ("x", "1.jpg")
    assert (ref.annotations.labels, len(ref.annotations.objects)) == (("dog",), 2)


def test_what_an_image_need_not_say_may_be_missing(coco):
    bare = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}
    (ref,) = coco(document([{"id": 1, "file_name": "1.jpg"}], [bare])).entries()
    assert ref.annotations.size is None
    assert ref.annotations.objects == (ImageObject(label="person", bbox=(1.0, 2.0, 4.0, 6.0), area=12.0),)


def test_fields_of_an_image_are_columns(coco, tmp_path):
    (tmp_path / "1.png").write_bytes(b"mask")
    fields = {"patient": 7, "fold": "eval", "w": 2, "m": "1.png", "age": 30, "site": "Zürich", "unused": {}}
    source = coco(
        document([image(1, **fields), image(2, w=1, m="1.png", age=1.5)]),
        group="patient",
        split="fold",
        weight="w",
        mask="m",
        extra=("age", "site", "license"),
    )
    with pytest.raises(SourceError, match=r"val2017\.json has no image with a field 'license' for the extra license$"):
        source.check()
    source = CocoSource(source.path, TableColumns(**{**vars(source.columns), "extra": ("age", "site")}))
    source.check()
    first, second = source.entries()
    assert (first.group, first.split, first.extra) == ("7", "eval", {"age": 30.0, "site": "Zürich"})
    assert (first.annotations.mask, first.annotations.weight, first.annotations.objects) == ("1.png", 2.0, ())
    assert (second.group, second.split, second.extra) == ("", "", {"age": 1.5})


@pytest.mark.parametrize("place", ["here", ".", "images/val2017", "here/val2017", "here/images"])
def test_the_folder_of_the_images_is_found(tmp_path, place):
    (tmp_path / "here").mkdir()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "1.jpg").write_bytes(b"image")
    path = tmp_path / "here" / "instances_val2017.json"
    path.write_text(json.dumps(document([image(9, file_name="lost.jpg"), image()])))
    source = open_source(make_options(source=str(path), source_kind="coco"))
    lost, ref = source.entries()
    assert (ref.uri, ref.bytes) == ("1.jpg", 5)
    assert Path(source.base).resolve() == (tmp_path / place).resolve()
    assert (lost.key, lost.reason) == ("lost.jpg", "unreadable")


@pytest.mark.parametrize(
    ("images", "named"),
    [([image(4), image(5)], r"'4\.jpg', '5\.jpg', \.\.\."), ([image(file_name=1)], r"none, \.\.\.")],
)
def test_a_json_without_its_images_is_refused_with_where_they_were_looked_for(coco, tmp_path, images, named):
    with pytest.raises(SourceError, match=rf"names images \({named}\) that are not in ") as caught:
        list(coco(document(images)).entries())
    assert f"{tmp_path}, {tmp_path}/.., {tmp_path}/../val2017, {tmp_path}/val2017, " in str(caught.value)


def test_a_json_and_its_images_may_lie_in_an_object_store(coco, tmp_path):
    local = coco(document(annotations=[annotation()]))
    source = CocoSource(f"{SCHEME}://{local.path}", TableColumns())
    source.check()
    (ref,) = source.entries()
    assert (source.base, ref.uri, ref.bytes, ref.annotations.labels) == (f"{SCHEME}://{tmp_path}", "1.jpg", 0, ("dog",))


def test_a_bucket_lies_in_nothing():
    assert all(
        folder == "gs://bucket" or folder.startswith("gs://bucket/")
        for folder in _candidate_folders("gs://bucket/a.json")
    )


def test_images_that_are_not_on_disk_are_fetched_on_demand(coco):
    images = [
        image(1, coco_url="http://host/1.jpg"),
        image(4, coco_url="http://host/4.jpg"),
        image(5),
        image(6, coco_url="file:///6.jpg"),
    ]
    source = coco(document(images, [annotation(image_id=4)]), image="coco_url")
    source.check()
    entries = list(source.entries())
    assert [(entry.key, entry.uri, isinstance(entry, ImageRef)) for entry in entries] == [
        ("1.jpg", "1.jpg", True),
        ("4.jpg", "http://host/4.jpg", True),
        ("5.jpg", "5.jpg", False),
        ("6.jpg", "6.jpg", False),
    ]
    assert entries[1].annotations.labels == ("dog",)
    only = coco(document(images[1:]), image="coco_url")
    only.check()  # not one image is on disk
    assert [entry.key for entry in coco(document(images)).entries() if isinstance(entry, Reject)] == [
        "4.jpg",
        "5.jpg",
        "6.jpg",
    ]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"category_id": 2}, "annotation 7: category_id is 2; no category has that id"),
        ({"category_id": [18]}, r"annotation 7: category_id is \[18\]; "),
        ({"bbox": [1, 2, 3]}, r"annotation 7: bbox is \[1, 2, 3\]; "),
        ({"bbox": [1, 2, 3, True]}, "annotation 7: bbox is "),
        ({"bbox": [1, 2, 3, float("nan")]}, r"annotation 7: bbox is \[1, 2, 3, nan\]; "),
        ({"bbox": [1, 2, 10**400, 3]}, r"annotation 7: bbox is \[1, 2, 1000"),
        ({"bbox": [10, 10, 5, 0]}, r"annotation 7: the box from \(10, 10\) to \(15, 10\) has no area"),
        (
            {"bbox": [0, 0, 82, 60]},
            r"annotation 7: the box from \(0, 0\) to \(82, 60\) exceeds the image of 80x60 pixels by 2; 1 is allowed",
        ),
        ({"area": -1}, "annotation 7: area is -1; it must be a finite number of at least 0"),
        ({"iscrowd": 2}, "annotation 7: iscrowd is 2; it must be 0 or 1"),
        ({"segmentation": "x"}, "annotation 7: segmentation is 'x'; it must be polygons or a run-length encoding"),
        ({"segmentation": [[1, 2, 3, 4, 5, "6"]]}, "annotation 7: segmentation is "),
        ({"segmentation": {"counts": "é", "size": [60, 80]}}, "annotation 7: segmentation is "),
        ({"segmentation": {"counts": [1]}}, "annotation 7: segmentation is "),
    ],
)
def test_an_annotation_that_cannot_be_right_rejects_its_image_alone(coco, fields, detail):
    annotations = [annotation(6), annotation(7, **fields), annotation(8, image_id=2)]
    reject, ref = coco(document([image(1), image(2)], annotations)).entries()
    assert (reject.key, reject.stage, reject.reason) == ("1.jpg", "scan", "bad_annotation")
    assert re.match(detail, reject.detail)
    assert ref.key == "2.jpg"


@pytest.mark.parametrize(
    ("bad", "key", "reason", "detail"),
    [
        ("text", "image 1", "bad_annotation", "it is 'text'; it must be an object with an id"),
        ({"file_name": "1.jpg"}, "image 1", "bad_annotation", "it is {'file_name': '1.jpg'}; it must be an object"),
        (image(id=[1]), "image 1", "bad_annotation", "it is {'id': [1], "),
        (image(id=True), "image 1", "bad_annotation", "it is {'id': True, "),
        ({"id": 1}, "image 1", "not_a_file", "image 1: the cell of column 'file_name' is empty"),
        (image(file_name=["1.jpg"]), "image 1", "bad_annotation", "image 1: column 'file_name' holds ['1.jpg']; "),
        (image(file_name="\ud800.jpg"), "image 1", "name_not_utf8", "image 1: column 'file_name' holds "),
        (image(file_name="none.jpg"), "none.jpg", "unreadable", "No such file"),
        (image(file_name=".."), "..", "not_a_file", "it is a directory"),
        (image(height=None), "1.jpg", "bad_annotation", "height and width are None and 80; they must be whole numbers"),
        (image(width=0), "1.jpg", "bad_annotation", "height and width are 60 and 0; "),
    ],
)
def test_an_image_that_cannot_be_used_is_rejected_alone(coco, bad, key, reason, detail):
    reject, ref = coco(document([bad, image(2)])).entries()
    assert (reject.key, reject.stage, reject.reason) == (key, "scan", reason)
    assert reject.detail.startswith(detail)
    assert ref.key == "2.jpg"
    json.dumps(vars(reject), ensure_ascii=False).encode()  # all of it can be stored


def test_a_file_name_is_the_users_own_word(coco, tmp_path):
    (tmp_path / "sub").mkdir()
    refs = coco(document([image(1, file_name=f"{tmp_path}/1.jpg"), image(2, file_name="sub/../2.jpg")])).entries()
    assert [(ref.key, ref.bytes) for ref in refs] == [(f"{tmp_path}/1.jpg", 5), ("sub/../2.jpg", 5)]


def test_an_id_that_is_there_twice_rejects_the_second(coco):
    images = [image(1), image(2, id=1), image(3)]
    first, reject, third = coco(document(images, [annotation()])).entries()
    assert (first.key, len(first.annotations.objects), third.key) == ("1.jpg", 1, "3.jpg")
    assert (reject.key, reject.reason) == ("2.jpg", "duplicate_key")
    assert reject.detail == "an earlier image also has the id 1"


def test_annotations_of_no_image_are_rejected_one_by_one(coco):
    lost = [annotation(7, image_id=9), annotation(8, image_id=[1]), annotation("\ud800", image_id=None), "text"]
    ref, *rejects = coco(document(annotations=[*lost, annotation(9)])).entries()
    assert len(ref.annotations.objects) == 1
    assert {(reject.stage, reject.reason) for reject in rejects} == {("scan", "bad_annotation")}
    assert [(reject.key, reject.detail) for reject in rejects] == [
        ("annotation 7", "its image_id is 9; no image has that id"),
        ("annotation 8", "its image_id is [1]; no image has that id"),
        ("annotation '\\ud800'", "its image_id is None; no image has that id"),
        ("annotation number 4", "its image_id is None; no image has that id"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "is not JSON: "),
        ("[]", r"is not COCO instances json: it must have a list 'images'; it has \[\]$"),
        ({**document(), "annotations": {}}, "it must have a list 'annotations'; it has 'info', 'images', "),
        ({"images": [], "annotations": []}, "it must have a list 'categories'; it has 'images', 'annotations'$"),
        (document([]), "has no image in 'images'$"),
        (
            json.dumps(document())[:-1] + ', "images": []}',
            r"is not JSON: a second list 'images' begins at character \d+$",
        ),
        (document(categories=["dog"]), "has the category 'dog'; it must have an id and a name$"),
        (document(categories=[{"id": 1}]), r"has the category {'id': 1}; it must have an id and a name$"),
        (document(categories=[{"id": 1, "name": " "}]), "has the category "),
        (document(categories=[{"id": [], "name": "a"}]), "has the category "),
        (document(categories=[{"id": 1, "name": "\ud800"}]), "has the category "),
        (
            document(categories=[{"id": 1, "name": "x" * 4097}]),
            "has the category 1 with a name of 4097 bytes; 4096 are ",
        ),
        (document(categories=[*CATEGORIES, {"id": 1, "name": "cat"}]), "has two categories with the id 1$"),
        (document([{"id": 1}]), "has no image with a field 'file_name' for the "),
    ],
)
def test_what_is_no_coco_json_is_refused(coco, content, message):
    source = coco(content)
    with pytest.raises(SourceError, match=f"{source.path} .*{message}"):
        source.check()


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xff")
    with pytest.raises(SourceError, match=r"a\.json is not JSON: .*0xff"):
        CocoSource(str(tmp_path / "a.json"), TableColumns()).check()
    with pytest.raises(SourceError, match=r"b\.json cannot be read: No such file"):
        CocoSource(str(tmp_path / "b.json"), TableColumns()).check()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": "flickr_url"}, "column is 'flickr_url'; for a COCO json it must be file_name, or coco_url"),
        ({"labels": "tags"}, "the labels column is 'tags'; it must be empty: the labels are the categories"),
    ],
)
def test_columns_that_a_coco_json_cannot_have_are_refused(coco, columns, message):
    with pytest.raises(SourceError, match=message):
        coco(document(), **columns).check()


def test_an_extra_field_that_no_record_can_hold_is_refused(coco):
    source = coco(document([image(x={"a": 1})]), extra=("x",))
    with pytest.raises(SourceError, match=r"val2017\.json: an extra column holds {'a': 1}; it must hold numbers, text"):
        list(source.entries())


@pytest.mark.parametrize("item", ['"é"', "[[]]"])
def test_a_json_takes_at_most_forty_times_its_size(coco, item):
    text = json.dumps(document())
    source = coco(text.replace('"annotations": []', f'"annotations": [{",".join([item] * 50_000)}]'))
    size = Path(source.path).stat().st_size
    tracemalloc.start()
    assert sum(1 for _ in source.entries()) == 50_001
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * size + (1 << 20)


def test_memory_does_not_grow_with_the_json(coco):
    def peak(count):
        images = [image(number, file_name="1.jpg") for number in range(count)]
        annotations = [annotation(number, image_id=number % count, segmentation=POLYGON) for number in range(5 * count)]
        source = coco(document(images, annotations))
        tracemalloc.start()
        try:
            assert sum(len(ref.annotations.objects) for ref in source.entries()) == 5 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8000) < peak(4000) + (1 << 20)


def test_the_annotations_of_an_image_are_bounded_together(coco, monkeypatch):
    monkeypatch.setattr("beam_jobs.sources.coco_json._MAX_IMAGE_BYTES", 500)
    annotations = [*(annotation(number) for number in range(9)), annotation(9, image_id=2)]
    reject, ref = coco(document([image(1), image(2)], annotations)).entries()
    assert (reject.key, reject.reason) == ("1.jpg", "bad_annotation")
    assert re.fullmatch(r"its annotations have \d+ bytes; 500 are allowed", reject.detail)
    assert (ref.key, len(ref.annotations.objects)) == ("2.jpg", 1)


def test_the_categories_are_bounded_together(coco, monkeypatch):
    monkeypatch.setattr("beam_jobs.sources.coco_json._MAX_CATEGORIES_BYTES", 500)
    content = document([image(1)], [annotation(1)])
    content["categories"] += [{"id": number, "name": f"class {number}"} for number in range(1000, 1100)]
    with pytest.raises(SourceError, match="categories, with over 500 bytes, .* limit; remove the categories without"):
        list(coco(content).entries())


@pytest.mark.parametrize("value", ["x" * 100_000, "x"], ids=["written", "buffered"])
def test_a_full_disk_of_temporary_files_is_one_line(value):
    file = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    values = _Values(file)

    def write():
        values.add(value)
        values.finish()

    with pytest.raises(DiskError, match=r"^the annotations need a temporary file, .*No space left.*TMPDIR$"):
        write()
    with contextlib.suppress(OSError):  # what is still buffered
        file.close()


def test_the_json_is_read_once_and_let_go(coco, tmp_path):
    source = coco(document(annotations=[annotation()]))
    source.check()
    parsed = weakref.ref(source._document)
    Path(source.path).unlink()
    refs = source.entries()
    assert next(refs).key == "1.jpg"
    assert list(refs) == []
    gc.collect()
    assert parsed() is None
    assert source.base == str(tmp_path)  # what is small is kept

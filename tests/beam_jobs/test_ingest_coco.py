from __future__ import annotations

import json

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from beam_jobs import ingest
from beam_jobs.dataset import record, schemas
from beam_jobs.options import IngestOptions, PixelOptions
from tests.beam_jobs.runs import records_under
from tests.make_images import decode_mask, jpeg, rotated_jpeg

HEIGHT, WIDTH = 60, 80
POLYGON = [[10, 10, 40, 12, 35, 50]]
RUNS = {"size": [HEIGHT, WIDTH], "counts": [600, 1200, 3000]}
IMAGES = [
    {"id": 1, "file_name": "both.jpg", "height": HEIGHT, "width": WIDTH},
    {"id": 2, "file_name": "none.jpg", "height": HEIGHT, "width": WIDTH},
    {"id": 3, "file_name": "turned.jpg", "height": HEIGHT, "width": WIDTH},
    {"id": 4, "file_name": "runs.jpg", "height": HEIGHT, "width": WIDTH},
]
ANNOTATIONS = [
    {"id": 1, "image_id": 1, "category_id": 9, "bbox": [8, 15, 32, 30], "area": 500.5, "segmentation": POLYGON},
    {"id": 2, "image_id": 1, "category_id": 2, "bbox": [70, 0, 10, 60], "iscrowd": 1, "segmentation": RUNS},
    {"id": 3, "image_id": 4, "category_id": 2, "bbox": [0, 0, 9, 9], "segmentation": {**RUNS, "counts": [4799]}},
]
CATEGORIES = [{"id": 2, "name": "person"}, {"id": 9, "name": "dog"}]


@pytest.fixture
def options(tmp_path) -> IngestOptions:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "val2017").mkdir()
    for number, image in enumerate(IMAGES):
        (tmp_path / "val2017" / image["file_name"]).write_bytes(jpeg(number))
    (tmp_path / "val2017" / "turned.jpg").write_bytes(rotated_jpeg(6))
    path = tmp_path / "annotations" / "instances_val2017.json"
    path.write_text(json.dumps({"images": IMAGES, "annotations": ANNOTATIONS, "categories": CATEGORIES}))
    return IngestOptions(source=str(path), out=str(tmp_path / "out"), splits={"train": 1}, max_reject_ratio=0.5)


def test_everything_coco_says_reaches_the_records_or_is_rejected(options):
    result = ingest.run(options)
    assert result.labels == ("dog", "person")
    found = records_under(options.out)
    both = found["both.jpg"]
    assert (both[record.LABEL], both[record.TEXT]) == ([0, 1], [b"dog", b"person"])
    assert both["image/object/class/text"] == [b"dog", b"person"]
    assert both["image/object/class/label"] == [0, 1]
    assert both["image/object/is_crowd"] == [0, 1]
    assert both["image/object/area"] == [500.5, 600.0]
    boxes = [both[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
    np.testing.assert_allclose(boxes, [[0.1, 0.875], [0.25, 0], [0.5, 1], [0.75, 1]], rtol=1e-6)
    polygon, runs = map(decode_mask, both["image/object/mask"])
    np.testing.assert_array_equal(polygon, coco_mask.decode(coco_mask.frPyObjects(POLYGON, HEIGHT, WIDTH))[..., 0])
    np.testing.assert_array_equal(runs, coco_mask.decode(coco_mask.frPyObjects(RUNS, HEIGHT, WIDTH)))
    assert found["none.jpg"][record.LABEL] == found["none.jpg"]["image/object/bbox/xmin"] == []
    rejects = schemas.read(f"{options.out}/rejects.parquet").to_pylist()
    assert [(row["key"], row["stage"], row["reason"]) for row in rejects] == [
        ("runs.jpg", "examine", "bad_annotation"),
        ("turned.jpg", "examine", "bad_annotation"),
    ]
    assert rejects[0]["detail"] == "object 0 (person): the runs cover 4799 pixels; the image has 4800"
    assert "(its EXIF orientation rotates it)" in rejects[1]["detail"]


def test_objects_follow_the_pixels(options):
    ingest.run(IngestOptions(**{**vars(options), "pixels": PixelOptions(policy="raw", side_px=30)}))
    both = records_under(options.out)["both.jpg"]
    assert both["image/object/class/text"] == [b"dog"]  # the other lies in what is cut off
    (mask,) = map(decode_mask, both["image/object/mask"])
    whole = coco_mask.decode(coco_mask.frPyObjects(POLYGON, HEIGHT, WIDTH))[..., 0]
    np.testing.assert_array_equal(mask, whole[1::2, 11:71:2])

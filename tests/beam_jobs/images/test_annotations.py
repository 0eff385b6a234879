from __future__ import annotations

import math

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from beam_jobs.errors import BadImage
from beam_jobs.images.annotations import MAX_DRAWN_PX, box_fault, check_annotations, record_objects
from beam_jobs.images.normalise import Geometry, geometry
from beam_jobs.options import PixelOptions
from beam_jobs.types import Annotations, ImageObject, RecordObject
from tests.make_images import decode_mask

HEIGHT, WIDTH = 60, 80
SAME = geometry(PixelOptions(), HEIGHT, WIDTH)
SMALL = geometry(PixelOptions(policy="resize", side_px=30), HEIGHT, WIDTH)
CENTRE = geometry(PixelOptions(policy="raw", side_px=30), HEIGHT, WIDTH)  # resized to 30x40, then 5 columns cut off
POLYGONS = [[10.5, 10, 40, 12.25, 35, 50], [60, 5, 75, 5, 75, 20, 60, 20]]
BLOB = np.random.default_rng(0).random((HEIGHT, WIDTH)) > 0.7
ANY_BOX = (10.0, 10.0, 40.0, 50.0)


def item(bbox=ANY_BOX, **fields) -> ImageObject:
    return ImageObject(**{"label": "cat", "bbox": bbox, **fields})


def said(*objects: ImageObject, **fields) -> Annotations:
    return Annotations(**{"labels": ("cat",), "objects": objects, "size": (HEIGHT, WIDTH), **fields})


def compressed(mask: np.ndarray) -> dict:
    runs = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode()}


def uncompressed(mask: np.ndarray) -> dict:
    """Returns runs of zeros and ones in turn, zeros first, down the columns."""
    flat = mask.T.ravel().astype(int)
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, flat.size]).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def records(*objects: ImageObject, plan: Geometry = SAME) -> tuple[RecordObject, ...]:
    annotations = said(*objects, size=plan.source)
    check_annotations(annotations, *plan.source)
    return record_objects(annotations, plan, {"cat": 3, "dog": 0})


def fault(annotations: Annotations, height: int = HEIGHT, width: int = WIDTH) -> str:
    with pytest.raises(BadImage) as caught:
        check_annotations(annotations, height, width)
    assert caught.value.reason.value == "bad_annotation"
    return caught.value.detail


@pytest.mark.parametrize(
    ("segmentation", "size"), [(POLYGONS, [HEIGHT, WIDTH]), (POLYGONS, None), ({}, (HEIGHT, WIDTH)), ([], None)]
)
def test_annotations_of_the_size_of_the_image_are_good(segmentation, size):
    check_annotations(said(item(segmentation=segmentation), size=size), HEIGHT, WIDTH)


def test_annotations_of_another_image_are_refused_with_both_sizes():
    message = "the annotations are for an image of 80x60 pixels; this image has "
    assert fault(said(), 60, 81) == f"{message}81x60"
    assert fault(said(), WIDTH, HEIGHT) == f"{message}60x80 (its EXIF orientation rotates it)"


@pytest.mark.parametrize("bbox", [(-1, -1, 81, 61), (0.1, 0.1, 0.11, 0.11)])
def test_a_box_may_leave_the_image_by_a_pixel(bbox):
    assert box_fault(bbox, (HEIGHT, WIDTH)) == ""


@pytest.mark.parametrize(
    ("bbox", "message"),
    [
        ((10, 10, 10, 20), "the box from (10, 10) to (10, 20) has no area"),
        ((10, 20, 20, 20), "the box from (10, 20) to (20, 20) has no area"),
        ((math.nan, 0, 1, 1), "the box from (nan, 0) to (1, 1) is not finite"),
        ((-1.5, 0, 9, 9), "the box from (-1.5, 0) to (9, 9) exceeds the image of 80x60 pixels by 1.5; 1 is allowed"),
        ((0, -2, 9, 9), "the box from (0, -2) to (9, 9) exceeds the image of 80x60 pixels by 2; 1 is allowed"),
        ((0, 0, 82, 9), "the box from (0, 0) to (82, 9) exceeds the image of 80x60 pixels by 2; 1 is allowed"),
        ((0, 0, 9, 161), "the box from (0, 0) to (9, 161) exceeds the image of 80x60 pixels by 101; 1 is allowed"),
        ((0, -1, 9, 0), "the box from (0, -1) to (9, 0) has no area inside the image of 80x60 pixels"),
        ((5, 5, 5 + 1e-5, 9), "the box from (5, 5) to (5.00001, 9) has no area inside the image of 80x60 pixels"),
    ],
)
def test_a_box_that_cannot_be_right_is_named_with_its_object(bbox, message):
    assert box_fault(bbox, (HEIGHT, WIDTH)) == message
    assert fault(said(item(), item(bbox))) == f"object 1 (cat): {message}"


def test_without_a_size_a_box_is_judged_by_itself():
    assert box_fault((0, 0, 1e6, 1e6), None) == ""
    assert box_fault((0, 0, 0, 1e6), None).endswith("has no area")


RUNS = compressed(BLOB)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ("polygon", "the segmentation is 'polygon'; it must be polygons or a run-length encoding"),
        ([10, 10, 20, 10, 20, 20], "a polygon is 10; it must be a list of x, y, x, y, ..."),
        ([[1, 1, 5, 5]], "a polygon has 4 numbers; it must have at least three pairs of x and y"),
        ([POLYGONS[0], [1, 1, 5, 1, 5, 5, 1]], "a polygon has 7 numbers; "),
        ([[1, 1, 5, 1, 5, "5"]], "a polygon holds '5'; it must hold numbers"),
        ([[1, 1, 5, 1, 5, True]], "a polygon holds True; "),
        ([[1, 1, 5, 1, 5, math.nan]], "a polygon has y = nan; it must be from -1 to 61"),
        ([[1, 1, 81.5, 1, 5, 5]], "a polygon has x = 81.5; it must be from -1 to 81"),
        ([[0, 0, 80, 0] * 9000], "the outlines are 1440000 pixels long; 1000000 are allowed"),
        ({"counts": [4800], "size": [80, 60]}, "the run-length encoding is of size [80, 60]; the image has [60, 80]"),
        ({"counts": [4800], "size": 4800}, "the run-length encoding is of size 4800; "),
        ({"size": [60, 80]}, "the run-length encoding cannot be read: its counts are None; they must be a list"),
        ({"counts": [10, 20], "size": [60, 80]}, "the runs cover 30 pixels; the image has 4800"),
        (
            {"counts": [10, 9999], "size": [60, 80]},
            "the run-length encoding has a run of 9999 up to pixel 10009 of 4800",
        ),
        ({"counts": [10, -10, 4800], "size": [60, 80]}, "the run-length encoding has a run of -10 "),
        ({"counts": [10, 1.5], "size": [60, 80]}, "the run-length encoding cannot be read: a run of 1.5; it must be a"),
        ({**RUNS, "counts": RUNS["counts"] + "P"}, "the run-length encoding cannot be read: it ends in"),
        (
            {**RUNS, "counts": "01é"},
            "the run-length encoding cannot be read: 'é' is not allowed in a compressed string",
        ),
        (
            {**RUNS, "counts": "o" * 1000},
            "the run-length encoding cannot be read: it has a number of more than 40 bits",
        ),
    ],
)
def test_a_segmentation_that_cannot_be_drawn_is_refused(segmentation, message):
    assert fault(said(item(segmentation=segmentation))).startswith(f"object 0 (cat): {message}")


def test_the_pixels_of_all_masks_of_an_image_are_bounded():
    side = 10_000
    outline = item((0, 0, 9, 9), segmentation=[[0, 0, 9, 0, 9, 9]])
    allowed = [outline] * (MAX_DRAWN_PX // side**2)
    boxes = [item((0, 0, 9, 9))] * 1000  # nothing to draw
    check_annotations(said(*allowed, *boxes, size=(side, side)), side, side)
    message = fault(said(*allowed, outline, size=(side, side)), side, side)
    assert message.endswith(" are 2100000000 pixels of masks; 2000000000 are allowed")


def test_the_outlines_of_all_objects_of_an_image_are_bounded_together():
    zigzag = [value for row in range(500) for value in (0, row, 1000, row + 1)]
    outline = item((0, 0, 900, 900), segmentation=[zigzag])
    check_annotations(said(*[outline] * 20, size=(1000, 1000)), 1000, 1000)
    message = fault(said(*[outline] * 21, size=(1000, 1000)), 1000, 1000)
    assert message == "the outlines of its objects are 21000000 pixels long; 20000000 are allowed"


def test_the_class_names_of_all_objects_of_an_image_are_bounded_together():
    named = item(label="x" * 4096)
    check_annotations(said(*[named] * 4096), HEIGHT, WIDTH)
    assert fault(said(*[named] * 4097)).endswith("4097 objects have 16781312 bytes; 16777216 are allowed")


@pytest.mark.parametrize(
    ("segmentation", "expected"),
    [
        (POLYGONS, None),
        ([[-1, -1, 81, -1, 81, 61, -1, 61]], None),
        (uncompressed(BLOB), BLOB),
        (uncompressed(~BLOB), ~BLOB),
        (compressed(np.ones((HEIGHT, WIDTH))), np.ones((HEIGHT, WIDTH))),
    ],
)
def test_a_mask_is_what_pycocotools_draws(segmentation, expected):
    (found,) = records(item(segmentation=segmentation))
    runs = coco_mask.frPyObjects(segmentation, HEIGHT, WIDTH) if isinstance(segmentation, list) else segmentation
    if isinstance(runs, list):
        runs = coco_mask.merge(runs)
    elif isinstance(runs["counts"], list):
        runs = coco_mask.frPyObjects(runs, HEIGHT, WIDTH)
    drawn = coco_mask.decode(runs)
    np.testing.assert_array_equal(decode_mask(found.mask), drawn)
    if expected is not None:
        np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("seed", range(2))
def test_compressed_runs_of_any_shape_are_read(seed):
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 200, 2)
    mask = random.random((height, width)) > random.random()
    mask[: height // 2] = seed % 2  # long runs have more than one character
    plan = geometry(PixelOptions(), int(height), int(width))
    (found,) = records(item((0, 0, width, height), segmentation=compressed(mask)), plan=plan)
    np.testing.assert_array_equal(decode_mask(found.mask), mask)


@pytest.mark.parametrize(
    ("plan", "bbox", "expected"),
    [
        (SAME, (-1, -0.5, 81, 61), (0, 0, 1, 1)),
        (SMALL, (8, 15, 40, 45), (0.25, 0.1, 0.75, 0.5)),
        (CENTRE, (0, 15, 40, 60), (0.25, 0, 1, 0.5)),
        (CENTRE, (40, 0, 80, 30), (0, 0.5, 0.5, 1)),
        (CENTRE, (0, 0, 10, 60), None),
        (CENTRE, (0, 0, 10 + 1e-9, 60), None),
        (CENTRE, (0, 0, 10.01, 60), (0, 0, 1, 0.01 / 60)),
    ],
)
def test_a_box_follows_the_image_and_is_clipped_to_it(plan, bbox, expected):
    found = records(item(bbox), plan=plan)
    assert [record.bbox for record in found] == ([] if expected is None else [pytest.approx(expected, abs=1e-12)])


def test_what_was_accepted_can_be_written():
    random = np.random.default_rng(0)
    for _ in range(200):
        bbox = tuple((random.normal(0.5, 0.6, 4) * [WIDTH, HEIGHT, WIDTH, HEIGHT]).round(random.integers(0, 3)))
        annotations = said(item(bbox, segmentation=[random.uniform(-2, 82, 6).tolist()]))
        try:
            check_annotations(annotations, HEIGHT, WIDTH)
        except BadImage:
            continue
        for plan in (SAME, SMALL, CENTRE):
            for found in record_objects(annotations, plan, {"cat": 3}):
                ymin, xmin, ymax, xmax = np.float32(found.bbox)
                assert 0 <= ymin < ymax <= 1
                assert 0 <= xmin < xmax <= 1
        assert len(record_objects(annotations, SAME, {"cat": 3})) == 1  # nothing is left out without a crop

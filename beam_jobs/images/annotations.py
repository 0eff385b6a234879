"""Annotated objects of an image: checked against the image, then moved to where its pixels go. Pure.

`check` refuses everything that `record_objects` could not write, so that an image that was accepted can be written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images import masks
from beam_jobs.images.geometry import Geometry
from beam_jobs.types import Annotations, ImageObject, RecordObject

_OUTSIDE_PX = 1.0  # tools disagree on whether a pixel ends at its number or one further
_LEAST_SHARE = 1e-6  # of a side; thinner boxes shrink to nothing as the float32 shares of a record
_MAX_OUTLINE_PX = 1_000_000  # rasterising takes about 100 bytes a pixel of outline
# Of one image, together. The masks are drawn when its record is written, at 15 s for 1e9 pixels of masks and 0.3 s for
# 1e6 pixels of outline on a busy machine, so an image stays below the minute that a decoder may take.
MAX_DRAWN_PX = 2_000_000_000
_MAX_OUTLINES_PX = 20_000_000
_MAX_NAMES_BYTES = 16 << 20
_COUNT_BITS = 40  # of a number in a compressed string; no image has so many pixels

Box = tuple[float, float, float, float]
Size = tuple[int, int]


def check(annotations: Annotations, height: int, width: int) -> None:
    """Checks the annotations of an image against the image.

    Args:
      annotations: what the source says.
      height: rows of the upright image, in pixels.
      width: columns of it.

    Raises:
      BadImage: they cannot both be right; the reason is `BAD_ANNOTATION`.
    """
    size = (height, width)
    if annotations.size is not None and tuple(annotations.size) != size:
        expected = f"the annotations are of an image of {annotations.size[1]}x{annotations.size[0]} pixels"
        turned = " (it is turned by its EXIF orientation)" if tuple(annotations.size)[::-1] == size else ""
        raise BadImage(RejectReason.BAD_ANNOTATION, f"{expected}; this one has {width}x{height}{turned}")
    objects = annotations.objects or ()
    if fault := _cost_fault(objects, size):
        raise BadImage(RejectReason.BAD_ANNOTATION, fault)
    for number, item in enumerate(objects):
        fault = box_fault(item.bbox, size) or _segmentation_fault(item.segmentation, size)
        if fault:
            raise BadImage(RejectReason.BAD_ANNOTATION, f"object {number} ({item.label}): {fault}")
    outlines = sum(_outlines_length(item.segmentation) for item in objects)
    if outlines > _MAX_OUTLINES_PX:
        detail = f"the outlines of its objects are {outlines:.0f} pixels long; {_MAX_OUTLINES_PX} are allowed"
        raise BadImage(RejectReason.BAD_ANNOTATION, detail)


def _cost_fault(objects: Sequence[ImageObject], size: Size) -> str:
    """Returns which limit the objects of an image are over, together; empty when they are not."""
    drawn = sum(bool(item.segmentation) for item in objects)
    if drawn * size[0] * size[1] > MAX_DRAWN_PX:
        return (
            f"{drawn} segmentations of {size[1]}x{size[0]} pixels are {drawn * size[0] * size[1]} pixels of masks; "
            f"{MAX_DRAWN_PX} are allowed"
        )
    names = sum(len(item.label.encode()) for item in objects)
    if names > _MAX_NAMES_BYTES:
        return f"the class names of {len(objects)} objects have {names} bytes; {_MAX_NAMES_BYTES} are allowed"
    return ""


def box_fault(bbox: Box, size: Size | None) -> str:
    """Returns what is wrong with a box, with the value and the limit; empty when nothing is.

    Args:
      bbox: xmin, ymin, xmax, ymax in pixels.
      size: height and width of the image; None while it is not known.
    """
    xmin, ymin, xmax, ymax = bbox
    shown = f"the box from ({xmin:g}, {ymin:g}) to ({xmax:g}, {ymax:g})"
    if not all(map(math.isfinite, bbox)):
        return f"{shown} is not finite"
    if xmax <= xmin or ymax <= ymin:
        return f"{shown} has no area"
    if size is None:
        return ""
    height, width = size
    outside = max(-xmin, -ymin, xmax - width, ymax - height)
    if outside > _OUTSIDE_PX:
        return f"{shown} leaves the image of {width}x{height} pixels by {outside:g}; {_OUTSIDE_PX:g} is allowed"
    left, top, right, bottom = _clipped(bbox, size)
    if right - left < width * _LEAST_SHARE or bottom - top < height * _LEAST_SHARE:
        return f"{shown} has no area inside the image of {width}x{height} pixels"
    return ""


def record_objects(
    annotations: Annotations, geometry: Geometry, indices: Mapping[str, int]
) -> tuple[RecordObject, ...]:
    """Returns the objects as they are written, in the order of the source.

    Boxes are clipped to the image. An object whose box lies wholly outside a crop is left out; one that lies partly
    inside is clipped. Segmentations are rasterised at the size of the source and follow the image to the nearest pixel.

    Args:
      annotations: what the source says; `check` has passed.
      geometry: what becomes of the image.
      indices: class name -> class index.

    Raises:
      KeyError: a class name has no index.
    """
    objects = ((item, _stored_box(item.bbox, geometry)) for item in annotations.objects or ())
    return tuple(
        RecordObject(
            label=indices[item.label],
            text=item.label,
            bbox=box,
            crowd=item.crowd,
            area=item.area,
            mask=_mask(item, geometry),
        )
        for item, box in objects
        if box is not None
    )


def _stored_box(bbox: Box, geometry: Geometry) -> Box | None:
    """Returns ymin, xmin, ymax, xmax as shares of the stored image; None when nothing of the box is left."""
    left, top, right, bottom = _clipped(bbox, geometry.source)
    ymin, ymax = (_share(value, 0, geometry.top, geometry) for value in (top, bottom))
    xmin, xmax = (_share(value, 1, geometry.left, geometry) for value in (left, right))
    # Half the limit of `check`, so that rounding leaves out nothing that was accepted: only a crop does.
    return None if min(ymax - ymin, xmax - xmin) < _LEAST_SHARE / 2 else (ymin, xmin, ymax, xmax)


def _share(value: float, axis: int, start: int, geometry: Geometry) -> float:
    moved = value * geometry.resized[axis] / geometry.source[axis] - start
    return min(max(moved / geometry.stored[axis], 0.0), 1.0)


def _clipped(bbox: Box, size: Size) -> Box:
    xmin, ymin, xmax, ymax = bbox
    return max(xmin, 0.0), max(ymin, 0.0), min(xmax, size[1]), min(ymax, size[0])


def _mask(item: ImageObject, geometry: Geometry) -> bytes:
    if not item.segmentation:
        return b""
    return masks.encode(masks.move(_raster(item.segmentation, geometry.source), geometry))


def _raster(segmentation: Any, size: Size) -> np.ndarray:
    """Returns uint8[height, width], 1 inside."""
    if isinstance(segmentation, Mapping):
        counts = list(_counts(segmentation["counts"]))
        values = (np.arange(len(counts)) & 1).astype(np.uint8)
        return np.repeat(values, counts).reshape(size[1], size[0]).T  # runs go down the columns
    from pycocotools import mask as coco_mask

    outlines = coco_mask.frPyObjects([list(map(float, outline)) for outline in segmentation], *size)
    return coco_mask.decode(coco_mask.merge(outlines))


def _segmentation_fault(segmentation: Any, size: Size) -> str:
    """Returns what is wrong with a segmentation; empty when nothing is, or there is none."""
    if not segmentation:
        return ""
    if isinstance(segmentation, Mapping):
        return _runs_fault(segmentation, size)
    if not isinstance(segmentation, Sequence) or isinstance(segmentation, str):
        return f"the segmentation is {segmentation!r:.40}; it must be polygons or a run-length encoding"
    faults = (_outline_fault(outline, size) for outline in segmentation)
    fault = next(filter(None, faults), "")
    if fault:
        return fault
    length = _outlines_length(segmentation)
    if length > _MAX_OUTLINE_PX:
        return f"the outlines are {length:.0f} pixels long; {_MAX_OUTLINE_PX} is allowed"
    return ""


def _outline_fault(outline: Any, size: Size) -> str:
    if not isinstance(outline, Sequence) or isinstance(outline, str):
        return f"a polygon is {outline!r:.40}; it must be a list of x, y, x, y, ..."
    if len(outline) < 6 or len(outline) % 2:
        return f"a polygon has {len(outline)} numbers; it must have pairs of x and y, three at least"
    for position, value in enumerate(outline):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"a polygon holds {value!r:.40}; it must hold numbers"
        side = size[1 - position % 2]
        if not -_OUTSIDE_PX <= value <= side + _OUTSIDE_PX:  # NaN is in no range
            return f"a polygon has {'xy'[position % 2]} = {value!r:.40}; 0 to {side} is allowed, and 1 beyond"
    return ""


def _outlines_length(segmentation: Any) -> float:
    """Returns the length of the outlines of a segmentation, in pixels; 0 when it has none."""
    return 0.0 if not segmentation or isinstance(segmentation, Mapping) else sum(map(_outline_length, segmentation))


def _outline_length(outline: Sequence[float]) -> float:
    points = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())


def _runs_fault(segmentation: Mapping[str, Any], size: Size) -> str:
    height, width = size
    size_of_runs = segmentation.get("size")
    if not isinstance(size_of_runs, Sequence) or list(size_of_runs) != [height, width]:
        return f"the run-length encoding is of size {size_of_runs!r:.40}; the image has {[height, width]}"
    total = 0
    try:
        for count in _counts(segmentation.get("counts")):
            total += count
            if count < 0 or total > height * width:
                return f"the run-length encoding has a run of {count} up to pixel {total} of {height * width}"
    except (TypeError, ValueError) as error:
        return f"the run-length encoding cannot be read: {error}"
    # The decoder of pycocotools would fill up with whatever its memory holds.
    return "" if total == height * width else f"the runs cover {total} pixels; the image has {height * width}"


def _counts(counts: Any) -> Iterator[int]:
    """Yields the run lengths, zeros first, of a list or of a compressed string.

    The string has six bits a character, from `0` on: five of the number, lowest first, and whether more follow; from
    the fourth number on it is the difference to the last but one. Source: `rleFrString` of the COCO API.

    Raises:
      TypeError, ValueError: they are neither.
    """
    if isinstance(counts, (list, tuple)):
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int):
                raise TypeError(f"a run of {count!r:.40}; it must be a whole number")
            yield count
        return
    if not isinstance(counts, str):
        raise TypeError(f"its counts are {counts!r:.40}; they must be a list or a string")
    yield from _decompressed(counts)


def _decompressed(text: str) -> Iterator[int]:
    last = [0, 0]
    value = shift = found = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{character!r} is not one of its characters")
        value |= (bits & 31) << shift
        shift += 5
        if shift > _COUNT_BITS:
            raise ValueError(f"it has a number of more than {_COUNT_BITS} bits")
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        value += last[0] if found > 2 else 0
        last = [last[1], value]
        found += 1
        yield value
        value = shift = 0
    if shift:
        raise ValueError("it breaks off in the middle of a number")

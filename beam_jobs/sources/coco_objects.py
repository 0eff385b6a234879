"""What the annotations of one image in a COCO json say. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images.annotations import box_fault
from beam_jobs.types import Annotations, ImageObject

Id = int | str

_HUGE = 3e38  # what the float32 numbers of a record can hold


def with_objects(
    image: Mapping[str, Any], annotations: list[dict[str, Any]], names: Mapping[Id, str], others: Annotations
) -> Annotations:
    """Adds the objects of an image to its other annotations.

    Args:
      image: its object in the json.
      annotations: its annotations, in order.
      names: category id -> class name.
      others: annotations of the image without objects.

    Raises:
      BadImage: they cannot be right; the reason is `BAD_ANNOTATION`.
    """
    size = _size(image)
    objects = tuple(_object(annotation, names, size) for annotation in annotations)
    return replace(others, labels=tuple(sorted({item.label for item in objects})), objects=objects, size=size)


def _size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = image.get("height"), image.get("width")
    if height is None and width is None:
        return None
    for side in (height, width):
        if not _is_number(side) or side != int(side) or side < 1:
            raise _bad(f"height and width are {height!r:.40} and {width!r:.40}; they must be whole numbers above 0")
    return int(height), int(width)  # type: ignore[arg-type]


def is_id(value: Any) -> TypeGuard[Id]:
    """Returns whether a value can be an id: a number or text, hashable and with an order of its own."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _object(annotation: Mapping[str, Any], names: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    try:
        return _plain_object(annotation, names, size)
    except BadImage as bad:
        raise BadImage(bad.reason, f"annotation {annotation.get('id')!r:.40}: {bad.detail}") from bad


def _plain_object(annotation: Mapping[str, Any], names: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    category = annotation.get("category_id")
    if not is_id(category) or category not in names:
        raise _bad(f"category_id is {category!r:.40}; no category has that id")
    bbox = annotation.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        raise _bad(f"bbox is {bbox!r:.60}; it must be four finite numbers: x, y, width, height")
    left, top, width, height = map(float, bbox)
    box = (left, top, left + width, top + height)
    if fault := box_fault(box, size):
        raise _bad(fault)
    area, crowd = annotation.get("area", width * height), annotation.get("iscrowd", 0)
    if not _is_number(area) or area < 0:
        raise _bad(f"area is {area!r:.40}; it must be a finite number of at least 0")
    if crowd not in (0, 1):
        raise _bad(f"iscrowd is {crowd!r:.40}; it must be 0 or 1")
    segmentation = _segmentation(annotation.get("segmentation"))
    return ImageObject(label=names[category], bbox=box, crowd=bool(crowd), area=float(area), segmentation=segmentation)


def _segmentation(value: Any) -> Any:
    """Returns a segmentation without anything that does not belong to it; whether it fits the image is seen later."""
    if not value:
        return None
    if isinstance(value, dict):
        size, counts = value.get("size"), value.get("counts")
        compressed = isinstance(counts, str) and counts.isascii()
        if _is_numbers(size) and (compressed or _is_numbers(counts)):
            return {"size": size, "counts": counts}
    elif isinstance(value, list) and all(map(_is_numbers, value)):
        return value
    raise _bad(f"segmentation is {value!r:.60}; it must be polygons or a run-length encoding")


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _HUGE


def _bad(detail: str) -> BadImage:
    return BadImage(RejectReason.BAD_ANNOTATION, detail)

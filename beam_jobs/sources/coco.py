"""COCO instances json: a file of images, boxes, crowds and segmentations, with the image files in a folder near it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeGuard

from beam_jobs import storage
from beam_jobs.errors import BadImage, SourceError
from beam_jobs.images.annotations import box_fault
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import coco_json, http_fetch
from beam_jobs.sources.base import OnHidden, ignore, scan_reject
from beam_jobs.sources.coco_json import NAME, Document, Id, is_id
from beam_jobs.sources.row_reader import RowReader, bad_annotation, refuse_other_buckets, value_kind
from beam_jobs.types import Annotations, ImageObject, ImageRef

_MAX_FLOAT32 = 3e38  # a record holds numbers as float32


def with_objects(
    image: Mapping[str, Any], annotations: list[dict[str, Any]], classes: Mapping[Id, str], base: Annotations
) -> Annotations:
    """Returns the annotations of an image with its objects, whose classes are the labels.

    Args:
      image: the json object of the image.
      annotations: the json objects of its annotations, in order.
      classes: category id -> class name.
      base: annotations of the image to which the objects are added.

    Raises:
      BadImage: an annotation is not valid; the reason is `BAD_ANNOTATION`.
    """
    size = _image_size(image)
    objects = tuple(_make_object(annotation, classes, size) for annotation in annotations)
    return replace(base, labels=tuple(sorted({item.label for item in objects})), objects=objects, size=size)


def _image_size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = image.get("height"), image.get("width")
    if height is None and width is None:
        return None
    for side in (height, width):
        if not _is_number(side) or side != int(side) or side < 1:
            raise bad_annotation(
                f"height and width are {height!r:.40} and {width!r:.40}; they must be whole numbers above 0"
            )
    return int(height), int(width)  # type: ignore[arg-type]


def _make_object(annotation: Mapping[str, Any], classes: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    try:
        return _read_object(annotation, classes, size)
    except BadImage as bad:
        raise BadImage(bad.reason, f"annotation {annotation.get('id')!r:.40}: {bad.detail}") from bad


def _read_object(annotation: Mapping[str, Any], classes: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    category = annotation.get("category_id")
    if not is_id(category) or category not in classes:
        raise bad_annotation(f"category_id is {category!r:.40}; no category has that id")
    bbox = annotation.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        raise bad_annotation(f"bbox is {bbox!r:.60}; it must be four finite numbers: x, y, width, height")
    left, top, width, height = map(float, bbox)
    box = (left, top, left + width, top + height)
    if fault := box_fault(box, size):
        raise bad_annotation(fault)
    area, crowd = annotation.get("area", width * height), annotation.get("iscrowd", 0)
    if not _is_number(area) or area < 0:
        raise bad_annotation(f"area is {area!r:.40}; it must be a finite number of at least 0")
    if crowd not in (0, 1):
        raise bad_annotation(f"iscrowd is {crowd!r:.40}; it must be 0 or 1")
    outline = _parse_segmentation(annotation.get("segmentation"))
    return ImageObject(label=classes[category], bbox=box, crowd=bool(crowd), area=float(area), segmentation=outline)


def _parse_segmentation(value: Any) -> Any:
    """Returns a segmentation without other fields, or None. `check_annotations` compares it with the image size."""
    if not value:
        return None
    if isinstance(value, dict):
        size, counts = value.get("size"), value.get("counts")
        is_compressed = isinstance(counts, str) and counts.isascii()
        if _is_number_list(size) and (is_compressed or _is_number_list(counts)):
            return {"size": size, "counts": counts}
    elif isinstance(value, list) and all(map(_is_number_list, value)):
        return value
    raise bad_annotation(f"segmentation is {value!r:.60}; it must be polygons or a run-length encoding")


def _is_number_list(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_FLOAT32


_URL = "coco_url"
_IMAGE_COLUMNS = ("image", NAME, _URL)  # the first is the default of the options


@dataclass(frozen=True)
class CocoSource:
    """The images of a COCO instances json, with their annotations.

    The key and uri of an image is its `file_name`. Group, split, weight, mask and extra columns are fields of the image
    objects. Categories with the same name are the same class.

    The json is read once, as a stream. Until the last entry is read, its images and annotations are in a temporary
    file, and their ids in a database of 100 MB.

    Attributes:
      path: path of the json, local or remote.
      columns: the fields by role; `image="coco_url"` fetches the images that are not on disk.
      buckets: the buckets that images and masks may lie in, see `row_reader.allowed_buckets`.
    """

    path: str
    columns: TableColumns
    buckets: Set[str] = frozenset()

    @property
    def label_kind(self) -> str:
        """Kind of the labels: the categories of the objects of an image."""
        return "multi"

    @cached_property
    def base(self) -> str:
        """Folder of the images: the first folder near the json that contains one of the images.

        Raises:
          SourceError: no folder contains an image, or the json cannot be read.
        """
        file_names = self._document.file_names
        folders = list(dict.fromkeys(_candidate_folders(self.path)))
        for file_name in file_names:
            for folder in folders:
                if storage.is_remote(file_name) or storage.exists(storage.join(folder, file_name)):
                    return folder
        if self.columns.image == _URL:
            return folders[0]
        examples = ", ".join(map(repr, file_names[:2])) or "none"
        searched = ", ".join(folders)
        raise SourceError(
            f"{self.path} names images ({examples}, ...) that are not in {searched}; put them in one of these folders"
        )

    def check(self) -> None:
        """Raises `SourceError` unless the file is COCO instances json, has the named fields, and images exist."""
        if self.columns.image not in _IMAGE_COLUMNS:
            allowed = f"{NAME}, or {_URL} to fetch the images that are not on disk"
            raise SourceError(f"the image column is {self.columns.image!r}; for a COCO json it must be {allowed}")
        if self.columns.labels:
            raise SourceError(
                f"the labels column is {self.columns.labels!r}; it must be empty: the labels are the categories"
            )
        for role, column in self._row_columns.named().items():
            if column not in self._document.fields:
                raise SourceError(f"{self.path} has no image with a field {column!r} for the {role}")
        _ = self.base  # raises `SourceError` now, before anything is written

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields the images in the order of the json, then a reject for each annotation without an image.

        Raises:
          SourceError: an extra column holds values that a record cannot hold, or images lie in other buckets.
        """
        yield from refuse_other_buckets(self._entries(), self.path, self.buckets)

    def _entries(self) -> Iterator[ImageRef | Reject]:
        base, document = self.base, self._document
        vars(self).pop("_document")  # so that the end of this generator releases the document
        reader = RowReader(columns=self._row_columns, base=base, kinds=document.kinds)
        with document.resources:
            for number, (image, annotations, fault) in enumerate(document.images(), 1):
                yield self._entry(image, f"image {number}", reader, annotations, document.names, fault)
            for name, detail in document.orphans():
                yield scan_reject(f"annotation {name}", self.path, RejectReason.BAD_ANNOTATION, detail)

    @cached_property
    def _document(self) -> Document:
        return coco_json.load(self.path, self._row_columns, partial(value_kind, path=self.path))

    @property
    def _row_columns(self) -> TableColumns:
        return replace(self.columns, image=NAME, key=self.columns.key or NAME, label="", labels="")

    def _entry(
        self,
        image: Any,
        image_name: str,
        reader: RowReader,
        annotations: list[dict[str, Any]],
        classes: Mapping[Id, str],
        fault: BadImage | None,
    ) -> ImageRef | Reject:
        if not isinstance(image, dict) or not is_id(image.get("id")):
            detail = f"it is {image!r:.60}; it must be an object with an id"
            return scan_reject(image_name, image_name, RejectReason.BAD_ANNOTATION, detail)
        entry = self._choose_reader(image, reader).entry(image, image_name)
        if fault:
            return scan_reject(entry.key, entry.uri, fault.reason, fault.detail)
        if isinstance(entry, Reject):
            return entry
        try:
            full_annotations = with_objects(image, annotations, classes, entry.annotations or Annotations())
            return replace(entry, annotations=full_annotations)
        except BadImage as bad:
            return scan_reject(entry.key, entry.uri, bad.reason, bad.detail)

    def _choose_reader(self, image: Mapping[str, Any], reader: RowReader) -> RowReader:
        """Returns a reader of the URL for an image that is to be fetched, else the given reader."""
        if self.columns.image != _URL or not http_fetch.is_url(str(image.get(_URL))):
            return reader
        name = image.get(NAME)
        if isinstance(name, str) and os.path.isfile(os.path.join(reader.base, name)):
            return reader
        return replace(reader, columns=replace(reader.columns, image=_URL))


def _candidate_folders(path: str) -> Iterator[str]:
    """Yields the folders in which the images of a json may lie, in the order of the search."""
    images_name = os.path.splitext(path.rpartition("/")[2])[0].removeprefix("instances_")
    if storage.is_remote(path):
        folder = path.rpartition("/")[0]
        grandparent = folder.rpartition("/")[0]
        parent = folder if grandparent.endswith("/") else grandparent  # a bucket has no parent
    else:
        folder = os.path.dirname(path) or "."
        parent = os.path.join(folder, "..")
    yield folder
    yield parent
    for subfolder in (images_name, "images", f"images/{images_name}"):
        yield storage.join(parent, subfolder)
        yield storage.join(folder, subfolder)

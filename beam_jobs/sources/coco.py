"""COCO instances json: a file of images, boxes, crowds and segmentations, with the image files in a folder near it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import marshal
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeGuard

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.errors import BadImage, SourceError
from beam_jobs.images.annotations import box_fault
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import http_fetch
from beam_jobs.sources.base import MAX_NAME_BYTES, OnHidden, ignore, printable, scan_reject
from beam_jobs.sources.json_stream import JsonStream
from beam_jobs.sources.row_reader import RowReader, extra_kinds, refuse_other_buckets, value_kind
from beam_jobs.storage.database import Database, open_database
from beam_jobs.types import Annotations, ImageObject, ImageRef

Id = int | str

_MAX_FLOAT32 = 3e38  # a record holds numbers as float32


def with_objects(
    image: Mapping[str, Any], annotations: list[dict[str, Any]], names: Mapping[Id, str], others: Annotations
) -> Annotations:
    """Adds the objects of an image to its other annotations.

    Args:
      image: the json object of the image.
      annotations: the json objects of its annotations, in order.
      names: category id -> class name.
      others: annotations of the image without objects.

    Raises:
      BadImage: an annotation is not valid; the reason is `BAD_ANNOTATION`.
    """
    size = _image_size(image)
    objects = tuple(_make_object(annotation, names, size) for annotation in annotations)
    return replace(others, labels=tuple(sorted({item.label for item in objects})), objects=objects, size=size)


def _image_size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = image.get("height"), image.get("width")
    if height is None and width is None:
        return None
    for side in (height, width):
        if not _is_number(side) or side != int(side) or side < 1:
            raise _bad_object(
                f"height and width are {height!r:.40} and {width!r:.40}; they must be whole numbers above 0"
            )
    return int(height), int(width)  # type: ignore[arg-type]


def is_id(value: Any) -> TypeGuard[Id]:
    """Returns whether a value can be an id: an integer or text."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _make_object(annotation: Mapping[str, Any], names: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    try:
        return _parse_object(annotation, names, size)
    except BadImage as bad:
        raise BadImage(bad.reason, f"annotation {annotation.get('id')!r:.40}: {bad.detail}") from bad


def _parse_object(annotation: Mapping[str, Any], names: Mapping[Id, str], size: tuple[int, int] | None) -> ImageObject:
    category = annotation.get("category_id")
    if not is_id(category) or category not in names:
        raise _bad_object(f"category_id is {category!r:.40}; no category has that id")
    bbox = annotation.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        raise _bad_object(f"bbox is {bbox!r:.60}; it must be four finite numbers: x, y, width, height")
    left, top, width, height = map(float, bbox)
    box = (left, top, left + width, top + height)
    if fault := box_fault(box, size):
        raise _bad_object(fault)
    area, crowd = annotation.get("area", width * height), annotation.get("iscrowd", 0)
    if not _is_number(area) or area < 0:
        raise _bad_object(f"area is {area!r:.40}; it must be a finite number of at least 0")
    if crowd not in (0, 1):
        raise _bad_object(f"iscrowd is {crowd!r:.40}; it must be 0 or 1")
    segmentation = _parse_segmentation(annotation.get("segmentation"))
    return ImageObject(label=names[category], bbox=box, crowd=bool(crowd), area=float(area), segmentation=segmentation)


def _parse_segmentation(value: Any) -> Any:
    """Returns a segmentation without other fields; `check_annotations` compares it with the image later."""
    if not value:
        return None
    if isinstance(value, dict):
        size, counts = value.get("size"), value.get("counts")
        compressed = isinstance(counts, str) and counts.isascii()
        if _is_numbers(size) and (compressed or _is_numbers(counts)):
            return {"size": size, "counts": counts}
    elif isinstance(value, list) and all(map(_is_numbers, value)):
        return value
    raise _bad_object(f"segmentation is {value!r:.60}; it must be polygons or a run-length encoding")


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_FLOAT32


def _bad_object(detail: str) -> BadImage:
    return BadImage(RejectReason.BAD_ANNOTATION, detail)


_NAME = "file_name"
_URL = "coco_url"
_IMAGE_COLUMNS = ("image", _NAME, _URL)  # the first is the default of the options
_MAX_KEYS = 20  # of a json, in a message
_PROBES = 16  # images that are searched for, because any of them may be missing


@dataclass(frozen=True)
class CocoSource:
    """The images of a COCO instances json, with their annotations.

    The key and uri of an image is its `file_name`. Group, split, weight, mask and extra columns are fields of the image
    objects. Categories with the same name are the same class.

    The json is read once, as a stream. Its images and annotations are in a database of 200 MB until the last entry;
    what exceeds that is in temporary files.

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
        """Folder of the images: the first folder near the json that holds one of them.

        Raises:
          SourceError: no folder holds one, or the json cannot be read.
        """
        names = self._document.file_names
        folders = list(dict.fromkeys(_candidate_folders(self.path)))
        for name in names:
            for folder in folders:
                if storage.is_remote(name) or storage.exists(storage.join(folder, name)):
                    return folder
        if self.columns.image == _URL:
            return folders[0]
        examples = ", ".join(map(repr, names[:2])) or "none"
        searched = ", ".join(folders)
        raise SourceError(
            f"{self.path} names images ({examples}, ...) that are not in {searched}; put them in one of these folders"
        )

    def check(self) -> None:
        """Raises `SourceError` unless the file is COCO instances json, has the named fields, and images exist."""
        if self.columns.image not in _IMAGE_COLUMNS:
            allowed = f"{_NAME}, or {_URL} to fetch the images that are not on disk"
            raise SourceError(f"the image column is {self.columns.image!r}; of a COCO json it must be {allowed}")
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
        vars(self).pop("_document")  # from here on only this generator refers to it
        reader = RowReader(columns=self._row_columns, base=base, kinds=document.kinds)
        with document.resources:
            for number, (image, annotations, fault) in enumerate(document.images(), 1):
                yield self._entry(image, f"image {number}", reader, annotations, document.names, fault)
            for name, detail in document.orphans():
                yield scan_reject(f"annotation {name}", self.path, RejectReason.BAD_ANNOTATION, detail)

    @cached_property
    def _document(self) -> _Document:
        return _load(self.path, self._row_columns, self._value_kind)

    @property
    def _row_columns(self) -> TableColumns:
        return replace(self.columns, image=_NAME, key=self.columns.key or _NAME, label="", labels="")

    def _value_kind(self, value: Any) -> type:
        try:
            return value_kind(value)
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from error

    def _entry(
        self,
        image: Any,
        name: str,
        reader: RowReader,
        annotations: list[dict[str, Any]],
        names: Mapping[Id, str],
        fault: BadImage | None,
    ) -> ImageRef | Reject:
        if not isinstance(image, dict) or not is_id(image.get("id")):
            detail = f"it is {image!r:.60}; it must be an object with an id"
            return scan_reject(name, name, RejectReason.BAD_ANNOTATION, detail)
        entry = self._choose_reader(image, reader).entry(image, name)
        if fault:
            return scan_reject(entry.key, entry.uri, fault.reason, fault.detail)
        if isinstance(entry, Reject):
            return entry
        try:
            return replace(
                entry, annotations=with_objects(image, annotations, names, entry.annotations or Annotations())
            )
        except BadImage as bad:
            return scan_reject(entry.key, entry.uri, bad.reason, bad.detail)

    def _choose_reader(self, image: Mapping[str, Any], reader: RowReader) -> RowReader:
        if self.columns.image != _URL or not http_fetch.is_url(str(image.get(_URL))):
            return reader
        name = image.get(_NAME)
        if isinstance(name, str) and os.path.isfile(os.path.join(reader.base, name)):
            return reader
        return replace(reader, columns=replace(reader.columns, image=_URL))


# --- the json as a database


_PARTS = ("images", "annotations", "categories")
_MEMORY_MB = 200  # of the database
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 1 << 12  # of rows that are inserted together
_MAX_IMAGE_BYTES = 64 << 20  # of the annotations of an image
_FETCHED_ROWS = 64  # each may have the largest size, and the database refuses batches of 2 GiB
_ROWS = pa.schema({"number": pa.int64(), "id": pa.string(), "value": pa.binary()})

_FIRST_IMAGES = "CREATE TABLE firsts AS SELECT id, min(number) AS number FROM images WHERE id <> '' GROUP BY id"
_IMAGES_AND_ANNOTATIONS = """
    SELECT number AS image, -1 AS position, value, id = '' OR number IN (SELECT number FROM firsts) AS is_first
    FROM images
    UNION ALL
    SELECT firsts.number, annotations.number, annotations.value, true FROM annotations JOIN firsts USING (id)
    ORDER BY image, position"""
_ORPHANS = "SELECT number, value FROM annotations WHERE id NOT IN (SELECT id FROM firsts) ORDER BY number"


@dataclass(frozen=True, kw_only=True)
class _Document:
    """The content of a json.

    Attributes:
      database: tables `images` and `annotations`: number, id of the image as JSON, empty for none, and value of each.
      resources: closes the database.
      names: category id -> class name.
      file_names: names of the first images.
      fields: columns that are fields of images.
      kinds: extra column -> type of its values.
    """

    database: Database
    resources: contextlib.ExitStack
    names: Mapping[Id, str]
    file_names: Sequence[str]
    fields: Set[str]
    kinds: Mapping[str, type]

    def images(self) -> Iterator[tuple[Any, list[dict[str, Any]], BadImage | None]]:
        """Yields each image, its annotations in the order of their ids, and why the image cannot be used."""
        for _, rows in itertools.groupby(self._fetch(_IMAGES_AND_ANNOTATIONS), itemgetter(0)):
            yield _with_annotations(rows)

    def orphans(self) -> Iterator[tuple[str, str]]:
        """Yields name and fault of each annotation without an image."""
        for number, stored in self._fetch(_ORPHANS):
            annotation = _restore(stored)
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            name = repr(annotation.get("id")) if isinstance(annotation, dict) else f"number {number + 1}"
            yield f"{name:.40}", f"its image_id is {image_id!r:.40}; no image has that id"

    def _fetch(self, statement: str) -> Iterator[tuple[Any, ...]]:
        for batch in replace(self.database, batch_rows=_FETCHED_ROWS).batches(statement):
            yield from zip(*batch.to_pydict().values(), strict=True)


def _with_annotations(rows: Iterator[tuple[Any, ...]]) -> tuple[Any, list[dict[str, Any]], BadImage | None]:
    _, _, stored, is_first = next(rows)
    image = _restore(stored)
    if not is_first:
        detail = f"an earlier image has the id {image['id']!r}, too"
        return image, [], BadImage(RejectReason.DUPLICATE_KEY, detail)
    annotations, size = [], 0
    for _, _, stored, _ in rows:
        size += len(stored)
        if size <= _MAX_IMAGE_BYTES:
            annotations.append(_restore(stored))
    if size > _MAX_IMAGE_BYTES:
        detail = f"its annotations have {size:,} bytes; {_MAX_IMAGE_BYTES:,} are allowed"
        return image, [], BadImage(RejectReason.BAD_ANNOTATION, detail)
    return image, sorted(annotations, key=_sort_key), None


def _restore(stored: bytes) -> Any:
    # Bytes that this process made; JSON would be parsed a second time.
    return marshal.loads(stored)  # noqa: S302


def _load(path: str, columns: TableColumns, kind_of: Callable[[Any], type]) -> _Document:
    """Reads a json into a database.

    Args:
      path: path of the json.
      columns: fields of its images.
      kind_of: see `row_reader.extra_kinds`.

    Raises:
      SourceError: the json cannot be read, or is none of COCO.
    """
    with contextlib.ExitStack() as resources:
        database = resources.enter_context(open_database("the annotations", _MEMORY_MB))
        loader = _Loader(path, database, frozenset(columns.named().values()))
        with _open_json(path) as stream:
            images = loader.load(stream)
            kinds = extra_kinds(images, columns.extra, kind_of)
            for _ in images:  # without extra columns, none has been read
                pass
        names = _category_names(path, loader.check())
        database.run(_FIRST_IMAGES)
        return _Document(
            database=database,
            resources=resources.pop_all(),
            names=names,
            file_names=loader.file_names,
            fields=loader.fields,
            kinds=kinds,
        )


@contextlib.contextmanager
def _open_json(path: str) -> Iterator[JsonStream]:
    try:
        opened = storage.open_read(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    with io.TextIOWrapper(opened, encoding="utf-8-sig") as stream:
        yield JsonStream(path, stream)


class _Loader:
    """Inserts the images and annotations of a json into a database.

    Attributes:
      file_names: names of the first images.
      fields: columns that are fields of images.
    """

    def __init__(self, path: str, database: Database, columns: Set[str]) -> None:
        self.file_names: list[str] = []
        self.fields: set[str] = set()
        self._path, self._database, self._columns = path, database, columns
        self._found: list[str] = []  # keys of the json, or what it is instead of an object
        self._categories: list[Any] = []
        self._lists: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._rows: dict[str, list[tuple[int, str, bytes]]] = {part: [] for part in _PARTS[:2]}
        self._bytes = 0

    def load(self, stream: JsonStream) -> Iterator[dict[str, Any]]:
        """Reads the json, and yields the images that are objects."""
        for part in self._rows:
            self._database.insert(part, _ROWS.empty_table())
        if stream.peek() != "{":
            self._found.append(f"{stream.value()!r:.40}")
        else:
            for key in stream.members():
                self._found += [repr(key)] * (len(self._found) < _MAX_KEYS)
                if key not in _PARTS or stream.peek() != "[":
                    stream.value()
                    continue
                self._lists.add(key)
                for value in stream.elements():
                    if key == "categories":
                        self._categories.append(value)
                        continue
                    self._add(key, value)
                    if key == "images" and isinstance(value, dict):
                        self._look_at(value)
                        yield value
        if stream.peek():
            raise stream.error("more follows")
        self._flush()

    def check(self) -> list[Any]:
        """Returns the categories, and raises `SourceError` if the json is none of COCO."""
        for part in _PARTS:
            if part not in self._lists:
                found = ", ".join(self._found) or "{}"
                raise SourceError(
                    f"{self._path} is not COCO instances json: it must have a list {part!r}; it has {found:.200}"
                )
        if not self._counts["images"]:
            raise SourceError(f"{self._path} has no image in 'images'")
        return self._categories

    def _look_at(self, image: Mapping[str, Any]) -> None:
        self.fields |= self._columns & image.keys()
        if len(self.file_names) < _PROBES and isinstance(image.get(_NAME), str):
            self.file_names.append(image[_NAME])

    def _add(self, part: str, value: Any) -> None:
        image_id = value.get("id" if part == "images" else "image_id") if isinstance(value, dict) else None
        rows = self._rows[part]
        stored = marshal.dumps(value)
        rows.append((self._counts[part], json.dumps(image_id) if is_id(image_id) else "", stored))
        self._counts[part] += 1
        self._bytes += len(stored)
        if self._bytes >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for part, rows in self._rows.items():
            if rows:
                columns = zip(zip(*rows, strict=True), _ROWS, strict=True)
                table = pa.table([pa.array(column, field.type) for column, field in columns], schema=_ROWS)
                self._database.add(part, table, create=False)
                rows.clear()
        self._bytes = 0


def _category_names(path: str, categories: list[Any]) -> dict[Id, str]:
    names: dict[Id, str] = {}
    for category in categories:
        name = category.get("name") if isinstance(category, dict) else None
        if not isinstance(name, str) or not name.strip() or not is_id(category.get("id")) or printable(name) != name:
            raise SourceError(f"{path} has the category {category!r:.60}; it must have an id and a name")
        if len(name.encode()) > MAX_NAME_BYTES:
            description = f"the category {category['id']!r:.40} with a name of {len(name.encode())} bytes"
            raise SourceError(f"{path} has {description}; {MAX_NAME_BYTES} are allowed")
        if category["id"] in names:
            raise SourceError(f"{path} has two categories with the id {category['id']!r}")
        names[category["id"]] = name.strip()
    return names


def _candidate_folders(path: str) -> Iterator[str]:
    """Yields the folders in which the images of a json may lie, in the order of the search."""
    name = os.path.splitext(path.rpartition("/")[2])[0].removeprefix("instances_")
    if storage.is_remote(path):
        folder = path.rpartition("/")[0]
        grandparent = folder.rpartition("/")[0]
        parent = folder if grandparent.endswith("/") else grandparent  # a bucket has no parent
    else:
        folder = os.path.dirname(path) or "."
        parent = os.path.join(folder, "..")
    yield folder
    yield parent
    for subfolder in (name, "images", f"images/{name}"):
        yield storage.join(parent, subfolder)
        yield storage.join(folder, subfolder)


def _sort_key(annotation: Mapping[str, Any]) -> tuple[int, int, str]:
    name = annotation.get("id")
    if not is_id(name):
        return 2, 0, ""
    return (0, name, "") if isinstance(name, int) else (1, 0, name)

"""The content of a COCO json, read as a stream: images and annotations in a file, their ids in a database."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import marshal
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, BinaryIO, TypeGuard

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common.system import temporary_errors
from beam_jobs.errors import BadImage, SourceError, os_errors_as
from beam_jobs.options import TableColumns
from beam_jobs.rejects import RejectReason
from beam_jobs.sources.base import MAX_NAME_BYTES, printable
from beam_jobs.sources.json_stream import JsonStream
from beam_jobs.sources.row_reader import extra_kinds
from beam_jobs.storage.database import Database, open_database

Id = int | str
NAME = "file_name"
_MAX_FILE_NAMES = 16  # images to search for in the folders; several, because some may be missing
_MAX_KEYS = 20  # keys of a json that a message lists
_NO_FILE = "the annotations need a temporary file, which cannot be written"


def is_id(value: Any) -> TypeGuard[Id]:
    """Returns whether a value can be an id: an integer or text."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


_PARTS = ("images", "annotations", "categories")  # lists of a COCO json
_MEMORY_MB = 100  # memory of the database
_BATCH_ROWS = 1 << 13  # rows that are inserted together
_MAX_IMAGE_BYTES = 64 << 20  # size of the annotations of an image
_MAX_CATEGORIES_BYTES = 32 << 20  # size of all categories, which are in memory
_MAX_ID = 64  # characters; a longer id is compared by its digest
_ROW_SCHEMA = pa.schema({"number": pa.int64(), "id": pa.string(), "start": pa.int64(), "bytes": pa.int64()})

_FIRST_IMAGES = "CREATE TABLE firsts AS SELECT id, min(number) AS number FROM images WHERE id <> '' GROUP BY id"
_IMAGES_AND_ANNOTATIONS = """
    SELECT number AS image, -1 AS position, start, bytes, id = '' OR number IN (SELECT number FROM firsts) AS is_first
    FROM images
    UNION ALL
    SELECT firsts.number, annotations.number, start, bytes, true FROM annotations JOIN firsts USING (id)
    ORDER BY image, position"""
_ORPHANS = "SELECT number, start, bytes FROM annotations WHERE id NOT IN (SELECT id FROM firsts) ORDER BY number"


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a json.

    Attributes:
      database: tables `images` and `annotations`: number, id of the image (or empty), start and size in `values`.
      values: the images and annotations.
      resources: closes the database and the file of `values`.
      names: category id -> class name.
      file_names: names of the first images.
      fields: requested columns that are fields of at least one image.
      kinds: extra column -> type of its values.
    """

    database: Database
    values: _Values
    resources: contextlib.ExitStack
    names: Mapping[Id, str]
    file_names: Sequence[str]
    fields: Set[str]
    kinds: Mapping[str, type]

    def images(self) -> Iterator[tuple[Any, list[dict[str, Any]], BadImage | None]]:
        """Yields each image, its annotations by id, and the error of an unusable image or None."""
        for _, rows in itertools.groupby(self._fetch(_IMAGES_AND_ANNOTATIONS), itemgetter(0)):
            yield self._read_image(rows)

    def orphans(self) -> Iterator[tuple[str, str]]:
        """Yields name and fault of each annotation without an image."""
        for number, *location in self._fetch(_ORPHANS):
            annotation = self.values.read(*location)
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            name = repr(annotation.get("id")) if isinstance(annotation, dict) else f"number {number + 1}"
            yield f"{name:.40}", f"its image_id is {image_id!r:.40}; no image has that id"

    def _fetch(self, statement: str) -> Iterator[tuple[Any, ...]]:
        for batch in self.database.batches(statement):
            yield from zip(*batch.to_pydict().values(), strict=True)

    def _read_image(self, rows: Iterator[tuple[Any, ...]]) -> tuple[Any, list[dict[str, Any]], BadImage | None]:
        """Returns an item of `images`, given the rows of `_IMAGES_AND_ANNOTATIONS` for the image."""
        _, _, *location, is_first = next(rows)  # the row of the image precedes those of its annotations
        image = self.values.read(*location)
        if not is_first:
            detail = f"an earlier image also has the id {image['id']!r}"
            return image, [], BadImage(RejectReason.DUPLICATE_KEY, detail)
        locations = [location for _, _, *location, _ in rows]
        size = sum(size for _, size in locations)
        if size > _MAX_IMAGE_BYTES:
            detail = f"its annotations have {size:,} bytes; {_MAX_IMAGE_BYTES:,} are allowed"
            return image, [], BadImage(RejectReason.BAD_ANNOTATION, detail)
        return image, sorted((self.values.read(*location) for location in locations), key=_annotation_sort_key), None


class _Values:
    """Stores values of a json in a temporary file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def add(self, value: Any) -> tuple[int, int]:
        """Appends a value, and returns its start and size in the file, in bytes.

        Raises:
          DiskError: the file cannot be written.
        """
        data = marshal.dumps(value)
        with temporary_errors(_NO_FILE):
            self._file.write(data)
        self._end += len(data)
        return self._end - len(data), len(data)

    def finish(self) -> None:
        """Writes buffered values to the file, so that `read` can return them.

        Raises:
          DiskError: the file cannot be written.
        """
        with temporary_errors(_NO_FILE):
            self._file.flush()

    def read(self, start: int, size: int) -> Any:
        """Returns the value with the start and size that `add` returned."""
        # `marshal` is safe: this process wrote the bytes. JSON would have to be parsed a second time.
        return marshal.loads(os.pread(self._file.fileno(), size, start))  # noqa: S302


def load(path: str, columns: TableColumns, kind_of: Callable[[Any], type]) -> Document:
    """Reads a json into a database and a file, and returns its content.

    Args:
      path: path of the json.
      columns: the fields of its images by role.
      kind_of: see `row_reader.extra_kinds`.

    Raises:
      DiskError: the temporary files cannot be written.
      SourceError: the json cannot be read, or is not COCO instances json.
    """
    with contextlib.ExitStack() as resources:
        database = resources.enter_context(open_database("the annotations", _MEMORY_MB))
        values = _Values(resources.enter_context(open(os.path.join(database.spill, "values"), "w+b")))
        loader = _Loader(path, database, values, frozenset(columns.named().values()))
        with _open_json(path) as stream:
            images = loader.load(stream)
            kinds = extra_kinds(images, columns.extra, kind_of)
            for _ in images:  # without extra columns, `extra_kinds` reads no image
                pass
        values.finish()
        names = _category_names(path, loader.check())
        database.run(_FIRST_IMAGES)
        return Document(
            database=database,
            values=values,
            resources=resources.pop_all(),
            names=names,
            file_names=loader.file_names,
            fields=loader.fields,
            kinds=kinds,
        )


@contextlib.contextmanager
def _open_json(path: str) -> Iterator[JsonStream]:
    with os_errors_as(SourceError, f"{path} cannot be read"):
        opened = storage.open_read(path)
    with io.TextIOWrapper(opened, encoding="utf-8-sig") as stream:
        yield JsonStream(path, stream)


class _Loader:
    """Inserts the images and annotations of a json into a database.

    Attributes:
      file_names: names of the first images.
      fields: columns that are fields of images.
    """

    def __init__(self, path: str, database: Database, values: _Values, columns: Set[str]) -> None:
        self.file_names: list[str] = []
        self.fields: set[str] = set()
        self._path, self._database, self._values, self._columns = path, database, values, columns
        self._keys: list[str] = []  # keys of the json, for a message; its value when it is not an object
        self._categories: list[Any] = []
        self._categories_bytes = 0
        self._list_names: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._buffered_rows: dict[str, list[tuple[int, str, int, int]]] = {part: [] for part in _PARTS[:2]}

    def load(self, stream: JsonStream) -> Iterator[dict[str, Any]]:
        """Reads the json, and yields the images that are JSON objects."""
        for part in self._buffered_rows:
            self._database.insert(part, _ROW_SCHEMA.empty_table())  # creates the table
        if stream.peek() != "{":
            self._keys.append(f"{stream.value()!r:.40}")
        else:
            for key in stream.members():
                self._keys += [repr(key)] * (len(self._keys) < _MAX_KEYS)
                if key not in _PARTS or stream.peek() != "[":
                    stream.value()
                    continue
                if key in self._list_names:
                    raise stream.error(f"a second list {key!r} begins")
                self._list_names.add(key)
                for value in stream.elements():
                    if key == "categories":
                        self._add_category(value)
                        continue
                    self._add_row(key, value)
                    if key == "images" and isinstance(value, dict):
                        self._collect_fields(value)
                        yield value
        if stream.peek():
            raise stream.error("text follows the end of the value")
        self._flush()

    def check(self) -> list[Any]:
        """Returns the categories; raises `SourceError` if the json is not COCO instances json."""
        for part in _PARTS:
            if part not in self._list_names:
                keys = ", ".join(self._keys) or "{}"
                raise SourceError(
                    f"{self._path} is not COCO instances json: it must have a list {part!r}; it has {keys:.200}"
                )
        if not self._counts["images"]:
            raise SourceError(f"{self._path} has no image in 'images'")
        return self._categories

    def _add_category(self, category: Any) -> None:
        self._categories.append(category)
        self._categories_bytes += len(json.dumps(category))
        if self._categories_bytes > _MAX_CATEGORIES_BYTES:
            raise SourceError(
                f"{self._path} has at least {len(self._categories):,} categories, with over {_MAX_CATEGORIES_BYTES:,} "
                "bytes, which is the limit; remove the categories without annotations"
            )

    def _collect_fields(self, image: Mapping[str, Any]) -> None:
        self.fields |= self._columns & image.keys()
        if len(self.file_names) < _MAX_FILE_NAMES and isinstance(image.get(NAME), str):
            self.file_names.append(image[NAME])

    def _add_row(self, part: str, value: Any) -> None:
        image_id = value.get("id" if part == "images" else "image_id") if isinstance(value, dict) else None
        id_text = json.dumps(image_id) if is_id(image_id) else ""
        if len(id_text) > _MAX_ID:
            id_text = hashlib.sha256(id_text.encode()).hexdigest()
        rows = self._buffered_rows[part]
        rows.append((self._counts[part], id_text, *self._values.add(value)))
        self._counts[part] += 1
        if len(rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for part, rows in self._buffered_rows.items():
            if rows:
                columns = zip(zip(*rows, strict=True), _ROW_SCHEMA, strict=True)
                table = pa.table([pa.array(column, field.type) for column, field in columns], schema=_ROW_SCHEMA)
                self._database.add(part, table, create=False)
                rows.clear()


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


def _annotation_sort_key(annotation: Mapping[str, Any]) -> tuple[int, int, str]:
    """Returns the sort key of an annotation: first integer ids, then texts, then annotations without an id."""
    annotation_id = annotation.get("id")
    if not is_id(annotation_id):
        return 2, 0, ""
    return (0, annotation_id, "") if isinstance(annotation_id, int) else (1, 0, annotation_id)

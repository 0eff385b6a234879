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
_PROBES = 16  # images that are searched for, because any of them may be missing
_MAX_KEYS = 20  # of a json, in a message
_NO_FILE = "the annotations need a temporary file, which cannot be written"


def is_id(value: Any) -> TypeGuard[Id]:
    """Returns whether a value can be an id: an integer or text."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


_PARTS = ("images", "annotations", "categories")
_MEMORY_MB = 100  # of the database
_BATCH_ROWS = 1 << 13  # that are inserted together
_MAX_IMAGE_BYTES = 64 << 20  # of the annotations of an image
_MAX_CATEGORIES_BYTES = 32 << 20  # of all categories, which are in memory
_MAX_ID = 64  # characters; a longer one is compared by its digest
_ROWS = pa.schema({"number": pa.int64(), "id": pa.string(), "start": pa.int64(), "bytes": pa.int64()})

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
      database: tables `images` and `annotations`: number, id of the image, empty for none, and place in `values`.
      values: the images and annotations.
      resources: closes the database.
      names: category id -> class name.
      file_names: names of the first images.
      fields: columns that are fields of images.
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
        """Yields each image, its annotations in the order of their ids, and why the image cannot be used."""
        for _, rows in itertools.groupby(self._fetch(_IMAGES_AND_ANNOTATIONS), itemgetter(0)):
            yield self._read_image(rows)

    def orphans(self) -> Iterator[tuple[str, str]]:
        """Yields name and fault of each annotation without an image."""
        for number, *place in self._fetch(_ORPHANS):
            annotation = self.values.read(*place)
            image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
            name = repr(annotation.get("id")) if isinstance(annotation, dict) else f"number {number + 1}"
            yield f"{name:.40}", f"its image_id is {image_id!r:.40}; no image has that id"

    def _fetch(self, statement: str) -> Iterator[tuple[Any, ...]]:
        for batch in self.database.batches(statement):
            yield from zip(*batch.to_pydict().values(), strict=True)

    def _read_image(self, rows: Iterator[tuple[Any, ...]]) -> tuple[Any, list[dict[str, Any]], BadImage | None]:
        _, _, *place, is_first = next(rows)
        image = self.values.read(*place)
        if not is_first:
            detail = f"an earlier image has the id {image['id']!r}, too"
            return image, [], BadImage(RejectReason.DUPLICATE_KEY, detail)
        places = [place for _, _, *place, _ in rows]
        size = sum(size for _, size in places)
        if size > _MAX_IMAGE_BYTES:
            detail = f"its annotations have {size:,} bytes; {_MAX_IMAGE_BYTES:,} are allowed"
            return image, [], BadImage(RejectReason.BAD_ANNOTATION, detail)
        return image, sorted((self.values.read(*place) for place in places), key=_sort_key), None


class _Values:
    """Values of a json in a temporary file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def add(self, value: Any) -> tuple[int, int]:
        """Appends a value and returns its place.

        Raises:
          DiskError: the file cannot be written.
        """
        data = marshal.dumps(value)
        with temporary_errors(_NO_FILE):
            self._file.write(data)
        self._end += len(data)
        return self._end - len(data), len(data)

    def finish(self) -> None:
        """Ends writing; `read` may follow.

        Raises:
          DiskError: the file cannot be written.
        """
        with temporary_errors(_NO_FILE):
            self._file.flush()

    def read(self, start: int, size: int) -> Any:
        """Returns the value at a place."""
        # Bytes that this process made; JSON would be parsed a second time.
        return marshal.loads(os.pread(self._file.fileno(), size, start))  # noqa: S302


def load(path: str, columns: TableColumns, kind_of: Callable[[Any], type]) -> Document:
    """Reads a json into a database.

    Args:
      path: path of the json.
      columns: fields of its images.
      kind_of: see `row_reader.extra_kinds`.

    Raises:
      DiskError: there is no room for the temporary files.
      SourceError: the json cannot be read, or is none of COCO.
    """
    with contextlib.ExitStack() as resources:
        database = resources.enter_context(open_database("the annotations", _MEMORY_MB))
        values = _Values(resources.enter_context(open(os.path.join(database.spill, "values"), "w+b")))
        loader = _Loader(path, database, values, frozenset(columns.named().values()))
        with _open_json(path) as stream:
            images = loader.load(stream)
            kinds = extra_kinds(images, columns.extra, kind_of)
            for _ in images:  # without extra columns, none has been read
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
        self._found: list[str] = []  # keys of the json, or what it is instead of an object
        self._categories: list[Any] = []
        self._categories_bytes = 0
        self._lists: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._rows: dict[str, list[tuple[int, str, int, int]]] = {part: [] for part in _PARTS[:2]}

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
                if key in self._lists:
                    raise stream.error(f"a second list {key!r} begins")
                self._lists.add(key)
                for value in stream.elements():
                    if key == "categories":
                        self._add_category(value)
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

    def _add_category(self, category: Any) -> None:
        self._categories.append(category)
        self._categories_bytes += len(json.dumps(category))
        if self._categories_bytes > _MAX_CATEGORIES_BYTES:
            raise SourceError(
                f"{self._path} has {len(self._categories):,} categories or more, of over {_MAX_CATEGORIES_BYTES:,} "
                "bytes, which is the limit; remove those without annotations"
            )

    def _look_at(self, image: Mapping[str, Any]) -> None:
        self.fields |= self._columns & image.keys()
        if len(self.file_names) < _PROBES and isinstance(image.get(NAME), str):
            self.file_names.append(image[NAME])

    def _add(self, part: str, value: Any) -> None:
        image_id = value.get("id" if part == "images" else "image_id") if isinstance(value, dict) else None
        name = json.dumps(image_id) if is_id(image_id) else ""
        if len(name) > _MAX_ID:
            name = hashlib.sha256(name.encode()).hexdigest()
        rows = self._rows[part]
        rows.append((self._counts[part], name, *self._values.add(value)))
        self._counts[part] += 1
        if len(rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for part, rows in self._rows.items():
            if rows:
                columns = zip(zip(*rows, strict=True), _ROWS, strict=True)
                table = pa.table([pa.array(column, field.type) for column, field in columns], schema=_ROWS)
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


def _sort_key(annotation: Mapping[str, Any]) -> tuple[int, int, str]:
    name = annotation.get("id")
    if not is_id(name):
        return 2, 0, ""
    return (0, name, "") if isinstance(name, int) else (1, 0, name)

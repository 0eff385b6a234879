"""Converts rows (column -> cell) of tables and other sources to references, and limits the buckets that they may name.

The buckets are limited because a table may come from a stranger, while images are read with the user's credentials.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.dataset.schemas import fits_float32, is_whole
from beam_jobs.errors import BadImage, OptionError, SourceError
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import http_fetch
from beam_jobs.sources.base import MAX_NAME_BYTES, reference, regular_file, scan_reject
from beam_jobs.types import EXTRA_TYPES, Annotations, ExtraValue, ImageRef

# File systems that Beam reads with credentials. Others need no credentials, or are not supported.
_BUCKET = re.compile(r"(s3|gs|azfs|hdfs)://[^/]*", re.IGNORECASE)
_SHOWN_BUCKETS = 5
_SHOWN_CHARACTERS = 80


def parse_bucket(path: str) -> str:
    """Returns the bucket of a path, such as `s3://photos`; empty for a path that needs no credentials."""
    match = _BUCKET.match(path)
    return match[0].lower() if match else ""


def allowed_buckets(options: IngestOptions) -> frozenset[str]:
    """Returns the buckets that a table may name: its own, that of the output, and `allow_buckets`.

    Raises:
      OptionError: a value of `allow_buckets` is not a bucket.
    """
    for bucket in options.allow_buckets:
        if parse_bucket(bucket) != bucket.rstrip("/").lower() or bucket.endswith("://"):
            raise OptionError(f"allow_buckets holds {bucket!r}; write it as s3://NAME or gs://NAME")
    return frozenset(map(parse_bucket, (options.source, options.out, *options.allow_buckets))) - {""}


def refuse_other_buckets(
    entries: Iterable[ImageRef | Reject], table: str, buckets: Set[str]
) -> Iterator[ImageRef | Reject]:
    """Yields the entries of a table up to the first image or mask in another bucket.

    Args:
      entries: the entries of the table; no image has been read.
      table: path of the table.
      buckets: the buckets that the table may name, see `allowed_buckets`.

    Raises:
      SourceError: the table names other buckets; the message lists them.
    """
    other_buckets: set[str] = set()
    for entry in entries:
        if isinstance(entry, ImageRef):
            mask = entry.annotations.mask if entry.annotations else None
            other_buckets |= {parse_bucket(uri) for uri in (entry.uri, mask or "") if "://" in uri} - buckets - {""}
        if not other_buckets:
            yield entry
    if other_buckets:
        names = [strings.line(name[:_SHOWN_CHARACTERS]) for name in sorted(other_buckets)]
        raise SourceError(
            f"{table} names images in other buckets, which would be read with your credentials: "
            f"{strings.some(names, _SHOWN_BUCKETS)}; to allow that, give --allow-bucket {names[0]} "
            "(setting ingest.allow_buckets), once for each bucket"
        )


NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NUMBER_BYTES = 8
_MAX_FLOAT32 = 3.4028234e38  # a record holds numbers as float32
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowReader:
    """Converts rows to references.

    Paths are absolute or relative to `base`. The user provides them, so they may point anywhere; only local files are
    examined.

    Attributes:
      columns: column names by role.
      base: directory of relative paths.
      kinds: type of each extra column; see `extra_kinds`.
    """

    columns: TableColumns
    base: str
    kinds: Mapping[str, type] = field(default_factory=dict)

    def entry(self, row: Row, row_name: str, fault: str = "") -> ImageRef | Reject:
        """Returns the reference or the reject of a row.

        Args:
          row: column -> text, number, list or None.
          row_name: name of the row in errors, such as `line 7`.
          fault: fault of the complete row; empty when it has none.
        """
        columns = self.columns
        key, uri = row_name, ""
        try:
            uri = _cell_text(row, columns.image)
            key = http_fetch.remove_signature(_cell_text(row, columns.key) or uri or row_name)
            if fault:
                raise bad_annotation(fault)
            if not uri:
                raise BadImage(RejectReason.NOT_A_FILE, f"the cell of column {columns.image!r} is empty")
            return self._reference(row, key, uri)
        except BadImage as bad:
            detail = f"{row_name}: {bad.detail}"
            return scan_reject(key, http_fetch.remove_signature(uri) or row_name, bad.reason, detail)

    def _reference(self, row: Row, key: str, uri: str) -> ImageRef | Reject:
        columns = self.columns
        annotations = Annotations(
            labels=self._labels(row) if columns.labels else None,
            mask=self._mask(row) if columns.mask else None,
            weight=_weight(row, columns.weight) if columns.weight else None,
        )
        ref = ImageRef(
            key=key,
            uri=uri,
            label="" if columns.labels else _cell_text(row, columns.label),
            group=_cell_text(row, columns.group),
            split=_cell_text(row, columns.split),
            extra={
                name: self._extra_value(row, name, kind)
                for name, kind in self.kinds.items()
                if _has_value(row.get(name), kind)
            },
            annotations=None if annotations == Annotations() else annotations,
        )
        ref_or_reject = reference(self._path(uri), ref, label_kind=columns.label_kind)
        if annotations.mask is None or isinstance(ref_or_reject, Reject):
            return ref_or_reject
        # A changed mask has to be examined again like a changed image.
        return replace(ref_or_reject, mtime_ns=max(ref_or_reject.mtime_ns, self._mask_mtime_ns(annotations.mask)))

    def _labels(self, row: Row) -> tuple[str, ...]:
        value = row.get(self.columns.labels)
        cells = value.split(self.columns.label_separator) if isinstance(value, str) else value
        self._check_bytes(value, self.columns.labels)
        names = (_to_text(item, self.columns.labels) for item in (cells if isinstance(cells, list) else [cells]))
        return tuple(sorted({name for name in names if name}))

    def _mask(self, row: Row) -> str:
        uri = _cell_text(row, self.columns.mask)
        if not uri:
            raise bad_annotation(f"the cell of column {self.columns.mask!r} is empty")
        return uri

    def _mask_mtime_ns(self, uri: str) -> int:
        path = self._path(uri)
        if storage.is_remote(path):
            return 0
        try:
            return regular_file(path).st_mtime_ns
        except BadImage as bad:
            raise BadImage(bad.reason, f"mask {uri}: {bad.detail}") from bad
        except OSError:  # the examination reads the mask and reports the error
            return 0

    def _extra_value(self, row: Row, name: str, kind: type) -> ExtraValue:
        value = row[name]
        self._check_bytes(value, name)
        if isinstance(value, list):
            return [_convert(item, name, kind) for item in value]
        return _convert(value, name, kind)

    def _check_bytes(self, value: Any, column: str) -> None:
        """Raises `BadImage` when the cell of an extra column, or of labels, is longer than allowed."""
        items = value if isinstance(value, list) else [value]
        size = sum(len(item.encode("utf-8", "replace")) if isinstance(item, str) else _NUMBER_BYTES for item in items)
        if size > (limit := self.columns.max_value_bytes):
            raise bad_annotation(f"column {column!r} holds {size} bytes; {limit} are allowed (max_value_bytes)")

    def _path(self, uri: str) -> str:
        return uri if storage.is_remote(uri) else storage.join(self.base, uri)


def extra_kinds(rows: Iterable[Row], names: Iterable[str], kind_of: Callable[[Any], type]) -> dict[str, type]:
    """Returns extra column -> the narrowest of int, float and str that represents all its cells.

    A record holds a float as float32. So integers with a decimal point, such as `123456701.0`, are int when float32
    would change one of them, and a column of fractions and integers that float64 would change is str.

    Args:
      rows: all rows of the source; they are consumed.
      names: names of the extra columns.
      kind_of: function that returns the type of a cell that is not empty, such as `value_kind`.
    """
    columns = {name: _Column() for name in names}
    if not columns:
        return {}
    for row in rows:
        for name, column in columns.items():
            if not _is_empty(row.get(name)):
                column.add(row[name], kind_of(row[name]))
    return {name: column.narrowest for name, column in columns.items()}


@dataclass
class _Column:
    """The common type of the cells of an extra column, and whether int, float32 and float64 represent each one exactly.

    A cell of NaN, a missing number, only affects `kind`.
    """

    kind: type = int
    is_int: bool = True
    is_float32: bool = True
    is_float64: bool = True

    def add(self, value: Any, kind: type) -> None:
        self.kind = max(self.kind, kind, key=EXTRA_TYPES.index)
        if self.kind is str or _is_missing_number(value):
            return
        for item in value if isinstance(value, list) else [value]:
            number = kind(item) if isinstance(item, str) else item
            self.is_int = self.is_int and is_whole(number)
            self.is_float32 = self.is_float32 and fits_float32(number)
            self.is_float64 = self.is_float64 and (isinstance(number, float) or float(number) == number)

    @property
    def narrowest(self) -> type:
        if self.kind is not float or self.is_float32:
            return self.kind
        return int if self.is_int else float if self.is_float64 else str


def bad_annotation(detail: str) -> BadImage:
    """Returns the error of an image whose row or annotations cannot be used."""
    return BadImage(RejectReason.BAD_ANNOTATION, detail)


def value_kind(value: Any, path: str = "") -> type:
    """Returns the type of a value, int, float or str; for a list, the narrowest type for all items.

    Raises:
      SourceError: the value is not a number, a text or a list of these; the message begins with the path, if given.
    """
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return max((value_kind(item, path) for item in value), key=EXTRA_TYPES.index)
    if not isinstance(value, (bool, int, float, str)):
        prefix = f"{path}: " if path else ""
        raise SourceError(f"{prefix}an extra column holds {value!r:.60}; it must hold numbers, text or lists of these")
    if isinstance(value, (bool, int)):
        return int if -(1 << 63) <= value < 1 << 63 else str
    return float if isinstance(value, float) else str


def _cell_text(row: Row, column: str) -> str:
    return _to_text(row.get(column), column) if column else ""


def _to_text(value: Any, column: str) -> str:
    """Returns a value as text; empty for the missing values None and NaN."""
    if value is None or _is_missing_number(value):
        return ""
    if isinstance(value, (list, dict, tuple, bytes)):
        raise bad_annotation(f"column {column!r} holds {value!r:.60}; it must hold a single text or number")
    text = str(value).strip()
    # The length is checked first, because a small file can repeat a long text a million times.
    if len(text) > MAX_NAME_BYTES or len(_check_utf8(text, column).encode()) > MAX_NAME_BYTES:
        detail = f"column {column!r} holds {text[:60]!r}..., which has more than the {MAX_NAME_BYTES} bytes allowed"
        raise bad_annotation(detail)
    return text


def _check_utf8(text: str, column: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        detail = f"column {column!r} holds {text!r:.60}, which cannot be stored as UTF-8"
        raise BadImage(RejectReason.NAME_NOT_UTF8, detail) from error
    return text


def _weight(row: Row, column: str) -> float:
    value = row.get(column)
    number = value.strip() if isinstance(value, str) else value
    if isinstance(number, str) and NUMBER.fullmatch(number):
        number = float(number)
    # The range also excludes NaN, and numbers that would be infinite in a record.
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= _MAX_FLOAT32:
        raise bad_annotation(f"the weight is {value!r:.60}; it must be a finite number of at least 0")
    return float(number)


def _is_empty(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _is_missing_number(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _has_value(value: Any, kind: type) -> bool:
    """Returns whether a cell is stored in the record; in a column of int, NaN is a missing value."""
    return not (_is_empty(value) or (kind is int and _is_missing_number(value)))


def _convert(value: Any, column: str, kind: type) -> Any:
    try:
        stripped_value = value.strip() if isinstance(value, str) else value
        converted: Any = _to_int(stripped_value) if kind is int else kind(stripped_value)
    except (ValueError, OverflowError) as error:
        detail = f"column {column!r} holds {value!r:.60}, other cells hold {kind.__name__}; has the table changed?"
        raise bad_annotation(detail) from error
    return _check_utf8(converted, column) if kind is str else converted


def _to_int(value: Any) -> int:
    """Returns an integer, which may be written with a decimal point.

    Raises:
      ValueError: the value is not an integer.
    """
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdecimal() else float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not an integer")
    return int(value)

"""Existing TFRecord files of `tf.train.Example`, with an encoded image in each record.

A layout assigns features to roles such as image and label; the features are read as the cells of a row.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record, tfrecord
from beam_jobs.errors import BadImage, CorruptDataset, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import containers
from beam_jobs.sources.base import OnHidden, ignore, scan_reject
from beam_jobs.sources.containers import NO_FILES, Container, OpenContainer
from beam_jobs.sources.image_reader import EXAMPLE, Slice, decode_example
from beam_jobs.sources.row_reader import RowReader, bad_annotation
from beam_jobs.storage import decompress
from beam_jobs.types import ExtraValue, ImageRef

DEFAULTS = TableColumns()

# Internal columns, with names that no feature of a user has.
URI, SPLIT = "\0uri", "\0split"
_NO_CLASS = -1  # label of TFDS for an unknown class

Features = Mapping[str, list]
Observed = Mapping[str, type | None]  # feature -> type of its values; None for a feature that is always empty


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The roles of the features in the records of a source.

    Attributes:
      columns: feature names by role.
      kinds: type of each extra column.
      class_names: feature of class indices -> class names; empty names for classes without names.
    """

    columns: TableColumns
    kinds: Mapping[str, type] = field(default_factory=dict)
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def image(self, features: Features) -> bytes:
        """Returns the bytes of the image.

        Raises:
          BadImage: the feature has no image, or more than one.
        """
        name = self.columns.image
        values = features.get(name, [])
        if len(values) == 1 and isinstance(values[0], bytes):
            return values[0]
        kind = f" of {type(values[0]).__name__}" if values else ""
        detail = f"feature {name!r} holds {len(values)} values{kind}; it must hold the bytes of one image file"
        raise BadImage(RejectReason.BAD_MEMBER, detail)

    def row(self, features: Features, uri: str, split: str) -> dict[str, Any]:
        """Returns column -> cell for `RowReader`, without the image.

        Args:
          features: features of the record.
          uri: uri of the image.
          split: split of the file.

        Raises:
          BadImage: a feature has values of a wrong type, or an index without a class name.
        """
        names = set(self.columns.named().values()) - {self.columns.image, SPLIT}
        return {URI: uri, SPLIT: split} | {name: self._cell(features.get(name, []), name) for name in names}

    def _cell(self, values: list, name: str) -> Any:
        if name in self.class_names:
            values = [_class_name(value, name, self.class_names[name]) for value in values if value != _NO_CLASS]
        # Bytes that are not UTF-8 become surrogates, for which `RowReader` rejects the row.
        cells = [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in values]
        if cells and name in self.kinds and type(cells[0]) is not self.kinds[name]:
            kind, expected = type(cells[0]).__name__, self.kinds[name].__name__
            raise bad_annotation(f"feature {name!r} holds {kind}; in the first records it holds {expected}")
        if name == self.columns.labels:
            return [str(cell) for cell in cells]
        return cells if len(cells) > 1 else cells[0] if cells else None


def layout_of(
    path: str,
    columns: TableColumns,
    observed: Observed,
    *,
    is_file_split: bool,
    class_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Layout:
    """Returns the layout of a source; usual features of image records replace default columns that it does not have.

    Args:
      path: path of the source, for messages.
      columns: feature names by role.
      observed: features of the first records.
      is_file_split: whether an image has the split of its file, instead of a feature.
      class_names: see `Layout`.

    Raises:
      SourceError: a named feature is missing; the message lists the existing features.
    """
    image, label = columns.image, columns.label
    if image == DEFAULTS.image and image not in observed:
        image = record.ENCODED
    if not columns.labels and label == DEFAULTS.label and label not in observed:
        label = next((name for name in (record.TEXT, record.LABEL) if name in observed), label)
    key = columns.key or (record.FILENAME if record.FILENAME in observed else "")
    split = SPLIT if is_file_split else columns.split
    resolved = replace(columns, image=image, label=label, key=key, split=split)
    for role, name in resolved.named().items():
        if name not in observed and name != SPLIT:
            features = ", ".join(map(repr, sorted(observed))) or "none"
            raise SourceError(f"{path} has no feature {name!r} for the {role}; its first records have {features}")
    class_names = class_names or {}
    kinds: dict[str, type[ExtraValue]] = dict.fromkeys(columns.extra, str)  # texts and class names
    kinds |= {name: kind for name in kinds if not class_names.get(name) and (kind := observed[name]) in (int, float)}
    return Layout(columns=resolved, kinds=kinds, class_names=class_names)


def _class_name(value: Any, feature: str, class_names: tuple[str, ...]) -> Any:
    if not class_names:
        return value
    if not isinstance(value, int) or not 0 <= value < len(class_names):
        raise bad_annotation(f"feature {feature!r} holds {value!r:.60}; it has {len(class_names)} class names")
    return class_names[value]


_OBSERVED_RECORDS = 100  # first records; a named feature that none of them has is reported as missing
# Limits for a record in a compressed file; images hardly compress.
_PACKED_BYTES, _PACKED_RATIO = 32 << 20, 20


@dataclass(frozen=True, kw_only=True)
class ExampleFile:
    """A TFRecord file of a source.

    Attributes:
      container: the file.
      split: split that its directory or metadata name; empty for none.
      records: number of records that metadata declare; -1 when unknown.
    """

    container: Container
    split: str = ""
    records: int = -1


@dataclass(frozen=True)
class ExampleSource(ABC):
    """TFRecord files of `tf.train.Example`.

    Attributes:
      path: path or pattern of the files, or their directory.
      columns: feature names by role.
    """

    path: str
    columns: TableColumns

    @property
    @abstractmethod
    def base(self) -> str:
        """Directory that the names of files are relative to."""

    @abstractmethod
    def files(self, on_hidden: OnHidden = ignore) -> list[ExampleFile]:
        """Returns the files that are not hidden, in a fixed order; raises `SourceError` when there are no files."""

    @abstractmethod
    def layout(self, observed: Observed) -> Layout:
        """Returns the layout, given the features of the first records.

        Raises:
          SourceError: a named feature is missing.
        """

    @property
    def label_kind(self) -> str:
        """Kind of the labels, which the columns determine; one of `types.LABEL_KINDS`."""
        return self.columns.label_kind

    def check_for_workers(self) -> None:
        """See `containers.check_for_workers`."""
        containers.check_for_workers((file.container for file in self.files()), _detect_compression)

    def check(self) -> None:
        """Raises `SourceError` unless there is a record, and the first records have every named feature."""
        if self.columns.mask:
            raise SourceError(f"{self.path} holds records; masks need a table that lists image and mask")
        self._detect_layout(self.files())

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each record; every record is read once and its checksums are verified.

        Raises:
          SourceError: a file is missing, damaged or truncated; the message gives the offset.
        """
        files = self.files(on_hidden)
        layout = self._detect_layout(files)
        for file in files:
            yield from _entries(file, layout)

    def _detect_layout(self, files: list[ExampleFile]) -> Layout:
        observed: dict[str, type | None] = {}
        for features in itertools.islice(_read_features(files), _OBSERVED_RECORDS):
            for name, values in features.items():
                observed[name] = observed.get(name) or (type(values[0]) if values else None)
        if not observed:
            raise SourceError(f"{self.path} holds no record of tf.train.Example; it must hold one per image")
        return self.layout(observed)


def _read_features(files: Iterable[ExampleFile]) -> Iterator[Features]:
    for file in files:
        with _open_file(file) as handle:
            for _, payload in _payloads(file, handle):
                with contextlib.suppress(BadImage):
                    yield decode_example(payload)


def _entries(file: ExampleFile, layout: Layout) -> Iterator[ImageRef | Reject]:
    row_reader = RowReader(columns=replace(layout.columns, image=URI), base=NO_FILES, kinds=layout.kinds)
    with _open_file(file) as handle:
        for index, (offset, payload) in enumerate(_payloads(file, handle)):
            part = Slice(
                method=EXAMPLE,
                offset=offset + tfrecord.HEADER_BYTES,
                length=len(payload),
                path=file.container.name,
                feature=layout.columns.image,
                compression=handle.compression,
            )
            uri = f"{file.container.name}:{index}"
            try:
                features = decode_example(payload)
                size = len(layout.image(features))
                entry = row_reader.entry(layout.row(features, uri, file.split), uri)
            except BadImage as bad:
                entry = scan_reject(uri, uri, bad.reason, bad.detail)
            if isinstance(entry, ImageRef):
                entry = replace(entry, uri=uri, slice=part.text, bytes=size, mtime_ns=handle.mtime_ns)
            yield entry


def _open_file(file: ExampleFile) -> AbstractContextManager[OpenContainer]:
    return containers.open_container(file.container, _detect_compression(file.container))


def _payloads(file: ExampleFile, handle: OpenContainer) -> Iterator[tuple[int, bytes]]:
    """Yields offset and payload of the records of a file."""
    path, count = file.container.path, 0
    try:
        for offset, payload in tfrecord.read_records(handle.stream, path, _max_record_bytes(path, handle)):
            count += 1
            yield offset, payload
    except CorruptDataset as error:
        detail = str(error).partition(";")[0]
        raise SourceError(f"{detail}; it is damaged, or not a TFRecord file. Repair or remove it") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    if file.records not in (-1, count):
        raise SourceError(f"{path} has {count} records, but dataset_info.json has {file.records}; prepare it again")


def _max_record_bytes(path: str, handle: OpenContainer) -> int:
    """Returns the maximum size of a record, in bytes; a few compressed bytes may unpack to a huge record of zeros."""
    if not handle.compression:
        return tfrecord.MAX_RECORD_BYTES
    return min(tfrecord.MAX_RECORD_BYTES, _PACKED_BYTES + _PACKED_RATIO * storage.size(path))


def _detect_compression(container: Container) -> str:
    head = containers.read_head(container)
    compression = decompress.detect_compression(head) or (decompress.ZLIB if decompress.is_zlib(head) else "")
    if not compression:
        return ""
    # The length at the start of a record may look like a magic number; but then the checksum of the length is correct.
    with containers.open_container(container, "") as handle:
        try:
            next(tfrecord.read_records(handle.stream, container.path), None)
        except CorruptDataset:
            return compression
    return ""


_SPLIT_DIRECTORY = re.compile(r"(?:^|/)Split-([^/]+)/")  # of TFX `Examples`


class TfrecordSource(ExampleSource):
    """TFRecord files, plain or compressed by gzip or zlib: a file, all that match a pattern, or all below a directory.

    Below a directory, the files with `tfrecord` in their name are read, or all files when no name has it. Where the
    columns `image` and `label` are not features, the usual `image/encoded`, `image/class/text` and
    `image/class/label` are used; the key is `image/filename` if it is a feature, else `FILE:INDEX`. A split column
    `split` that is not a feature selects the `Split-NAME` directories of TFX.
    """

    @property
    def base(self) -> str:
        """Directory that the names of files are relative to."""
        return self.path if containers.is_directory(self.path) else containers.base_directory(self.path)

    def files(self, on_hidden: OnHidden = ignore) -> list[ExampleFile]:
        """See `ExampleSource`."""
        if containers.is_directory(self.path):
            files = containers.list_below(self.path, on_hidden)
            files = [container for container in files if "tfrecord" in container.name.lower()] or files
        else:
            files = containers.find(self.path, on_hidden)
        return [ExampleFile(container=container, split=_parse_split(container.name)) for container in files]

    def layout(self, observed: Observed) -> Layout:
        """See `ExampleSource`."""
        is_file_split = self.columns.split == "split" and "split" not in observed and any(f.split for f in self.files())
        return layout_of(self.path, self.columns, observed, is_file_split=is_file_split)


def _parse_split(name: str) -> str:
    match = _SPLIT_DIRECTORY.search(name)
    return match[1] if match else ""

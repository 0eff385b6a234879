"""References to the members of an archive: images in class folders, and samples in the layout of WebDataset.

A sample consists of consecutive members that share their name up to the first dot of the last part: `000.jpg`,
`000.cls`, `000.json`, `000.txt`. Its columns are the fields of the object in `.json`, and `cls` and `txt`, the text of
these files. The class is the label column; by default, this is `label`, else `cls`, else the first folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from beam_jobs.errors import BadImage
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources.base import MAX_NAME_BYTES, printable, scan_reject
from beam_jobs.sources.containers import NO_FILES
from beam_jobs.sources.image_reader import Slice
from beam_jobs.sources.row_reader import RowReader, bad_annotation
from beam_jobs.types import ImageRef

# The usual suffixes of the formats that `images.header_check.sniff` detects.
IMAGE_SUFFIXES = frozenset(["jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "dib", "tif", "tiff", "webp"])

MAX_SIDECAR_BYTES = 16 << 20  # largest file beside an image; enough for a `.json` with segmentations

# WebDataset samples have a few members. Files of class folders such as `cat/my.1.jpg` and `cat/my.2.jpg` look like a
# single sample of any length, which must not fill the memory.
_MAX_SAMPLE_MEMBERS = 1000

_DEFAULT_LABEL = TableColumns().label
_URI = "\0uri"  # no JSON of a user has a field of that name


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file of an archive.

    Attributes:
      name: path in the archive, with `/`.
      slice: byte range of its data.
      bytes: size that the archive declares, unpacked.
    """

    name: str
    slice: Slice
    bytes: int

    @property
    def stem(self) -> str:
        """The part of the name that the members of a sample share."""
        folder, slash, last = self.name.rpartition("/")
        return folder + slash + last.partition(".")[0]

    @property
    def suffix(self) -> str:
        """The part of the name after the stem and a dot, in lower case, such as `jpg` or `left.jpg`."""
        return self.name.rpartition("/")[2].partition(".")[2].lower()

    @property
    def is_image(self) -> bool:
        """Whether the suffix is that of an image."""
        return self.suffix.rpartition(".")[2] in IMAGE_SUFFIXES


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images that belong together, and their metadata.

    Attributes:
      images: the members that are images.
      row: field of the `.json` file, `cls` or `txt` -> value.
      fault: the fault of the metadata; empty when they are valid.
    """

    images: tuple[Member, ...]
    row: dict[str, Any]
    fault: str = ""


def clean_name(name: str) -> str:
    """Returns the name of a member without empty parts and `.`.

    Raises:
      BadImage: the name points outside the archive, is not UTF-8, or is longer than allowed.
    """
    if len(name) > MAX_NAME_BYTES:
        raise BadImage(RejectReason.BAD_MEMBER, f"its name has {len(name)} characters; {MAX_NAME_BYTES} are allowed")
    if printable(name) != name:
        raise BadImage(RejectReason.NAME_NOT_UTF8, "rename it; keys are stored as UTF-8")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts:
        raise BadImage(RejectReason.BAD_MEMBER, "its name is empty or points outside the archive")
    return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class SampleReader:
    """Converts the samples of an archive to references.

    Attributes:
      columns: the fields of `.json` files by role.
      kinds: type of each extra column; see `row_reader.extra_kinds`.
      prefix: prefix of the keys, before the names of members; empty for a source of one archive.
      mtime_ns: modification time of the archive, in nanoseconds since the epoch.
    """

    columns: TableColumns
    kinds: dict[str, type]
    prefix: str = ""
    mtime_ns: int = 0

    def entries(self, samples: Iterable[Sample | Reject]) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each image.

        Digests of the keys, about 100 bytes each, are stored to reject duplicates within the archive; planning rejects
        duplicates across archives.
        """
        reader = RowReader(columns=replace(self.columns, image=_URI), base=NO_FILES, kinds=self.kinds)
        key_digests: set[bytes] = set()
        for sample in samples:
            if isinstance(sample, Reject):
                yield replace(sample, key=self.prefix + sample.key, uri=self.prefix + sample.uri)
                continue
            for member in sample.images:
                yield self._entry(member, sample, reader, key_digests)

    def _entry(self, member: Member, sample: Sample, reader: RowReader, key_digests: set[bytes]) -> ImageRef | Reject:
        uri = self.prefix + member.name
        entry = reader.entry({**sample.row, _URI: uri}, member.name, sample.fault)
        if isinstance(entry, Reject):
            return entry
        digest = hashlib.blake2b(entry.key.encode(), digest_size=16).digest()
        if digest in key_digests:
            detail = f"the archive has {entry.key!r} twice; the first is used"
            return scan_reject(entry.key, uri, RejectReason.DUPLICATE_KEY, detail)
        key_digests.add(digest)
        return replace(entry, uri=uri, slice=member.slice.text, bytes=member.bytes, mtime_ns=self.mtime_ns)


def samples(
    members: Iterable[Member | Reject], columns: TableColumns, read: Callable[[Member], bytes]
) -> Iterator[Sample | Reject]:
    """Yields the samples of an archive, one in memory at a time, and a reject for each member without an image.

    Args:
      members: the members in the order of the archive; rejects are passed on.
      columns: the fields of `.json` files by role.
      read: function that returns the bytes of a member, or raises `BadImage`.
    """
    sample_members: list[Member] = []
    for member in members:
        if isinstance(member, Reject):
            yield member
            continue
        if sample_members and (member.stem != sample_members[0].stem or len(sample_members) == _MAX_SAMPLE_MEMBERS):
            yield from _sample_or_rejects(sample_members, columns, read)
            sample_members = []
        sample_members.append(member)
    if sample_members:
        yield from _sample_or_rejects(sample_members, columns, read)


def _sample_or_rejects(
    members: list[Member], columns: TableColumns, read: Callable[[Member], bytes]
) -> Iterator[Sample | Reject]:
    """Yields the sample of members with the same stem; without an image among them, a reject for each member."""
    images = tuple(member for member in members if member.is_image)
    if not images:
        detail = "its name has no image suffix, and no image shares the name"
        yield from (scan_reject(member.name, member.name, RejectReason.NOT_AN_IMAGE, detail) for member in members)
        return
    try:
        row = _read_row({member.suffix: member for member in reversed(members)}, columns, read)  # first of a suffix
    except BadImage as bad:
        yield Sample(images=images, row={}, fault=bad.detail)
        return
    if columns.label == _DEFAULT_LABEL and row.get(_DEFAULT_LABEL) in (None, ""):
        row[_DEFAULT_LABEL] = row.get("cls") or images[0].name.rpartition("/")[0].partition("/")[0]
    yield Sample(images=images, row=row)


def _read_row(members: Mapping[str, Member], columns: TableColumns, read: Callable[[Member], bytes]) -> dict[str, Any]:
    """Returns the row of a sample, given its members by suffix."""
    if len(members) == 1:
        return {}
    used_columns = set(columns.named().values()) - {columns.image}
    row = _parse_object(_read_text(members["json"], read)) if "json" in members and used_columns else {}
    if columns.label == _DEFAULT_LABEL:
        used_columns.add("cls")
    for name in ("cls", "txt"):
        if name in members and name in used_columns and name not in row:
            row[name] = _read_text(members[name], read)
    return row


def _parse_object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_annotation(f"its .json is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise bad_annotation(f"its .json holds {text[:40]!r}; it must hold one object")
    return values


def _read_text(sidecar: Member, read: Callable[[Member], bytes]) -> str:
    size = max(sidecar.bytes, sidecar.slice.length)
    if size > MAX_SIDECAR_BYTES:
        raise bad_annotation(f"its .{sidecar.suffix} has {size} bytes; {MAX_SIDECAR_BYTES} are allowed")
    try:
        return read(sidecar).decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise bad_annotation(f"its .{sidecar.suffix} is not UTF-8: {error}") from error

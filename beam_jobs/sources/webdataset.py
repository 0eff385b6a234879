"""Members of an archive made into references: images in class folders, and samples as WebDataset lays them out.

A sample is a run of members that share their name up to the first dot of the last part: `000.jpg`, `000.cls`,
`000.json`, `000.txt`. Columns are the fields of the object in its `.json`, and `cls` and `txt`, the text of those.
The class is in the label column; unless another one is named, in `label`, else in `cls`, else it is the first folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import TableColumns
from beam_jobs.sources.base import MAX_NAME_BYTES, printable, scan_reject
from beam_jobs.sources.containers import NO_FILES
from beam_jobs.sources.image_reader import Slice
from beam_jobs.sources.row_reader import RowReader
from beam_jobs.types import ImageRef, Reject

# What the sniffer of `images` knows, by the names such files go by.
IMAGE_SUFFIXES = frozenset(["jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "dib", "tif", "tiff", "webp"])

MAX_SIDECAR_BYTES = 16 << 20  # of a `.json` with outlines; the rest takes a few bytes

# WebDataset samples have a handful of members. In class folders `cat/my.1.jpg`, `cat/my.2.jpg` and so on look like one
# sample without end, which must not gather in memory.
_MAX_SAMPLE_MEMBERS = 1000

_DEFAULT_LABEL = TableColumns().label
_URI = "\0uri"  # no JSON of a user has a field of that name


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file of an archive.

    Attributes:
      name: in the archive, with `/`.
      place: where its bytes lie.
      bytes: its size, as the archive claims it.
    """

    name: str
    place: Slice
    bytes: int

    @property
    def stem(self) -> str:
        """What the members of a sample share."""
        folder, slash, last = self.name.rpartition("/")
        return folder + slash + last.partition(".")[0]

    @property
    def suffix(self) -> str:
        """What tells the members of a sample apart, in lower case, such as `jpg` or `left.jpg`."""
        return self.name.rpartition("/")[2].partition(".")[2].lower()

    @property
    def is_image(self) -> bool:
        """Whether its name says that it is an image."""
        return self.suffix.rpartition(".")[2] in IMAGE_SUFFIXES


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images that belong together and the facts about them.

    Attributes:
      images: the members that are images.
      row: column -> value.
      fault: what is wrong with these facts; empty when nothing is.
    """

    images: tuple[Member, ...]
    row: dict[str, Any]
    fault: str = ""


def clean_name(name: str) -> str:
    """Returns the name of a member without needless parts.

    Raises:
      BadImage: the name leads out of where the archive would be unpacked, is not UTF-8, or longer than allowed.
    """
    if len(name) > MAX_NAME_BYTES:
        raise BadImage(RejectReason.BAD_MEMBER, f"its name has {len(name)} characters; {MAX_NAME_BYTES} are allowed")
    if printable(name) != name:
        raise BadImage(RejectReason.NAME_NOT_UTF8, "rename it; keys are stored as UTF-8")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts:
        raise BadImage(RejectReason.BAD_MEMBER, "its name leads out of the archive, or nowhere")
    return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class SampleReader:
    """Turns the members of one archive into references.

    Attributes:
      columns: which field of a `.json` holds what.
      kinds: type of each extra column; see `rows.extra_kinds`.
      prefix: goes before the names of members to make keys; empty for a source of one archive.
      mtime_ns: modification time of the archive.
    """

    columns: TableColumns
    kinds: dict[str, type]
    prefix: str = ""
    mtime_ns: int = 0

    def entries(self, samples: Iterable[Sample | Reject]) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject an image.

        Digests of the keys, about 100 bytes each, are kept to find those that come again; the first is taken. Those of
        other archives are left to the plan.
        """
        rows = RowReader(columns=replace(self.columns, image=_URI), base=NO_FILES, kinds=self.kinds)
        seen: set[bytes] = set()
        for sample in samples:
            if isinstance(sample, Reject):
                yield replace(sample, key=self.prefix + sample.key, uri=self.prefix + sample.uri)
                continue
            for member in sample.images:
                yield self._entry(member, sample, rows, seen)

    def _entry(self, member: Member, sample: Sample, rows: RowReader, seen: set[bytes]) -> ImageRef | Reject:
        uri = self.prefix + member.name
        entry = rows.entry({**sample.row, _URI: uri}, member.name, sample.fault)
        if isinstance(entry, Reject):
            return entry
        digest = hashlib.blake2b(entry.key.encode(), digest_size=16).digest()
        if digest in seen:
            detail = f"{entry.key!r} is there a second time; the first is taken"
            return scan_reject(entry.key, uri, RejectReason.DUPLICATE_KEY, detail)
        seen.add(digest)
        return replace(entry, uri=uri, slice=member.place.text, bytes=member.bytes, mtime_ns=self.mtime_ns)


def samples(
    members: Iterable[Member | Reject], columns: TableColumns, read: Callable[[Member], bytes]
) -> Iterator[Sample | Reject]:
    """Yields the samples of an archive, one in memory at a time, and a reject for each member that is in none.

    Args:
      members: in the order of the archive; rejects pass through.
      columns: which field of a `.json` holds what.
      read: returns the bytes of a member; raises `BadImage` when it cannot.
    """
    run: list[Member] = []
    for member in members:
        if isinstance(member, Reject):
            yield member
            continue
        if run and (member.stem != run[0].stem or len(run) == _MAX_SAMPLE_MEMBERS):
            yield from _sample(run, columns, read)
            run = []
        run.append(member)
    if run:
        yield from _sample(run, columns, read)


def _sample(run: list[Member], columns: TableColumns, read: Callable[[Member], bytes]) -> Iterator[Sample | Reject]:
    images = tuple(member for member in run if member.is_image)
    if not images:
        detail = "its name has no image suffix, and no image shares the name"
        yield from (scan_reject(member.name, member.name, RejectReason.NOT_AN_IMAGE, detail) for member in run)
        return
    try:
        row = _row({member.suffix: member for member in reversed(run)}, columns, read)
    except BadImage as bad:
        yield Sample(images=images, row={}, fault=bad.detail)
        return
    if columns.label == _DEFAULT_LABEL and row.get(_DEFAULT_LABEL) in (None, ""):
        row[_DEFAULT_LABEL] = row.get("cls") or images[0].name.rpartition("/")[0].partition("/")[0]
    yield Sample(images=images, row=row)


def _row(sidecars: Mapping[str, Member], columns: TableColumns, read: Callable[[Member], bytes]) -> dict[str, Any]:
    """Returns what the sidecars say, by column."""
    if len(sidecars) == 1:
        return {}
    wanted = set(columns.named().values()) - {columns.image}
    row = _object(_text(sidecars["json"], read)) if "json" in sidecars and wanted else {}
    if columns.label == _DEFAULT_LABEL:
        wanted.add("cls")
    for name in ("cls", "txt"):
        if name in sidecars and name in wanted and name not in row:
            row[name] = _text(sidecars[name], read)
    return row


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadImage(RejectReason.BAD_ANNOTATION, f"its .json is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadImage(RejectReason.BAD_ANNOTATION, f"its .json holds {text[:40]!r}; it must hold one object")
    return values


def _text(sidecar: Member, read: Callable[[Member], bytes]) -> str:
    size = max(sidecar.bytes, sidecar.place.length)
    if size > MAX_SIDECAR_BYTES:
        detail = f"its .{sidecar.suffix} has {size} bytes; {MAX_SIDECAR_BYTES} are allowed"
        raise BadImage(RejectReason.BAD_ANNOTATION, detail)
    try:
        return read(sidecar).decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise BadImage(RejectReason.BAD_ANNOTATION, f"its .{sidecar.suffix} is not UTF-8: {error}") from error

"""Tar and zip archives, read without unpacking: the scan reads headers, a worker reads the byte range of an image."""

from __future__ import annotations

import bisect
import itertools
import stat
import struct
import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from beam_jobs.errors import BadImage, SourceError, os_errors_as
from beam_jobs.options import TableColumns
from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources import containers
from beam_jobs.sources.base import OnHidden, hidden_part, ignore, scan_reject
from beam_jobs.sources.containers import Container, OpenContainer
from beam_jobs.sources.image_reader import DEFLATE, STORED, Slice, inflate
from beam_jobs.sources.row_reader import extra_kinds, value_kind
from beam_jobs.sources.tar_headers import TarHeaders, TarMember
from beam_jobs.sources.webdataset import MAX_SIDECAR_BYTES, Member, Sample, SampleReader, clean_name, samples
from beam_jobs.storage import decompress
from beam_jobs.types import ImageRef

_CHECKED_SAMPLES = 100  # first samples; a named field that none of them has is reported as missing


@dataclass(frozen=True)
class _Archives(ABC):
    """An archive, or all archives that a pattern matches.

    The class of a member is the first folder of its name, unless `.cls` and `.json` files beside an image, as in
    WebDataset, define it. The key is the name of the member; with a pattern, the name of the archive precedes it.

    Attributes:
      path: an archive, or a pattern such as `shards/*.tar` or `shards/{000..012}.tar`; local or remote.
      columns: the fields of `.json` files by role; `txt` among the extra columns is the `.txt` file beside an image.
    """

    path: str
    columns: TableColumns

    @abstractmethod
    def _detect_compression(self, container: Container) -> str:
        """Returns the compression of an archive file; see `Slice.compression`."""

    @abstractmethod
    def _members(self, container: Container, handle: OpenContainer, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        """Yields each file that is not hidden, or its reject; raises `SourceError` when the archive is damaged."""

    @property
    def base(self) -> str:
        """Directory that the names of archives are relative to."""
        return containers.base_directory(self.path)

    @property
    def label_kind(self) -> str:
        """Kind of the labels, which the columns determine; one of `types.LABEL_KINDS`."""
        return self.columns.label_kind

    def check_for_workers(self) -> None:
        """See `containers.check_for_workers`."""
        containers.check_for_workers(containers.find(self.path), self._detect_compression)

    def check(self) -> None:
        """Raises `SourceError` unless the archives hold a usable image and the named fields; `label` may be missing."""
        if self.columns.mask:
            raise SourceError(f"{self.path} is an archive; masks need a table that lists image and mask")
        first_samples = itertools.islice(self._all_samples(), _CHECKED_SAMPLES)
        fields = {name for sample in first_samples if isinstance(sample, Sample) for name in sample.row}
        for role, column in self.columns.named().items():
            if role != "image" and (role, column) != ("label", "label") and column not in fields:
                names = ", ".join(map(repr, sorted(fields))) or "none"
                raise SourceError(f"{self.path} has no field {column!r} for the {role}; its first samples have {names}")
        entries = self._entries({})  # without extra columns: their values do not matter here
        first_entry = next(entries, None)
        if first_entry is None:
            raise SourceError(f"{self.path} is empty; it must hold images")
        if isinstance(first_entry, Reject) and not any(isinstance(entry, ImageRef) for entry in entries):
            example = f"the first is {first_entry.uri}: {first_entry.reason} ({first_entry.detail})"
            raise SourceError(f"{self.path} holds no usable image; {example}")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject for each image, and a reject for each other file that is not hidden.

        Raises:
          SourceError: an archive is missing, damaged or truncated; the message gives the offset.
        """
        yield from self._entries(self._extra_kinds(), on_hidden)

    def _entries(self, kinds: dict[str, type], on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields the entries; `kinds` is the type of each extra column."""
        has_prefix = containers.is_pattern(self.path)
        for container, handle in self._open_all(on_hidden):
            prefix = f"{container.name}/" if has_prefix else ""
            reader = SampleReader(columns=self.columns, kinds=kinds, prefix=prefix, mtime_ns=handle.mtime_ns)
            on_hidden_member = partial(_report_hidden, prefix, on_hidden)
            yield from reader.entries(self._read_samples(container, handle, on_hidden_member))

    def _open_all(self, on_hidden: OnHidden = ignore) -> Iterator[tuple[Container, OpenContainer]]:
        for container in containers.find(self.path, on_hidden):
            with containers.open_container(container, self._detect_compression(container)) as handle:
                yield container, handle

    def _all_samples(self) -> Iterator[Sample | Reject]:
        for container, handle in self._open_all():
            yield from self._read_samples(container, handle)

    def _read_samples(
        self, container: Container, handle: OpenContainer, on_hidden: OnHidden = ignore
    ) -> Iterator[Sample | Reject]:
        members = self._members(container, handle, on_hidden)
        with os_errors_as(SourceError, f"{container.path} cannot be read"):
            yield from samples(members, self.columns, partial(_read_sidecar, handle=handle))

    def _extra_kinds(self) -> dict[str, type]:
        rows = (sample.row for sample in self._all_samples() if isinstance(sample, Sample))
        try:
            return extra_kinds(rows, self.columns.extra, value_kind)
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from error


class TarSource(_Archives):
    """Tar archives. Each process decompresses a compressed archive once; see `decompress.decompressed_path`."""

    def _detect_compression(self, container: Container) -> str:
        return decompress.detect_compression(containers.read_head(container))

    def _members(self, container: Container, handle: OpenContainer, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        headers = TarHeaders(handle.stream)
        offset = 0
        while member := _next_tar_member(headers, offset, container, handle):
            offset = member.end
            if member.kind == tarfile.DIRTYPE:
                continue
            try:
                name = clean_name(member.name)
                if hidden_path := hidden_part(name.split("/")):
                    on_hidden(hidden_path)
                else:
                    yield _tar_member(member, name, container, handle)
            except BadImage as bad:
                yield scan_reject(member.name, member.name, bad.reason, bad.detail)
        _check_tar_end(offset, container, handle)


class ZipSource(_Archives):
    """Zip archives, also Zip64. The directory of an archive takes about 1 KB of memory per member."""

    def _detect_compression(self, container: Container) -> str:
        return ""

    def _members(self, container: Container, handle: OpenContainer, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        used_ranges: list[tuple[int, int]] = []
        for info in _zip_infos(container, handle):
            raw_name = _zip_name(info)
            if raw_name.endswith("/"):
                continue
            try:
                name = clean_name(raw_name)
                if hidden_path := hidden_part(name.split("/")):
                    on_hidden(hidden_path)
                else:
                    member = _zip_member(info, name, container, handle)
                    _check_overlap(info.header_offset, member.slice, used_ranges)
                    yield member
            except BadImage as bad:
                yield scan_reject(raw_name, raw_name, bad.reason, bad.detail)


def _report_hidden(prefix: str, on_hidden: OnHidden, path: str) -> None:
    on_hidden(prefix + path)


def _read_sidecar(member: Member, handle: OpenContainer) -> bytes:
    handle.stream.seek(member.slice.offset)
    data = handle.stream.read(member.slice.length)
    return inflate([data], MAX_SIDECAR_BYTES) if member.slice.method == DEFLATE else data


_BLOCK_BYTES = 1 << 20

# `zipfile` loads the directory, which takes ten times its size in memory. The limit allows five million members.
_MAX_ZIP_DIRECTORY_BYTES = 512 << 20

_ZIP_MEMBER_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_ZIP_END = struct.Struct("<10xH10x")  # record at the end of an archive: number of members
_ZIP64_COUNT = 0xFFFF  # the Zip64 record holds the actual number
_ZIP_SIGNATURE = b"PK\x03\x04"
_ZIP_UTF8, _ZIP_ENCRYPTED = 0x800, 0x1
_ZIP_METHODS = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATE}
_UNIX_SYSTEM = 3  # `create_system` of archives that were created on Unix


class _BoundedStream:
    """A stream for `zipfile`, which reads only headers from it, so a read above the limit means a forged size."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.seek = stream.seek
        self.tell = stream.tell
        self.seekable = stream.seekable

    def read(self, length: int | None = None) -> bytes:
        if length is not None and not 0 <= length <= self._limit:
            raise zipfile.BadZipFile(f"a header declares {length} bytes")
        return self._stream.read(self._limit if length is None else length)


def _next_tar_member(headers: TarHeaders, offset: int, container: Container, handle: OpenContainer) -> TarMember | None:
    """Returns the member whose headers start at an offset; None at the end of the archive or without a header."""
    try:
        member = headers.member(offset)
    except ValueError as error:
        raise SourceError(f"{container.path} is damaged at byte {offset}: {error}") from error
    if member is None:
        return None
    if member.size < 0:
        raise SourceError(f"{container.path} is damaged at byte {offset}: a member of {member.size} bytes")
    if member.end > member.data and member.data + member.size > handle.bytes:
        raise SourceError(
            f"{container.path} is truncated: it ends at byte {handle.bytes}, inside the member at byte {offset}"
        )
    return member


def _tar_member(member: TarMember, name: str, container: Container, handle: OpenContainer) -> Member:
    if member.is_sparse or member.kind not in tarfile.REGULAR_TYPES:
        raise BadImage(RejectReason.BAD_MEMBER, f"it is {_describe_tar_kind(member)}, not a regular file")
    part = Slice(
        method=STORED, offset=member.data, length=member.size, path=container.name, compression=handle.compression
    )
    return Member(name=name, slice=part, bytes=member.size)


def _describe_tar_kind(member: TarMember) -> str:
    if member.kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        return "a link"
    return "a sparse file" if member.is_sparse else "a device, a pipe or of unknown type"


def _check_tar_end(offset: int, container: Container, handle: OpenContainer) -> None:
    """Raises `SourceError` unless a valid end of the archive starts at the offset."""
    stream = handle.stream
    stream.seek(offset)
    block = stream.read(tarfile.BLOCKSIZE)
    if not offset and (len(block) < tarfile.BLOCKSIZE or any(block)):
        raise SourceError(
            f"{container.path} is not a tar archive, plain or compressed by gzip, bzip2 or xz: it starts with no header"
        )
    if len(block) < tarfile.BLOCKSIZE:
        raise SourceError(f"{container.path} is truncated: it ends at byte {handle.bytes} without an end mark")
    if any(block):
        raise SourceError(f"{container.path} is damaged at byte {offset}: no header of a member starts there")
    while block := stream.read(_BLOCK_BYTES):
        if any(block):
            raise SourceError(
                f"{container.path} has data after its end-of-archive marker at byte {offset}; split a file of several "
                "archives into separate files"
            )


def _zip_infos(container: Container, handle: OpenContainer) -> list[zipfile.ZipInfo]:
    try:
        bounded_stream: BinaryIO = _BoundedStream(handle.stream, _MAX_ZIP_DIRECTORY_BYTES)  # type: ignore[assignment]
        infos = zipfile.ZipFile(bounded_stream).infolist()
    # Forged directories raise exceptions of any type: struct errors, unknown versions, names that are not text.
    except Exception as error:
        raise SourceError(f"{container.path} is not a zip archive, or damaged: {error}") from error
    count = _zip_count(handle)
    if count not in (len(infos) & 0xFFFF, _ZIP64_COUNT):  # `zipfile` does not compare the counts
        raise SourceError(f"{container.path} is damaged: its directory has {len(infos)} members and declares {count}")
    return infos


def _zip_count(handle: OpenContainer) -> int:
    """Returns the number of members that the end of an archive declares, modulo 65536."""
    handle.stream.seek(max(0, handle.bytes - _ZIP_END.size - 0xFFFF))
    tail = handle.stream.read()
    return _ZIP_END.unpack_from(tail, tail.rindex(b"PK\5\6", 0, len(tail) - _ZIP_END.size + 4))[0]


def _zip_name(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ZIP_UTF8 or info.filename.isascii():
        return info.filename
    # Without the flag, `zipfile` decodes names as code page 437, but most archivers write the bytes of the file name.
    return info.filename.encode("cp437").decode("utf-8", "surrogateescape")


def _check_overlap(start: int, part: Slice, used_ranges: list[tuple[int, int]]) -> None:
    """Raises `BadImage` if a member shares bytes with an earlier one, as all members of a zip bomb do.

    Args:
      start: offset of the header of the member, in bytes.
      part: the data of the member.
      used_ranges: start and end of the earlier members, sorted; those of this member are added.
    """
    end = part.offset + part.length
    index = bisect.bisect_right(used_ranges, (start, end))
    if (index and used_ranges[index - 1][1] > start) or (index < len(used_ranges) and used_ranges[index][0] < end):
        raise BadImage(RejectReason.BAD_MEMBER, "it shares its bytes with another member")
    used_ranges.insert(index, (start, end))


def _zip_member(info: zipfile.ZipInfo, name: str, container: Container, handle: OpenContainer) -> Member:
    if info.flag_bits & _ZIP_ENCRYPTED:
        raise BadImage(RejectReason.BAD_MEMBER, "it is encrypted")
    mode = info.external_attr >> 16 if info.create_system == _UNIX_SYSTEM else 0  # the upper half is the mode
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise BadImage(RejectReason.BAD_MEMBER, "it is a link, a device or a pipe, not a file")
    if info.compress_type not in _ZIP_METHODS:
        detail = f"it is compressed by method {info.compress_type}; only stored and deflated members can be read"
        raise BadImage(RejectReason.BAD_MEMBER, detail)
    part = Slice(
        method=_ZIP_METHODS[info.compress_type],
        offset=_zip_data_offset(info, handle),
        length=info.compress_size,
        path=container.name,
    )
    return Member(name=name, slice=part, bytes=info.file_size)


def _zip_data_offset(info: zipfile.ZipInfo, handle: OpenContainer) -> int:
    """Returns the offset of the data of a member, which follow its header; raises `BadImage` if they are missing."""
    handle.stream.seek(info.header_offset)
    header = handle.stream.read(_ZIP_MEMBER_HEADER.size)
    if len(header) < _ZIP_MEMBER_HEADER.size or not header.startswith(_ZIP_SIGNATURE):
        raise BadImage(RejectReason.BAD_MEMBER, f"its header is missing at byte {info.header_offset}")
    _, name_length, extra_length = _ZIP_MEMBER_HEADER.unpack(header)
    offset = info.header_offset + _ZIP_MEMBER_HEADER.size + name_length + extra_length
    if offset + info.compress_size > handle.bytes:
        raise BadImage(RejectReason.BAD_MEMBER, f"it declares {info.compress_size} bytes from byte {offset} on")
    return offset

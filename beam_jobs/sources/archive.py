"""Tar and zip archives, read where they lie: a scan walks the headers, a worker reads the run of bytes of an image."""

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

from beam_jobs.errors import BadImage, RejectReason, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import containers
from beam_jobs.sources.base import OnHidden, hidden_part, ignore, scan_reject
from beam_jobs.sources.containers import Container, Opened
from beam_jobs.sources.image_reader import DEFLATE, STORED, Slice, inflate
from beam_jobs.sources.row_reader import extra_kinds, value_kind
from beam_jobs.sources.tar_headers import TarHeaders, TarMember
from beam_jobs.sources.webdataset import MAX_SIDECAR_BYTES, Member, Sample, SampleReader, clean_name, samples
from beam_jobs.storage import decompress
from beam_jobs.types import ImageRef, Reject

_CHECKED_SAMPLES = 100  # a field that none of the first so many has is taken for a misspelt one


@dataclass(frozen=True)
class _Archives(ABC):
    """One archive, or all that a pattern matches.

    A member in a folder has the first folder of its name for a class; `.cls` and `.json` files beside an image, as
    WebDataset writes them, say more and count for more. Keys are the names of the members; when a pattern is given,
    the name of the archive goes before them.

    Attributes:
      path: an archive, or a pattern such as `shards/*.tar` or `shards/{000..012}.tar`; local or remote.
      columns: which field of a `.json` holds what; `txt` among the extra columns is the `.txt` beside an image.
    """

    path: str
    columns: TableColumns

    @abstractmethod
    def _packing(self, container: Container) -> str:
        """Returns how an archive as a whole is compressed; see `Slice.packing`."""

    @abstractmethod
    def _members(self, container: Container, opened: Opened, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        """Yields the files of an archive that are not hidden; raises `SourceError` when it is damaged."""

    @property
    def base(self) -> str:
        """Directory that the names of archives are relative to."""
        return containers.base_of(self.path)

    @property
    def label_kind(self) -> str:
        """What the columns say of the class of an image."""
        return self.columns.label_kind

    def check(self) -> None:
        """Raises `SourceError` unless there is an image that can be used and every named field is somewhere."""
        if self.columns.mask:
            raise SourceError(f"{self.path} is an archive, which can name no mask; list image and mask in a table")
        first = itertools.islice(self._samples(), _CHECKED_SAMPLES)
        fields = {name for sample in first if isinstance(sample, Sample) for name in sample.row}
        for role, column in self.columns.named().items():
            if role != "image" and (role, column) != ("label", "label") and column not in fields:
                known = ", ".join(map(repr, sorted(fields))) or "none"
                raise SourceError(f"{self.path} has no {column!r} for the {role}; its first samples have {known}")
        entries = self._entries({})
        reject = next(entries, None)
        if reject is None:
            raise SourceError(f"{self.path} holds no file; it must hold images")
        if isinstance(reject, Reject) and not any(isinstance(entry, ImageRef) for entry in entries):
            what = f"the first is {reject.uri}: {reject.reason} ({reject.detail})"
            raise SourceError(f"{self.path} holds no image that can be used; {what}")

    def entries(self, on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject an image, and a reject for each other file that is not hidden.

        Raises:
          SourceError: an archive is missing, damaged or cut short, with the place.
        """
        yield from self._entries(self._extra_kinds(), on_hidden)

    def _entries(self, kinds: dict[str, type], on_hidden: OnHidden = ignore) -> Iterator[ImageRef | Reject]:
        many = containers.is_pattern(self.path)
        for container, opened in self._opened(on_hidden):
            prefix = f"{container.name}/" if many else ""
            reader = SampleReader(columns=self.columns, kinds=kinds, prefix=prefix, mtime_ns=opened.mtime_ns)
            inside = partial(_hidden_inside, prefix, on_hidden)
            yield from reader.entries(self._samples_of(container, opened, inside))

    def _opened(self, on_hidden: OnHidden = ignore) -> Iterator[tuple[Container, Opened]]:
        for container in containers.find(self.path, on_hidden):
            with containers.opened(container, self._packing(container)) as opened:
                yield container, opened

    def _samples(self) -> Iterator[Sample | Reject]:
        for container, opened in self._opened():
            yield from self._samples_of(container, opened)

    def _samples_of(
        self, container: Container, opened: Opened, on_hidden: OnHidden = ignore
    ) -> Iterator[Sample | Reject]:
        found = self._members(container, opened, on_hidden)
        try:
            yield from samples(found, self.columns, partial(_sidecar, opened=opened))
        except OSError as error:
            raise SourceError(f"{container.path} cannot be read: {error.strerror or error}") from error

    def _extra_kinds(self) -> dict[str, type]:
        rows = (sample.row for sample in self._samples() if isinstance(sample, Sample))
        try:
            return extra_kinds(rows, self.columns.extra, value_kind)
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from error


class TarSource(_Archives):
    """Tar archives. Compressed ones are unpacked into a temporary file first, once a process: `plain.plain_path`."""

    def _packing(self, container: Container) -> str:
        return decompress.packing_of(containers.head_of(container))

    def _members(self, container: Container, opened: Opened, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        return tar_members(container, opened, on_hidden)


class ZipSource(_Archives):
    """Zip archives, Zip64 too. The directory of one archive is kept in memory, about 1 KB a member."""

    def _packing(self, container: Container) -> str:
        return ""

    def _members(self, container: Container, opened: Opened, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        return zip_members(container, opened, on_hidden)


def _hidden_inside(prefix: str, on_hidden: OnHidden, path: str) -> None:
    on_hidden(prefix + path)


def _sidecar(member: Member, opened: Opened) -> bytes:
    opened.stream.seek(member.place.offset)
    data = opened.stream.read(member.place.length)
    return inflate([data], MAX_SIDECAR_BYTES) if member.place.method == DEFLATE else data


_BLOCK_BYTES = 1 << 20

# `zipfile` reads the directory at once, and holds ten times as much. This is one of five million members.
_MAX_ZIP_DIRECTORY_BYTES = 512 << 20

_ZIP_LOCAL = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_ZIP_END = struct.Struct("<10xH10x")  # number of members
_ZIP64_COUNT = 0xFFFF  # the true number stands elsewhere
_ZIP_SIGNATURE = b"PK\x03\x04"
_ZIP_UTF8, _ZIP_ENCRYPTED = 0x800, 0x1
_ZIP_METHODS = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATE}
_UNIX = 3


def tar_members(container: Container, opened: Opened, on_hidden: OnHidden = ignore) -> Iterator[Member | Reject]:
    """Yields the files of a tar archive that are not hidden, header by header.

    Raises:
      SourceError: it is no tar archive, damaged or cut short; the message gives the place.
    """
    headers = TarHeaders(opened.stream)
    place = 0
    while member := _next_tar_member(headers, place, container, opened):
        place = member.end
        if member.kind == tarfile.DIRTYPE:
            continue
        try:
            name = clean_name(member.name)
            if hidden := hidden_part(name.split("/")):
                on_hidden(hidden)
            else:
                yield _tar_member(member, name, container, opened)
        except BadImage as bad:
            yield scan_reject(member.name, member.name, bad.reason, bad.detail)
    _check_tar_end(place, container, opened)


def zip_members(container: Container, opened: Opened, on_hidden: OnHidden = ignore) -> Iterator[Member | Reject]:
    """Yields the files of a zip archive that are not hidden.

    `zipfile` holds the whole directory in memory, about 1 KB a member.

    Raises:
      SourceError: it is no zip archive, or its directory is damaged.
    """
    taken: list[tuple[int, int]] = []
    for info in _zip_infos(container, opened):
        written = _zip_name(info)
        if written.endswith("/"):
            continue
        try:
            name = clean_name(written)
            if hidden := hidden_part(name.split("/")):
                on_hidden(hidden)
            else:
                member = _zip_member(info, name, container, opened)
                _take_bytes(info.header_offset, member.place, taken)
                yield member
        except BadImage as bad:
            yield scan_reject(written, written, bad.reason, bad.detail)


class _Headers:
    """What `zipfile` reads through: it wants headers only, so a long read is a forged size."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.seek = stream.seek
        self.tell = stream.tell
        self.seekable = stream.seekable

    def read(self, length: int | None = None) -> bytes:
        if length is not None and not 0 <= length <= self._limit:
            raise zipfile.BadZipFile(f"a header claims {length} bytes")
        return self._stream.read(self._limit if length is None else length)


def _next_tar_member(headers: TarHeaders, place: int, container: Container, opened: Opened) -> TarMember | None:
    """Returns the member whose headers begin at a byte; None where no header does, which may be the end."""
    try:
        member = headers.member(place)
    except ValueError as error:
        raise SourceError(f"{container.path} is damaged at byte {place}: {error}") from error
    if member is None:
        return None
    if member.size < 0:
        raise SourceError(f"{container.path} is damaged at byte {place}: a member of {member.size} bytes")
    if member.end > member.data and member.data + member.size > opened.bytes:
        raise SourceError(
            f"{container.path} is cut short: it ends at byte {opened.bytes}, inside the member at byte {place}"
        )
    return member


def _tar_member(member: TarMember, name: str, container: Container, opened: Opened) -> Member:
    if member.is_sparse or member.kind not in tarfile.REGULAR_TYPES:
        raise BadImage(RejectReason.BAD_MEMBER, f"it is {_tar_kind(member)}, not a file with bytes of its own")
    place = Slice(method=STORED, offset=member.data, length=member.size, path=container.name, packing=opened.packing)
    return Member(name=name, place=place, bytes=member.size)


def _tar_kind(member: TarMember) -> str:
    if member.kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        return "a link"
    return "a sparse file" if member.is_sparse else "a device, a pipe or of unknown type"


def _check_tar_end(offset: int, container: Container, opened: Opened) -> None:
    """Raises `SourceError` unless the archive ends as it should, where no header of a member begins."""
    stream = opened.stream
    stream.seek(offset)
    block = stream.read(tarfile.BLOCKSIZE)
    if not offset and (len(block) < tarfile.BLOCKSIZE or any(block)):
        raise SourceError(f"{container.path} is no tar archive, plain or of gzip, bzip2 or xz: no header starts it")
    if len(block) < tarfile.BLOCKSIZE:
        raise SourceError(f"{container.path} is cut short: it ends at byte {opened.bytes} without an end mark")
    if any(block):
        raise SourceError(f"{container.path} is damaged at byte {offset}: no header of a member starts there")
    while block := stream.read(_BLOCK_BYTES):
        if any(block):
            raise SourceError(
                f"{container.path} goes on after its end mark at byte {offset}; several archives joined into one "
                "have to be given one by one"
            )


def _zip_infos(container: Container, opened: Opened) -> list[zipfile.ZipInfo]:
    try:
        directory: BinaryIO = _Headers(opened.stream, _MAX_ZIP_DIRECTORY_BYTES)  # type: ignore[assignment]
        infos = zipfile.ZipFile(directory).infolist()
    # Forged directories raise whatever their fields run into: struct errors, unknown versions, names that are not text.
    except Exception as error:
        raise SourceError(f"{container.path} is no zip archive, or damaged: {error}") from error
    claimed = _zip_count(opened)
    if claimed not in (len(infos) & 0xFFFF, _ZIP64_COUNT):  # zipfile takes what it finds
        raise SourceError(f"{container.path} is damaged: its directory has {len(infos)} members and claims {claimed}")
    return infos


def _zip_count(opened: Opened) -> int:
    """Returns how many members the end of an archive claims, modulo 65536."""
    opened.stream.seek(max(0, opened.bytes - _ZIP_END.size - 0xFFFF))
    tail = opened.stream.read()
    return _ZIP_END.unpack_from(tail, tail.rindex(b"PK\5\6", 0, len(tail) - _ZIP_END.size + 4))[0]


def _zip_name(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ZIP_UTF8 or info.filename.isascii():
        return info.filename
    # Without the flag zipfile reads code page 437, which few archivers meant; most wrote what their disk had.
    return info.filename.encode("cp437").decode("utf-8", "surrogateescape")


def _take_bytes(start: int, place: Slice, taken: list[tuple[int, int]]) -> None:
    """Refuses bytes that belong to a member before: a bomb of few bytes has each of its members unpack the same ones.

    Args:
      start: of the header of the member.
      place: of its bytes.
      taken: start and end of the members before, in order; this one is added.
    """
    end = place.offset + place.length
    index = bisect.bisect_right(taken, (start, end))
    if (index and taken[index - 1][1] > start) or (index < len(taken) and taken[index][0] < end):
        raise BadImage(RejectReason.BAD_MEMBER, "its bytes are those of another member, too")
    taken.insert(index, (start, end))


def _zip_member(info: zipfile.ZipInfo, name: str, container: Container, opened: Opened) -> Member:
    if info.flag_bits & _ZIP_ENCRYPTED:
        raise BadImage(RejectReason.BAD_MEMBER, "it is encrypted")
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise BadImage(RejectReason.BAD_MEMBER, "it is a link, a device or a pipe, not a file")
    if info.compress_type not in _ZIP_METHODS:
        detail = f"it is compressed by method {info.compress_type}; only stored and deflated members are read"
        raise BadImage(RejectReason.BAD_MEMBER, detail)
    place = Slice(
        method=_ZIP_METHODS[info.compress_type],
        offset=_zip_data_offset(info, opened),
        length=info.compress_size,
        path=container.name,
    )
    return Member(name=name, place=place, bytes=info.file_size)


def _zip_data_offset(info: zipfile.ZipInfo, opened: Opened) -> int:
    opened.stream.seek(info.header_offset)
    header = opened.stream.read(_ZIP_LOCAL.size)
    if len(header) < _ZIP_LOCAL.size or not header.startswith(_ZIP_SIGNATURE):
        raise BadImage(RejectReason.BAD_MEMBER, f"no member starts at byte {info.header_offset}, where it should")
    _, name_length, extra_length = _ZIP_LOCAL.unpack(header)
    offset = info.header_offset + _ZIP_LOCAL.size + name_length + extra_length
    if offset + info.compress_size > opened.bytes:
        raise BadImage(RejectReason.BAD_MEMBER, f"it claims {info.compress_size} bytes from byte {offset} on")
    return offset

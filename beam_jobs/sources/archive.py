"""Tar and zip archives, read where they lie: a scan walks the headers, a worker reads the run of bytes of an image."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import archive_members, containers
from beam_jobs.sources.byte_range import DEFLATE
from beam_jobs.sources.containers import Container, Opened
from beam_jobs.sources.hidden import OnHidden, ignore
from beam_jobs.sources.image_reader import inflate
from beam_jobs.sources.row_reader import extra_kinds, value_kind
from beam_jobs.sources.webdataset import MAX_SIDECAR_BYTES, Member, Sample, SampleReader, samples
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
        return archive_members.tar_members(container, opened, on_hidden)


class ZipSource(_Archives):
    """Zip archives, Zip64 too. The directory of one archive is held in memory, about 1 KB a member."""

    def _packing(self, container: Container) -> str:
        return ""

    def _members(self, container: Container, opened: Opened, on_hidden: OnHidden) -> Iterator[Member | Reject]:
        return archive_members.zip_members(container, opened, on_hidden)


def _hidden_inside(prefix: str, on_hidden: OnHidden, path: str) -> None:
    on_hidden(prefix + path)


def _sidecar(member: Member, opened: Opened) -> bytes:
    opened.stream.seek(member.place.offset)
    data = opened.stream.read(member.place.length)
    return inflate([data], MAX_SIDECAR_BYTES) if member.place.method == DEFLATE else data

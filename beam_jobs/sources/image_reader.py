"""Reading one image, wherever it lies: a file, local or remote, a web server, or a slice of a container.

A container is a tar or zip archive, a TFRecord file, or a spool of the ingest itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, RejectReason, Unreadable
from beam_jobs.options import HttpOptions
from beam_jobs.sources import http_fetch
from beam_jobs.storage import decompress

STORED = "stored"  # the bytes as they are
DEFLATE = "deflate"  # a compressed member of a zip archive
EXAMPLE = "example"  # a record of a TFRecord file; the image is a feature of it
SPOOL = "spool"  # bytes that the ingest keeps between its stages; the path is relative to the work directory
METHODS = (STORED, DEFLATE, EXAMPLE, SPOOL)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A run of bytes in a container.

    Attributes:
      method: how the bytes become an image, one of `METHODS`.
      offset: where the run begins, in bytes of the unpacked container.
      length: bytes of the run.
      path: of the container, absolute or relative to the source.
      feature: of `example`, the name of the feature that holds the image.
      packing: how the container as a whole is compressed, one of `plain.PACKINGS`; empty when it is not.
    """

    method: str
    offset: int
    length: int
    path: str
    feature: str = ""
    packing: str = ""

    @property
    def text(self) -> str:
        """The slice as one piece of text, for tables; `parse` takes it back."""
        how = f"{self.method}+{self.packing}" if self.packing else self.method
        return f"{how}:{self.offset}:{self.length}:{len(self.feature)}:{self.feature}{self.path}"

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Reads `text` back.

        Raises:
          ValueError: it is not the text of a slice.
        """
        how, offset, length, feature_length, rest = text.split(":", 4)
        method, _, packing = how.partition("+")
        if method not in METHODS:
            raise ValueError(f"{text!r:.80} is not the text of a slice")
        cut = int(feature_length)
        return cls(
            method=method,
            offset=int(offset),
            length=int(length),
            feature=rest[:cut],
            path=rest[cut:],
            packing=packing,
        )


_BLOCK_BYTES = 1 << 20  # compressed bytes in memory at a time; most members have fewer
_WAITING = 32  # threads for web servers and object stores: each answer takes tens of milliseconds, of no core of ours


class EndsEarly(OSError):
    """A file is shorter than what names a place in it."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads images; small and picklable, for every worker needs one.

    Attributes:
      base: what relative uris and the paths of slices are relative to.
      max_bytes: largest image, in bytes; one byte more is read of a larger one, so that the gate sees it.
      work: directory of the spools of the ingest.
      http: how images are fetched from web servers.
    """

    base: str
    max_bytes: int
    work: str = ""
    http: HttpOptions = field(default_factory=HttpOptions)

    def read(self, uri: str, slice_text: str = "") -> bytes:
        """Returns the bytes of an image, `max_bytes` + 1 of them at most.

        Args:
          uri: of the image.
          slice_text: `Slice.text` when it lies in a container.

        Raises:
          BadImage: there is no such image, or its container does not hold it.
          Unreadable: it may be there; see `storage.is_no_file`.
          SourceError: it lies in a compressed container that cannot be unpacked here; see `plain.plain_path`.
        """
        try:
            if slice_text:
                return self._read_slice(Slice.parse(slice_text))
            if http_fetch.is_url(uri):
                return http_fetch.fetch(uri, self.http, self.max_bytes + 1)
            return storage.read_range(_below(self.base, uri), 0, self.max_bytes + 1)
        except OSError as error:
            cause = error.strerror or str(error)
            if isinstance(error, EndsEarly) or storage.is_no_file(error):
                raise BadImage(RejectReason.UNREADABLE, cause) from error
            raise Unreadable(cause) from error

    def threads(self, rows: Iterable[Mapping[str, Any]], cores: int) -> int:
        """Returns how many threads should read images: as many as there are cores, or more to wait for servers.

        Args:
          rows: with the `uri` and `slice` of every image.
          cores: threads that compute.
        """
        return max(cores, _WAITING) if self.is_far(rows) else cores

    def is_far(self, rows: Iterable[Mapping[str, Any]]) -> bool:
        """Returns whether a server has to be waited for; see `threads`."""
        return any(self._is_far(row["uri"], row["slice"]) for row in rows)

    def _is_far(self, uri: str, slice_text: str) -> bool:
        if not slice_text:
            return http_fetch.is_url(uri) or storage.is_remote(_below(self.base, uri))
        return storage.is_remote(self._container(Slice.parse(slice_text)))

    def _container(self, piece: Slice) -> str:
        return _below(self.work if piece.method == SPOOL else self.base, piece.path)

    def _read_slice(self, piece: Slice) -> bytes:
        path = self._container(piece)
        if piece.packing:
            path = decompress.plain_path(path, piece.packing, fresh=False)
        limit = self.max_bytes + 1
        if piece.method == EXAMPLE:
            return _feature(read_at(path, piece.offset, piece.length), piece.feature)[:limit]
        if piece.method == DEFLATE:
            return inflate(_blocks(path, piece.offset, piece.length), limit)
        if piece.method == SPOOL:  # what was made of an image may be larger than what images may be
            return read_at(path, piece.offset, piece.length)
        return read_at(path, piece.offset, min(piece.length, limit))


def read_at(path: str, offset: int, length: int) -> bytes:
    """Returns a run of bytes of a file, local or remote.

    Raises:
      EndsEarly: it has no such bytes.
      OSError: it cannot be read.
    """
    data = storage.read_range(path, offset, length) if length else b""  # stores take an empty range for the whole
    if len(data) < length:
        # Without the path: the text is kept in `rejects.parquet`, which must not tell where the source lay.
        raise EndsEarly(f"it ends at {offset + len(data)}, {length} bytes from {offset} are wanted")
    return data


def inflate(blocks: Iterable[bytes], limit: int) -> bytes:
    """Returns what a raw deflate stream unpacks to, `limit` bytes of it at most; it may claim to hold anything.

    Raises:
      BadImage: it is damaged or ends too early.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    data = b""
    try:
        for block in blocks:
            data += inflater.decompress(block, limit - len(data))
            if inflater.eof or len(data) >= limit:
                return data
    except zlib.error as error:
        raise BadImage(RejectReason.BAD_MEMBER, f"the compressed member is damaged: {error}") from error
    raise BadImage(RejectReason.BAD_MEMBER, f"the compressed member is damaged: it ends after {len(data)} bytes")


def _blocks(path: str, offset: int, length: int) -> Iterator[bytes]:
    for start in range(0, length, _BLOCK_BYTES):
        yield read_at(path, offset + start, min(_BLOCK_BYTES, length - start))


def _below(base: str, path: str) -> str:
    return path if storage.is_remote(path) else storage.join(base, path)


def _feature(payload: bytes, name: str) -> bytes:
    from google.protobuf.message import DecodeError

    try:
        values = record.decode(payload).get(name)
    except DecodeError as error:
        raise BadImage(RejectReason.BAD_MEMBER, "the record is no tf.train.Example") from error
    if not values or not isinstance(values[0], bytes):
        raise BadImage(RejectReason.BAD_MEMBER, f"the record has no bytes under {name!r}")
    return values[0]

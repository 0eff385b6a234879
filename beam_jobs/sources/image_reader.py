"""Reading the bytes of an image from a file, local or remote, a web server, or a slice of a container.

A container is a tar or zip archive, a TFRecord file, or a temporary file of the ingest, its spool.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.sources import http_fetch
from beam_jobs.storage import decompress

STORED = "stored"  # bytes that are not compressed
DEFLATE = "deflate"  # a compressed member of a zip archive
EXAMPLE = "example"  # a record of a TFRecord file; one of its features holds the image
SPOOL = "spool"  # bytes in a file that the ingest writes between its stages; the path is relative to the work directory
METHODS = (STORED, DEFLATE, EXAMPLE, SPOOL)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A byte range of a container.

    Attributes:
      method: encoding of the image in the range, one of `METHODS`.
      offset: start of the range, in bytes of the unpacked container.
      length: size of the range, in bytes.
      path: path of the container, absolute or relative to the source.
      feature: name of the feature that holds the image, for `example`.
      compression: compression of the complete container, one of `decompress.COMPRESSIONS`; empty for none.
    """

    method: str
    offset: int
    length: int
    path: str
    feature: str = ""
    compression: str = ""

    @property
    def text(self) -> str:
        """The slice as text, for tables; `parse` is the inverse."""
        encoding = f"{self.method}+{self.compression}" if self.compression else self.method
        return f"{encoding}:{self.offset}:{self.length}:{len(self.feature)}:{self.feature}{self.path}"

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Returns the slice whose `text` is given.

        Raises:
          ValueError: `text` does not describe a slice.
        """
        encoding, offset, length, feature_length, feature_and_path = text.split(":", 4)
        method, _, compression = encoding.partition("+")
        if method not in METHODS:
            raise ValueError(f"{text!r:.80} is not the text of a slice")
        feature_end = int(feature_length)
        return cls(
            method=method,
            offset=int(offset),
            length=int(length),
            feature=feature_and_path[:feature_end],
            path=feature_and_path[feature_end:],
            compression=compression,
        )


_BLOCK_BYTES = 1 << 20  # compressed bytes in memory at a time; most members have fewer
_REMOTE_THREADS = 32  # for web servers and object stores: a response takes tens of milliseconds and no CPU time


class TruncatedFile(OSError):
    """A file ends before the end of the byte range to read."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads images; small and picklable, because every worker needs one.

    Attributes:
      base: directory of relative uris and of the paths of slices.
      max_bytes: largest image, in bytes; of a larger one, `max_bytes` + 1 bytes are read, so that it is rejected.
      work: work directory of the ingest, with its spools.
      http: options for web servers.
    """

    base: str
    max_bytes: int
    work: str = ""
    http: HttpOptions = field(default_factory=HttpOptions)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reader:
        """Returns the reader for values of `dataclasses.asdict`."""
        return cls(**{**values, "http": HttpOptions(**values["http"])})

    def read(self, uri: str, slice_text: str = "") -> bytes:
        """Returns the bytes of an image, at most `max_bytes` + 1.

        Args:
          uri: uri of the image.
          slice_text: `Slice.text` when the image lies in a container.

        Raises:
          BadImage: the image does not exist, or is not in its container.
          Unreadable: the image may exist and cannot be read; see `storage.is_no_file`.
          SourceError: the compressed container cannot be unpacked on this machine; see `decompress.decompressed_path`.
        """
        try:
            if slice_text:
                return self._read_slice(Slice.parse(slice_text))
            if http_fetch.is_url(uri):
                return http_fetch.fetch(uri, self.http, self.max_bytes + 1)
            return storage.read_start(_join(self.base, uri), self.max_bytes + 1)
        except OSError as error:
            cause = error.strerror or str(error)
            if isinstance(error, TruncatedFile) or storage.is_no_file(error):
                raise BadImage(RejectReason.UNREADABLE, cause) from error
            raise Unreadable(cause) from error

    def threads(self, places: Iterable[tuple[str, str]], cores: int) -> int:
        """Returns the number of threads to read images with: the number of cores, or more for images on servers.

        Args:
          places: `uri` and `slice` of each image.
          cores: number of CPU cores to use.
        """
        return max(cores, _REMOTE_THREADS) if any(storage.is_remote(self.path(*place)) for place in places) else cores

    def are_directly_readable(self, places: Iterable[tuple[str, str]]) -> bool:
        """Returns whether all images lie in local files, none of them a compressed container; see `threads`."""
        return not any(
            storage.is_remote(self.path(uri, text)) or (text and Slice.parse(text).compression) for uri, text in places
        )

    def path(self, uri: str, slice_text: str = "") -> str:
        """Returns the path or URL of the file that holds an image; for the arguments see `read`."""
        return self._container_path(Slice.parse(slice_text)) if slice_text else _join(self.base, uri)

    def _container_path(self, part: Slice) -> str:
        return _join(self.work if part.method == SPOOL else self.base, part.path)

    def _read_slice(self, part: Slice) -> bytes:
        path = self._container_path(part)
        if part.compression:
            path = decompress.decompressed_path(path, part.compression, check_for_changes=False)
        limit = self.max_bytes + 1
        if part.method == EXAMPLE:
            return _image_feature(read_at(path, part.offset, part.length), part.feature)[:limit]
        if part.method == DEFLATE:
            return inflate(_read_blocks(path, part.offset, part.length), limit)
        if part.method == SPOOL:  # a converted image may be larger than the limit for source images
            return read_at(path, part.offset, part.length)
        return read_at(path, part.offset, min(part.length, limit))


def read_at(path: str, offset: int, length: int) -> bytes:
    """Returns a byte range of a file, local or remote.

    Raises:
      TruncatedFile: the file ends before the end of the range.
      OSError: the file cannot be read.
    """
    data = storage.read_range(path, offset, length) if length else b""  # stores return the full file for an empty range
    if len(data) < length:
        # Without the path: the text is written to `rejects.parquet`, which must not contain the path of the source.
        raise TruncatedFile(f"it ends at byte {offset + len(data)}; {length} bytes from byte {offset} are needed")
    return data


def inflate(blocks: Iterable[bytes], limit: int) -> bytes:
    """Returns at most `limit` decompressed bytes of a raw deflate stream.

    Raises:
      BadImage: the stream is damaged or truncated.
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


def _read_blocks(path: str, offset: int, length: int) -> Iterator[bytes]:
    for start in range(0, length, _BLOCK_BYTES):
        yield read_at(path, offset + start, min(_BLOCK_BYTES, length - start))


def _join(base: str, path: str) -> str:
    return path if storage.is_remote(path) else storage.join(base, path)


def decode_example(payload: bytes) -> dict[str, list]:
    """Returns feature name -> values of a record.

    Raises:
      BadImage: the record is not a `tf.train.Example`.
    """
    from google.protobuf.message import DecodeError

    try:
        return record.decode(payload)
    except DecodeError as error:
        raise BadImage(RejectReason.BAD_MEMBER, "the record is not a tf.train.Example") from error


def _image_feature(payload: bytes, feature_name: str) -> bytes:
    values = decode_example(payload).get(feature_name)
    if not values or not isinstance(values[0], bytes):
        raise BadImage(RejectReason.BAD_MEMBER, f"the feature {feature_name!r} of the record holds no bytes")
    return values[0]

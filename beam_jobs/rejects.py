"""Rejects: images that are not in the dataset, each with the reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RejectReason(str, enum.Enum):
    """The reason why an image is not in the dataset. Values are stable: they are written to `rejects.parquet`.

    Examples:
      >>> from beam_jobs import RejectReason, load
      >>> [RejectReason(reason).name for reason in load("dataset").counts.rejects]
      ['NOT_AN_IMAGE']

    Attributes:
      NO_LABEL: it is in no class folder, or its label cell is empty.
      BAD_ANNOTATION: labels, boxes, segmentations or weights are invalid, or belong to another image.
      BAD_MASK: the class mask is missing, damaged, of another size, or contains colours or undeclared values instead
        of class indices.
      UNKNOWN_SPLIT: the split column names a split that is not among the splits of the options.
      NAME_NOT_UTF8: the name of the file is not UTF-8.
      DUPLICATE_KEY: another entry of the source has the same key.
      BAD_MEMBER: a member of an archive, or a record, cannot be read: encrypted, damaged, a link, outside the archive.
      NOT_A_FILE: it is a pipe, a socket, a device or a directory, or its cell in the table is empty.
      OUTSIDE_ROOT: it is a link to a path outside the source folder.
      UNREADABLE: it is missing; or it cannot be read and `unreadable` is `reject`: then the next run reads it again.
      NOT_FETCHED: the web server did not answer, or answered with an error; the next run fetches it again.
      ADDRESS_REFUSED: the host of the URL has a private address, or the scheme is not http or https.
      OPTED_OUT: the web server forbids its use in a dataset by the header `X-Robots-Tag`.
      EMPTY_FILE: it has 0 bytes.
      TOO_MANY_BYTES: it has more than `max_bytes`.
      NOT_AN_IMAGE: its first bytes are not those of JPEG, PNG, GIF, BMP, TIFF or WebP.
      BAD_HEADER: the header cannot be parsed, or has more tags, chunks or segments than the limit.
      TOO_SMALL: a side is shorter than `min_side_px`.
      TOO_LARGE: it has more than `max_pixels`, a side longer than `max_side_px`, or over 100 scans.
      BAD_ASPECT: the long side is more than `max_aspect` times the short one.
      FORGED_SIZE: it has fewer bytes than an image of the size in its header needs.
      UNKNOWN_RANGE: pixels are 32-bit, signed or floating-point, so the value of white is unknown.
      UNDECODABLE: the decoder cannot decode it: it is truncated or damaged.
      TOO_SLOW: decoding takes more computing time than `max_seconds`.
      DECODER_CRASHED: the decoder crashed three times, or exceeded its 2 GiB of memory.
    """

    NO_LABEL = "no_label"
    BAD_ANNOTATION = "bad_annotation"
    BAD_MASK = "bad_mask"
    UNKNOWN_SPLIT = "unknown_split"
    NAME_NOT_UTF8 = "name_not_utf8"
    DUPLICATE_KEY = "duplicate_key"
    BAD_MEMBER = "bad_member"
    NOT_A_FILE = "not_a_file"
    OUTSIDE_ROOT = "outside_root"
    UNREADABLE = "unreadable"
    NOT_FETCHED = "not_fetched"
    ADDRESS_REFUSED = "address_refused"
    OPTED_OUT = "opted_out"
    EMPTY_FILE = "empty_file"
    TOO_MANY_BYTES = "too_many_bytes"
    NOT_AN_IMAGE = "not_an_image"
    BAD_HEADER = "bad_header"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"
    BAD_ASPECT = "bad_aspect"
    FORGED_SIZE = "forged_size"
    UNKNOWN_RANGE = "unknown_range"
    UNDECODABLE = "undecodable"
    TOO_SLOW = "too_slow"
    DECODER_CRASHED = "decoder_crashed"


@dataclass(frozen=True, kw_only=True)
class Reject:
    """One image that is not in the dataset, and the reason.

    Attributes:
      key: identity of the image; printable even when the name is not UTF-8.
      uri: path or URL of the image.
      stage: stage that rejected the image: `scan`, `examine` or `plan`.
      reason: a `RejectReason` value.
      detail: the value and the exceeded limit.
      bytes: number of bytes read before the image was rejected.
    """

    key: str
    uri: str
    stage: str
    reason: str
    detail: str
    bytes: int = 0

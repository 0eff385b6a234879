"""The values that travel through the ingest, one class a stage: `ImageRef` -> `ImageFacts` | `Reject` -> `ImageRecord`.

All are frozen, small and picklable; only `ImageRecord` holds image bytes, and it never crosses a shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ExtraValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ImageRef:
    """Where one image is and what is said about it; about 100 bytes.

    Attributes:
      key: identity of the image for ever: the relative path, or the id column of a table.
      uri: where to read it.
      label: class name.
      group: images of one group stay in one split; empty for none.
      split: split demanded by the source; empty for the hash to decide.
      extra: user columns by name.
      bytes: file size seen by the scan, for resuming.
      mtime_ns: modification time seen by the scan, for resuming; never part of the output.
    """

    key: str
    uri: str
    label: str
    group: str = ""
    split: str = ""
    extra: Mapping[str, ExtraValue] = field(default_factory=dict)
    bytes: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What is known of an image after one decode. All of it describes the image as stored.

    Attributes:
      format: `jpeg` or `png`, the format of the stored bytes.
      source_format: format of the file that was read, such as `webp`.
      height: rows, in pixels.
      width: columns, in pixels.
      channels: channels of the stored file: 1 grey, 3 colour. The trainer always decodes 3.
      bytes: size of the stored bytes.
      sha256: of the stored bytes, hex.
      source_sha256: of the file that was read, hex; differs from `sha256` when the image was normalised.
      dhash: 64-bit perceptual hash as a signed int64.
      mean_rgb: mean of each channel, 0-255.
      var_rgb: population variance of each channel.
      normalised: why the image was re-encoded, reasons joined by `+`; empty when the bytes are untouched.
    """

    format: str
    source_format: str
    height: int
    width: int
    channels: int
    bytes: int
    sha256: str
    source_sha256: str
    dhash: int
    mean_rgb: tuple[float, float, float]
    var_rgb: tuple[float, float, float]
    normalised: str = ""


@dataclass(frozen=True, kw_only=True)
class Reject:
    """One image that is not in the dataset, and why.

    Attributes:
      key: identity of the image; printable even when the name is not UTF-8.
      uri: where it was read.
      stage: `scan`, `examine` or `plan`.
      reason: a `RejectReason` value.
      detail: the value found and the limit it crossed.
      bytes: bytes read before it was given up.
    """

    key: str
    uri: str
    stage: str
    reason: str
    detail: str
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image, ready to be written.

    Attributes:
      key: identity, also `image/filename`.
      uri: `image/source_uri`, relative to the source for local files.
      encoded: the stored JPEG or PNG bytes.
      facts: what is known of them.
      label: class index, 0-based.
      text: class name.
      extra: user columns by name.
    """

    key: str
    uri: str
    encoded: bytes
    facts: ImageFacts
    label: int
    text: str
    extra: Mapping[str, ExtraValue] = field(default_factory=dict)

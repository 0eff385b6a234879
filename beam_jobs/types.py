"""The values that travel through the ingest, one class a stage: `ImageRef` -> `ImageFacts` | `Reject` -> `ImageRecord`.

All are frozen, small and picklable; only `ImageRecord` holds image bytes, and it never crosses a shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Of a user column, narrowest first: each can hold what stands before it.
EXTRA_TYPES: tuple[type, ...] = (int, float, str)
ExtraValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]


# What a source says of the class of an image: one name, any number of names, or nothing.
LABEL_KINDS = {"single": "one label each", "multi": "any number of labels", "none": "no labels"}


@dataclass(frozen=True, kw_only=True)
class ImageObject:
    """One annotated object of an image.

    Attributes:
      label: class name.
      bbox: xmin, ymin, xmax, ymax in pixels of the upright image, as the source gives them.
      crowd: whether it stands for a group that was not taken apart.
      area: pixels, as the source gives it.
      segmentation: COCO polygons (lists of x, y, x, y, ...) or a run-length encoding; None for none.
    """

    label: str
    bbox: tuple[float, float, float, float]
    crowd: bool = False
    area: float = 0.0
    segmentation: Any = None


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The annotations of an image beyond one label. Every part is None when the source does not speak of it.

    Attributes:
      labels: class names of a multi-label image, sorted, each once.
      objects: annotated objects, in the order of the source.
      size: height and width in pixels that the objects refer to.
      mask: uri of a class mask, read like the image.
      weight: weight of the image in the loss, at least 0.
    """

    labels: tuple[str, ...] | None = None
    objects: tuple[ImageObject, ...] | None = None
    size: tuple[int, int] | None = None
    mask: str | None = None
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class ImageRef:
    """Where one image is, and the facts about it.

    Attributes:
      key: identity of the image for ever: the relative path, or the id column of a table.
      uri: where to read it; for a member of a container, what to call it.
      label: class name; empty unless images have exactly one.
      group: images of one group stay in one split; empty for none.
      split: split demanded by the source; empty for the hash to decide.
      extra: user columns by name.
      annotations: labels, objects, mask and weight; None for none of them.
      slice: where in which container it lies, `Slice.text`; empty for a file of its own.
      bytes: file size seen by the scan, for resuming.
      mtime_ns: modification time seen by the scan, for resuming; never part of the output.
    """

    key: str
    uri: str
    label: str
    group: str = ""
    split: str = ""
    extra: Mapping[str, ExtraValue] = field(default_factory=dict)
    annotations: Annotations | None = None
    slice: str = ""
    bytes: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What is known of an image after one decode. All of it describes the image as stored.

    Attributes:
      format: `jpeg`, `png` or `raw` (uint8 pixels, row by row), the format of the stored bytes.
      source_format: format of the file that was read, such as `webp`.
      height: rows, in pixels.
      width: columns, in pixels.
      source_height: rows of the upright source image; differs from `height` when it was resized.
      source_width: columns of it.
      channels: channels of the stored file: 1 grey, 3 colour. The trainer always decodes 3.
      bytes: size of the stored bytes.
      sha256: of the stored bytes, hex.
      source_sha256: of the file that was read, hex; differs from `sha256` when the image was normalised.
      crc32c: of the stored bytes; cheap enough to check that what is written is what was examined.
      dhash: 64-bit perceptual hash as a signed int64; when `facts` is `basic`, of a smaller decode.
      mean_rgb: mean of each channel, 0-255; zeros when `facts` is `basic`.
      var_rgb: population variance of each channel; zeros when `facts` is `basic`.
      normalised: why the image was re-encoded, reasons joined by `+`; empty when the bytes are untouched.
      mask_crc32c: of the stored mask; 0 without one.
    """

    format: str
    source_format: str
    height: int
    width: int
    source_height: int
    source_width: int
    channels: int
    bytes: int
    sha256: str
    source_sha256: str
    crc32c: int
    dhash: int
    mean_rgb: tuple[float, float, float]
    var_rgb: tuple[float, float, float]
    normalised: str = ""
    mask_crc32c: int = 0


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
class RecordObject:
    """One object as it is written.

    Attributes:
      label: class index, 0-based.
      text: class name.
      bbox: ymin, xmin, ymax, xmax as shares of height and width, 0-1.
      crowd: whether it stands for a group.
      area: pixels of the upright source image.
      mask: PNG of the size of the stored image, 0 outside and 1 inside; empty without a segmentation.
    """

    label: int
    text: str
    bbox: tuple[float, float, float, float]
    crowd: bool
    area: float
    mask: bytes = b""


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image, ready to be written.

    Attributes:
      key: identity, also `image/filename`.
      uri: `image/source_uri`, relative to the source for local files.
      encoded: the stored JPEG, PNG or raw bytes.
      facts: what is known of them.
      labels: class index, 0-based, and class name of each label, one for single-label images; None when the source has
        none.
      objects: annotated objects; None when the source has none.
      mask: PNG of class indices; empty without one.
      weight: weight in the loss; None when the source has none.
      extra: user columns by name.
    """

    key: str
    uri: str
    encoded: bytes
    facts: ImageFacts
    labels: tuple[tuple[int, str], ...] | None
    objects: tuple[RecordObject, ...] | None = None
    mask: bytes = b""
    weight: float | None = None
    extra: Mapping[str, ExtraValue] = field(default_factory=dict)

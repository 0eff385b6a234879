"""Values that the stages of the ingest exchange: `ImageRef` -> `ImageFacts` | `rejects.Reject` -> `ImageRecord`.

All are frozen, small and picklable; only `ImageRecord` has image bytes, and Beam never shuffles it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Types of the values of a user column; each can represent the values of the previous types.
EXTRA_TYPES: tuple[type, ...] = (int, float, str)
ExtraValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

# Kind of labels of a source -> its description.
LABEL_KINDS = {"single": "one label each", "multi": "any number of labels", "none": "no labels"}


@dataclass(frozen=True, kw_only=True)
class ImageObject:
    """One annotated object of an image.

    Attributes:
      label: class name.
      bbox: xmin, ymin, xmax, ymax in pixels of the upright image, as the source gives them.
      crowd: whether it is a group of objects annotated as one.
      area: area in pixels, as the source gives it.
      segmentation: COCO polygons (lists of x, y, x, y, ...) or a run-length encoding; None for none.
    """

    label: str
    bbox: tuple[float, float, float, float]
    crowd: bool = False
    area: float = 0.0
    segmentation: Any = None


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The annotations of an image besides a single label. An attribute is None when the source does not contain it.

    Attributes:
      labels: class names of a multi-label image, sorted, each once.
      objects: annotated objects, in the order of the source.
      size: height and width of the annotated image in pixels.
      mask: URI of a class mask, read like the image.
      weight: weight of the image in the loss, at least 0.
    """

    labels: tuple[str, ...] | None = None
    objects: tuple[ImageObject, ...] | None = None
    size: tuple[int, int] | None = None
    mask: str | None = None
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class ImageRef:
    """Location and labels of one image, from the scan.

    Attributes:
      key: permanent identity of the image: the relative path, or the id column of a table.
      uri: path or URL of the image; for a member of a container, its name in messages.
      label: class name; empty unless images have exactly one label.
      group: name of a group, whose images stay in one split; empty for none.
      split: name of the split in the source; empty if the hash decides.
      extra: user columns by name.
      annotations: labels, objects, mask and weight; None when the source has none of these.
      slice: position in a container, `Slice.text`; empty for a separate file.
      bytes: size of the file during the scan, for resuming.
      mtime_ns: modification time of the file during the scan, for resuming; never part of the output.
      checksum: checksum of an object from the listing of its store; empty without one. Never part of the output.
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
    checksum: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Facts about an image from one decode. They describe the stored image, unless the name begins with `source_`.

    Attributes:
      format: format of the stored bytes: `jpeg`, `png` or `raw` (uint8 pixels, row by row).
      source_format: format of the source file, such as `webp`.
      height: number of rows, in pixels.
      width: number of columns, in pixels.
      source_height: rows of the upright source image; differs from `height` when it was resized.
      source_width: columns of the upright source image.
      channels: channels of the stored file: 1 grey, 3 colour. The trainer always decodes to 3 channels.
      bytes: number of stored bytes.
      sha256: sha256 of the stored bytes, hex.
      source_sha256: sha256 of the source file, hex; differs from `sha256` when the image was normalised.
      crc32c: crc32c of the stored bytes, a fast check that the written image is the examined one.
      dhash: 64-bit perceptual hash as a signed int64; from a smaller decode when `facts` is `basic`.
      mean_rgb: mean of each channel, 0-255; zeros when `facts` is `basic`.
      var_rgb: population variance of each channel; zeros when `facts` is `basic`.
      normalised: reasons why the image was re-encoded, joined by `+`; empty when the bytes are those of the source.
      mask_crc32c: crc32c of the stored mask; 0 without a mask.
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
class RecordObject:
    """One annotated object of a record.

    Attributes:
      label: class index, 0-based.
      text: class name.
      bbox: ymin, xmin, ymax, xmax as fractions of height and width, 0-1.
      crowd: whether it is a group of objects annotated as one.
      area: area in pixels of the upright source image.
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
    """One image with the values of its record.

    Attributes:
      key: key of the image, the feature `image/filename`.
      uri: path or URL of the image, the feature `image/source_uri`; relative to the source for local files.
      encoded: the stored JPEG, PNG or raw bytes.
      facts: facts about the stored image.
      labels: class index, 0-based, and class name of each label, one for single-label images; None when the source has
        none.
      objects: annotated objects; None when the source has none.
      mask: PNG of class indices; empty without a mask.
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

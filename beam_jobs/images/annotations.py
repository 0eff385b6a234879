"""Annotated objects and class masks: checked against their image, then resized and cropped like it. Pure functions.

`check_annotations` rejects everything that `record_objects` cannot write, so every accepted image can be written. A
class mask is read from any lossless file of class indices and stored as a one-channel PNG. Its values are numbers, not
colours: this module never scales, blends, converts or interpolates them. It keeps every value, or rejects the mask.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from beam_jobs.errors import BadImage
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.header_check import UPRIGHT, Header, open_image, read_header
from beam_jobs.images.normalise import Geometry, upright_size
from beam_jobs.options import ImageLimits
from beam_jobs.rejects import RejectReason
from beam_jobs.types import Annotations, ImageObject, RecordObject

_MASK_FORMATS = ("png", "tiff", "bmp")
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of more than 8 bits
_GREY_FACTORS = {2: 85, 4: 17}  # bits per pixel of a grey PNG -> the factor by which Pillow multiplies its values
_TIFF_BITS, _TIFF_COMPRESSION, _TIFF_PHOTOMETRIC = 258, 259, 262  # TIFF 6.0
_TIFF_JPEG = (6, 7)
_TIFF_WHITE_IS_ZERO = 0
_WHITE = 255
_MAX_LISTED = 8
BINARY_OR_IGNORED = (
    "write 1 for 255 if these are binary masks, saved as black and white; give --mask-ignore 255 if it marks pixels to "
    "ignore"
)


def normalise_mask(data: bytes, geometry: Geometry, limits: ImageLimits) -> tuple[bytes, tuple[int, ...]]:
    """Checks a mask, resizes and crops it like its image, and encodes it for training. Deterministic.

    Args:
      data: a PNG, TIFF or BMP file of the size of the upright source image; the values of a palette image are indices.
      geometry: the resize and crop of the image.
      limits: the largest number of pixels, and the allowed class indices.

    Returns:
      an 8-bit PNG of one channel, of the size of the stored image, or `data` itself when it needs no change; and the
      class indices that occur in `data`, 0-255, ascending.

    Raises:
      BadImage: `data` is not a mask of this image; the reason is `BAD_MASK`.
    """
    try:
        header = _check_mask_header(data, geometry, limits.max_pixels)
        is_stored_form = _is_stored_form(header)
        # A mask that is stored unchanged must be readable by the trainer's own decoder.
        pixels = decode_checked(data)[..., 0] if is_stored_form else _decode_indices(data, header)
        values = _mask_values(pixels)
        _check_classes(values, limits)
    except BadImage as bad:
        raise BadImage(RejectReason.BAD_MASK, f"mask: {bad.detail}") from bad
    return data if is_stored_form and geometry.is_identity else encode_mask(transform_mask(pixels, geometry)), values


def transform_mask(pixels: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Returns a mask, resized by nearest-neighbour sampling and cropped like its image.

    Args:
      pixels: mask of the size `geometry.source`.
      geometry: the resize and crop of the image.

    Returns:
      mask of the size `geometry.stored`; `pixels` itself when the geometry changes nothing.
    """
    if geometry.is_identity:
        return pixels
    rows = _source_positions(geometry.source[0], geometry.resized[0], geometry.top, geometry.stored[0])
    columns = _source_positions(geometry.source[1], geometry.resized[1], geometry.left, geometry.stored[1])
    return pixels[rows[:, None], columns]


def encode_mask(pixels: np.ndarray) -> bytes:
    """Returns a mask as a PNG of one channel; equal masks give equal bytes.

    Args:
      pixels: uint8[height, width].
    """
    out = io.BytesIO()
    # A mask consists of runs of equal values: run-length coding is smaller than the default and a third faster.
    Image.fromarray(pixels).save(out, "PNG", compress_type=zlib.Z_RLE)
    return out.getvalue()


def _source_positions(source: int, resized: int, start: int, count: int) -> np.ndarray:
    """Returns the source pixel under the centre of each pixel, in integers: the result is the same on every machine."""
    return (2 * np.arange(start, start + count, dtype=np.int64) + 1) * source // (2 * resized)


def _check_mask_header(data: bytes, geometry: Geometry, max_pixels: int) -> Header:
    """Checks a mask by its header, before it is decoded, and returns the header."""
    header = read_header(data)
    if header.format not in _MASK_FORMATS:
        raise _bad_mask(
            f"it is a {header.format} file; masks are read from {', '.join(_MASK_FORMATS)}, which keep every value"
        )
    height, width = upright_size(header)
    if height * width > max_pixels:
        raise _bad_mask(f"{width}x{height} pixels; max_pixels is {max_pixels}")
    if (height, width) != geometry.source:
        raise _bad_mask(f"{width}x{height} pixels; the image has {geometry.source[1]}x{geometry.source[0]}")
    if header.frames > 1:
        raise _bad_mask(f"it has {header.frames} frames; it must have one")
    return header


def _mask_values(pixels: np.ndarray) -> tuple[int, ...]:
    has_value = np.zeros(256, bool)
    for row in pixels:  # indexing with all rows at once would take eight times the memory of the mask
        has_value[row] = True
    return tuple(np.flatnonzero(has_value).tolist())


def _check_classes(values: Sequence[int], limits: ImageLimits) -> None:
    if not limits.mask_classes:
        return
    undeclared = [value for value in values if value >= limits.mask_classes and value != limits.mask_ignore]
    if undeclared:
        examples = ", ".join(map(str, undeclared[:_MAX_LISTED])) + ", ..." * (len(undeclared) > _MAX_LISTED)
        advice = f"; {BINARY_OR_IGNORED}" if undeclared == [_WHITE] else ""
        raise _bad_mask(
            f"it contains {examples}; mask_classes {limits.mask_classes} allows 0 to {limits.mask_classes - 1}{advice}"
        )


def _is_stored_form(header: Header) -> bool:
    """Returns whether a mask can be stored unchanged: an upright 8-bit grey PNG without transparency."""
    properties = (header.format, header.mode, header.bit_depth, header.orientation)
    return properties == ("png", "L", 8, UPRIGHT) and not header.has_alpha


def _decode_indices(data: bytes, header: Header) -> np.ndarray:
    """Returns the values of a mask, uint8[height, width], upright and not converted."""
    try:
        with open_image(data, header.format) as image:
            if header.format == "tiff":
                _check_tiff(image)
            image.load()
            # The orientation in the header decides, because the sizes of mask and image were compared with it.
            upright = image if header.orientation == UPRIGHT else ImageOps.exif_transpose(image)
            values = np.asarray(upright)
    except BadImage:
        raise
    except Exception as error:  # Pillow's decoders raise exceptions of any type
        raise _bad_mask(f"the {header.format} file cannot be decoded: {error}") from error
    if values.ndim == 3:
        values = _one_channel(values, header)
    elif header.mode in _DEEP_MODES:
        _check_range(values)
    elif header.mode not in ("1", "L", "P"):
        raise _bad_mask(f"pixels of mode {header.mode}; masks hold class indices, integers from 0 to 255")
    elif header.mode == "L" and header.format == "png":
        values = values // _GREY_FACTORS.get(header.bit_depth, 1)
    return values.astype(np.uint8)


def _one_channel(values: np.ndarray, header: Header) -> np.ndarray:
    """Returns the class indices of a mask whose colour channels must all be equal."""
    colour_count, has_alpha = {"LA": (1, True), "RGB": (3, False), "RGBA": (3, True)}.get(header.mode, (0, False))
    if not colour_count or header.bit_depth == 16:
        raise _bad_mask(f"{header.bit_depth}-bit pixels of mode {header.mode}; masks hold class indices, not colours")
    if has_alpha and values[..., -1].min() < 255:
        raise _bad_mask(f"the least opaque pixel has alpha {values[..., -1].min()}; transparent pixels have no class")
    indices = values[..., 0]
    if not all(np.array_equal(indices, values[..., channel]) for channel in range(1, colour_count)):
        row, column = np.argwhere((values[..., :colour_count] != indices[..., None]).any(axis=-1))[0]
        colour = tuple(values[row, column, :colour_count].tolist())
        raise _bad_mask(f"row {row}, column {column} has the colour {colour}; masks hold class indices, not colours")
    return indices


def _check_range(values: np.ndarray) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 255:
        raise _bad_mask(f"values from {low} to {high}; class indices go from 0 to 255")


def _check_tiff(image: Image.Image) -> None:
    """Rejects files whose values Pillow would invert or scale, or that are compressed with loss."""
    tags = image.tag_v2  # type: ignore[attr-defined]
    if tags.get(_TIFF_COMPRESSION) in _TIFF_JPEG:
        raise _bad_mask("a tiff file with JPEG inside; masks must be stored without loss")
    if tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO:
        raise _bad_mask("a tiff file in which 0 means white, so its values are inverted; write it as PNG")
    bits = tags.get(_TIFF_BITS, (1,))[0]
    if bits not in (1, 8, 16, 32):
        raise _bad_mask(f"a tiff file of {bits} bits per pixel; write it as PNG")


def _bad_mask(detail: str) -> BadImage:
    return BadImage(RejectReason.BAD_MASK, detail)


_OUTSIDE_PX = 1.0  # tools disagree on whether a box includes its last pixel
_LEAST_SHARE = 1e-6  # smallest box side per image side; thinner boxes have no extent in float32 coordinates
_MAX_OUTLINE_PX = 1_000_000  # of a segmentation; rasterising takes about 100 bytes per pixel of outline
# Sums over an image. Its masks are rasterised when its record is written: on a busy machine, 1e9 pixels of masks take
# 15 s, and 1e6 pixels of outline 0.3 s. So an image stays below the minute that a decoder may take.
MAX_DRAWN_PX = 2_000_000_000
_MAX_OUTLINES_PX = 20_000_000
_MAX_NAMES_BYTES = 16 << 20
_COUNT_BITS = 40  # of the largest number in a compressed string; no image has 2**40 pixels

Box = tuple[float, float, float, float]
Size = tuple[int, int]


def check_annotations(annotations: Annotations, height: int, width: int) -> None:
    """Checks the annotations of an image against the image.

    Args:
      annotations: the annotations of the source.
      height: rows of the upright image, in pixels.
      width: columns of the upright image, in pixels.

    Raises:
      BadImage: the annotations contradict the image or exceed a limit; the reason is `BAD_ANNOTATION`.
    """
    size = (height, width)
    if annotations.size is not None and tuple(annotations.size) != size:
        expected = f"the annotations are for an image of {annotations.size[1]}x{annotations.size[0]} pixels"
        hint = " (its EXIF orientation rotates it)" if tuple(annotations.size)[::-1] == size else ""
        raise BadImage(RejectReason.BAD_ANNOTATION, f"{expected}; this image has {width}x{height}{hint}")
    objects = annotations.objects or ()
    if fault := _cost_fault(objects, size):
        raise BadImage(RejectReason.BAD_ANNOTATION, fault)
    for index, item in enumerate(objects):
        fault = box_fault(item.bbox, size) or _segmentation_fault(item.segmentation, size)
        if fault:
            raise BadImage(RejectReason.BAD_ANNOTATION, f"object {index} ({item.label}): {fault}")
    outlines_px = sum(_outlines_length(item.segmentation) for item in objects)
    if outlines_px > _MAX_OUTLINES_PX:
        detail = f"the outlines of its objects are {outlines_px:.0f} pixels long; {_MAX_OUTLINES_PX} are allowed"
        raise BadImage(RejectReason.BAD_ANNOTATION, detail)


def _cost_fault(objects: Sequence[ImageObject], size: Size) -> str:
    """Returns the fault if all objects of an image together exceed a limit; else an empty text."""
    segmentation_count = sum(bool(item.segmentation) for item in objects)
    drawn_px = segmentation_count * size[0] * size[1]
    if drawn_px > MAX_DRAWN_PX:
        return (
            f"{segmentation_count} segmentations of {size[1]}x{size[0]} pixels are {drawn_px} pixels of masks; "
            f"{MAX_DRAWN_PX} are allowed"
        )
    name_bytes = sum(len(item.label.encode()) for item in objects)
    if name_bytes > _MAX_NAMES_BYTES:
        return f"the class names of {len(objects)} objects have {name_bytes} bytes; {_MAX_NAMES_BYTES} are allowed"
    return ""


def box_fault(bbox: Box, size: Size | None) -> str:
    """Returns the fault of a box, with the value and the limit; empty when the box is valid.

    Args:
      bbox: xmin, ymin, xmax, ymax in pixels.
      size: height and width of the image, in pixels; None when it is unknown.
    """
    xmin, ymin, xmax, ymax = bbox
    description = f"the box from ({xmin:g}, {ymin:g}) to ({xmax:g}, {ymax:g})"
    if not all(map(math.isfinite, bbox)):
        return f"{description} is not finite"
    if xmax <= xmin or ymax <= ymin:
        return f"{description} has no area"
    if size is None:
        return ""
    height, width = size
    outside = max(-xmin, -ymin, xmax - width, ymax - height)
    if outside > _OUTSIDE_PX:
        return f"{description} exceeds the image of {width}x{height} pixels by {outside:g}; {_OUTSIDE_PX:g} is allowed"
    left, top, right, bottom = _clip_box(bbox, size)
    if right - left < width * _LEAST_SHARE or bottom - top < height * _LEAST_SHARE:
        return f"{description} has no area inside the image of {width}x{height} pixels"
    return ""


def record_objects(
    annotations: Annotations, geometry: Geometry, indices: Mapping[str, int]
) -> tuple[RecordObject, ...]:
    """Returns the objects of an image for its record, in the order of the source.

    Boxes are clipped to the stored image; an object whose box is completely outside a crop is omitted. Segmentations
    are rasterised at the size of the source, then resized by nearest-neighbour sampling and cropped like the image.

    Args:
      annotations: annotations that `check_annotations` accepts.
      geometry: the resize and crop of the image.
      indices: class name -> class index.

    Raises:
      KeyError: a class name has no index.
    """
    objects_with_boxes = ((item, _transform_box(item.bbox, geometry)) for item in annotations.objects or ())
    return tuple(
        RecordObject(
            label=indices[item.label],
            text=item.label,
            bbox=box,
            crowd=item.crowd,
            area=item.area,
            mask=_object_mask(item, geometry),
        )
        for item, box in objects_with_boxes
        if box is not None
    )


def _transform_box(bbox: Box, geometry: Geometry) -> Box | None:
    """Returns ymin, xmin, ymax, xmax relative to the stored image, 0-1; None when the box lies outside of it."""
    left, top, right, bottom = _clip_box(bbox, geometry.source)
    ymin, ymax = (_relative_position(value, 0, geometry.top, geometry) for value in (top, bottom))
    xmin, xmax = (_relative_position(value, 1, geometry.left, geometry) for value in (left, right))
    # Half the limit of `check_annotations`, so that an accepted box is omitted only by a crop, never by rounding.
    return None if min(ymax - ymin, xmax - xmin) < _LEAST_SHARE / 2 else (ymin, xmin, ymax, xmax)


def _relative_position(value: float, axis: int, start: int, geometry: Geometry) -> float:
    stored_value = value * geometry.resized[axis] / geometry.source[axis] - start
    return min(max(stored_value / geometry.stored[axis], 0.0), 1.0)


def _clip_box(bbox: Box, size: Size) -> Box:
    xmin, ymin, xmax, ymax = bbox
    return max(xmin, 0.0), max(ymin, 0.0), min(xmax, size[1]), min(ymax, size[0])


def _object_mask(item: ImageObject, geometry: Geometry) -> bytes:
    if not item.segmentation:
        return b""
    return encode_mask(transform_mask(_rasterise(item.segmentation, geometry.source), geometry))


def _rasterise(segmentation: Any, size: Size) -> np.ndarray:
    """Returns a segmentation as uint8[height, width]: 1 inside, 0 outside."""
    if isinstance(segmentation, Mapping):
        counts = list(_run_lengths(segmentation["counts"]))
        values = (np.arange(len(counts)) & 1).astype(np.uint8)  # 0, 1, 0, 1, ...
        return np.repeat(values, counts).reshape(size[1], size[0]).T  # runs go down the columns
    from pycocotools import mask as coco_mask

    outlines = coco_mask.frPyObjects([list(map(float, outline)) for outline in segmentation], *size)
    return coco_mask.decode(coco_mask.merge(outlines))


def _segmentation_fault(segmentation: Any, size: Size) -> str:
    """Returns the fault of a segmentation; empty when the segmentation is valid or missing."""
    if not segmentation:
        return ""
    if isinstance(segmentation, Mapping):
        return _runs_fault(segmentation, size)
    if not isinstance(segmentation, Sequence) or isinstance(segmentation, str):
        return f"the segmentation is {segmentation!r:.40}; it must be polygons or a run-length encoding"
    faults = (_outline_fault(outline, size) for outline in segmentation)
    fault = next(filter(None, faults), "")
    if fault:
        return fault
    length = _outlines_length(segmentation)
    if length > _MAX_OUTLINE_PX:
        return f"the outlines are {length:.0f} pixels long; {_MAX_OUTLINE_PX} are allowed"
    return ""


def _outline_fault(outline: Any, size: Size) -> str:
    if not isinstance(outline, Sequence) or isinstance(outline, str):
        return f"a polygon is {outline!r:.40}; it must be a list of x, y, x, y, ..."
    if len(outline) < 6 or len(outline) % 2:
        return f"a polygon has {len(outline)} numbers; it must have at least three pairs of x and y"
    for position, value in enumerate(outline):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"a polygon holds {value!r:.40}; it must hold numbers"
        side = size[1 - position % 2]
        if not -_OUTSIDE_PX <= value <= side + _OUTSIDE_PX:  # NaN is in no range
            return f"a polygon has {'xy'[position % 2]} = {value!r:.40}; it must be from -1 to {side + 1}"
    return ""


def _outlines_length(segmentation: Any) -> float:
    """Returns the length of the outlines of a segmentation, in pixels; 0 when it has none."""
    return 0.0 if not segmentation or isinstance(segmentation, Mapping) else sum(map(_outline_length, segmentation))


def _outline_length(outline: Sequence[float]) -> float:
    points = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())  # a line has max(|dx|, |dy|) pixels


def _runs_fault(segmentation: Mapping[str, Any], size: Size) -> str:
    height, width = size
    encoded_size = segmentation.get("size")
    if not isinstance(encoded_size, Sequence) or list(encoded_size) != [height, width]:
        return f"the run-length encoding is of size {encoded_size!r:.40}; the image has {[height, width]}"
    total = 0
    try:
        for count in _run_lengths(segmentation.get("counts")):
            total += count
            if count < 0 or total > height * width:
                return f"the run-length encoding has a run of {count} up to pixel {total} of {height * width}"
    except (TypeError, ValueError) as error:
        return f"the run-length encoding cannot be read: {error}"
    # The decoder of pycocotools would fill the missing pixels with uninitialised memory.
    return "" if total == height * width else f"the runs cover {total} pixels; the image has {height * width}"


def _run_lengths(counts: Any) -> Iterator[int]:
    """Yields the lengths of alternating runs of zeros and ones, zeros first, from a list or a compressed string.

    A character of the string encodes six bits, counted from `0`: five bits of a number, lowest first, and one that is
    set when the number continues. From the fourth number on, the string contains the difference to the number two
    positions earlier. Source: `rleFrString` of the COCO API.

    Raises:
      TypeError: `counts` is neither a list of integers nor a string.
      ValueError: the string cannot be decompressed.
    """
    if isinstance(counts, (list, tuple)):
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int):
                raise TypeError(f"a run of {count!r:.40}; it must be an integer")
            yield count
        return
    if not isinstance(counts, str):
        raise TypeError(f"its counts are {counts!r:.40}; they must be a list or a string")
    yield from _decompress_run_lengths(counts)


def _decompress_run_lengths(text: str) -> Iterator[int]:
    previous = [0, 0]
    value = shift = count = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{character!r} is not allowed in a compressed string")
        value |= (bits & 31) << shift
        shift += 5
        if shift > _COUNT_BITS:
            raise ValueError(f"it has a number of more than {_COUNT_BITS} bits")
        if bits & 32:  # the number continues
            continue
        if bits & 16:  # the number is negative
            value -= 1 << shift
        value += previous[0] if count > 2 else 0
        previous = [previous[1], value]
        count += 1
        yield value
        value = shift = 0
    if shift:
        raise ValueError("it ends in the middle of a number")

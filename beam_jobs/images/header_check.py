"""The header of an image, and the check whether the image may be decoded. Pure functions.

Hostile files attack decoders, so the header is read and checked first.
"""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from beam_jobs.errors import BadImage
from beam_jobs.images import header_formats
from beam_jobs.images.header_formats import UPRIGHT, Header, bad_header
from beam_jobs.options import PILLOW_MAX_PIXELS, ImageLimits
from beam_jobs.rejects import RejectReason

__all__ = ["UPRIGHT", "Header", "check_header", "open_image", "read_header", "sniff"]

# Magic bytes, name of the format here, its name in Pillow. Any other file is rejected before a parser reads it.
_MAGIC = (
    (b"\xff\xd8\xff", "jpeg", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "png", "PNG"),
    (b"GIF87a", "gif", "GIF"),
    (b"GIF89a", "gif", "GIF"),
    (b"BM", "bmp", "BMP"),
    (b"II*\x00", "tiff", "TIFF"),
    (b"MM\x00*", "tiff", "TIFF"),
    (b"RIFF", "webp", "WEBP"),
)
# Offset, magic bytes and name of formats that are recognised, but not supported; phones write HEIC.
_UNSUPPORTED = (
    (4, b"ftyphei", "HEIC"),
    (4, b"ftyphev", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypavif", "AVIF"),
    (0, b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (0, b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"%PDF-", "PDF"),
    (0, b"<svg", "SVG"),
)
_PILLOW_NAME = {name: pillow_name for _, name, pillow_name in _MAGIC}

# A baseline JPEG needs at least two bits (DC and EOB code) for each 8x8 block: fewer bytes prove a false header.
_JPEG_MIN_BYTES_PER_PIXEL = 1 / 256
_DEFLATE_MAX_RATIO = 1032  # zlib technical notes, "maximum compression factor"
_MAX_SCANS = 100  # encoders write a dozen; a scan of ten bytes costs a pass over all pixels
_ANIMATED_WEBP_FACTOR = 3  # Pillow takes four canvases of four bytes per pixel, three times the memory of other images

_TIFF_ORIENTATION, _TIFF_BITS, _TIFF_SAMPLE_FORMAT = 274, 258, 339
_SIGNED = 2  # value of the sample format


def sniff(data: bytes) -> str:
    """Returns the format that the magic bytes identify.

    Raises:
      BadImage: the file is empty or of no supported format.
    """
    if not data:
        raise BadImage(RejectReason.EMPTY_FILE, "the file has 0 bytes")
    for magic, name, _ in _MAGIC:
        if data.startswith(magic) and (name != "webp" or data[8:12] == b"WEBP"):
            return name
    supported = ", ".join(_PILLOW_NAME)
    if unsupported := next((name for offset, magic, name in _UNSUPPORTED if data.startswith(magic, offset)), ""):
        detail = f"it is {unsupported}, which is not supported; convert it to one of {supported}"
        raise BadImage(RejectReason.NOT_AN_IMAGE, detail)
    raise BadImage(RejectReason.NOT_AN_IMAGE, f"it starts with {data[:8]!r}; supported formats are {supported}")


def check_header(data: bytes, limits: ImageLimits) -> Header:
    """Checks an image by its header, without decoding it, and returns the header.

    Raises:
      BadImage: the format is unknown, the header is broken, or a limit is exceeded.
    """
    if len(data) > limits.max_bytes:
        raise BadImage(RejectReason.TOO_MANY_BYTES, f"{len(data)} bytes; max_bytes is {limits.max_bytes}")
    header = read_header(data)
    size_text = f"{header.width}x{header.height} pixels"
    _check_size(header, size_text, limits)
    if header.scans > _MAX_SCANS:
        raise BadImage(RejectReason.TOO_LARGE, f"{size_text} in {header.scans} scans; {_MAX_SCANS} are allowed")
    if header.mode == "F" or (header.mode == "I" and header.format != "png"):
        raise BadImage(RejectReason.UNKNOWN_RANGE, f"pixels of mode {header.mode}: the value of white is unknown")
    if len(data) < _min_bytes(header):
        raise BadImage(RejectReason.FORGED_SIZE, f"{size_text} cannot fit in {len(data)} bytes of {header.format}")
    return header


def _check_size(header: Header, size_text: str, limits: ImageLimits) -> None:
    short, long = sorted((header.height, header.width))
    if short < limits.min_side_px:
        raise BadImage(RejectReason.TOO_SMALL, f"{size_text}; min_side_px is {limits.min_side_px}")
    if long > limits.max_side_px or short * long > limits.max_pixels:
        detail = f"{size_text}; max_side_px is {limits.max_side_px}, max_pixels is {limits.max_pixels}"
        raise BadImage(RejectReason.TOO_LARGE, detail)
    max_animated_pixels = limits.max_pixels // _ANIMATED_WEBP_FACTOR
    if header.format == "webp" and header.frames > 1 and short * long > max_animated_pixels:
        detail = f"{size_text} of an animated webp; {max_animated_pixels}, a third of max_pixels, are allowed"
        raise BadImage(RejectReason.TOO_LARGE, detail)
    if long > short * limits.max_aspect:
        raise BadImage(RejectReason.BAD_ASPECT, f"{size_text}; max_aspect is {limits.max_aspect:g}")


def read_header(data: bytes) -> Header:
    """Returns the header of an image, in time and memory bounded by the file size; Pillow reads all but JPEG and PNG.

    Raises:
      BadImage: the format is unknown or the header is broken.
    """
    format_name = sniff(data)
    if format_name == "jpeg":
        return header_formats.read_jpeg(data)
    if format_name == "png":
        return header_formats.read_png(data)
    try:
        return _pillow_header(data, format_name)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(RejectReason.TOO_LARGE, str(error)) from error
    except BadImage:
        raise
    except UnidentifiedImageError as error:  # its text contains a memory address, which differs in every run
        raise bad_header(format_name, "the header cannot be parsed") from error
    # Pillow's parsers raise exceptions of any type on broken headers, SyntaxError included.
    except Exception as error:
        raise bad_header(format_name, str(error)) from error


def open_image(data: bytes, format_name: str) -> Image.Image:
    """Opens an image with Pillow, restricted to the parser of the format that the magic bytes identify."""
    return Image.open(io.BytesIO(data), formats=(_PILLOW_NAME[format_name],))


def _pillow_header(data: bytes, format_name: str) -> Header:
    if format_name == "tiff":
        header_formats.check_tiff(data)
    if format_name == "webp":
        header_formats.check_webp(data, PILLOW_MAX_PIXELS)
    is_animated = format_name == "gif" and header_formats.is_animated_gif(data)
    with open_image(data, format_name) as image:
        if format_name == "tiff":
            return _tiff_header(image)
        exif = image.info.get("exif", b"").removeprefix(header_formats.EXIF_PREFIX)
        return Header(
            format=format_name,
            height=image.height,
            width=image.width,
            mode=image.mode,
            # Pillow would read all tags; in a hostile file, each tag can declare a value as long as the file.
            orientation=header_formats.exif_orientation(exif),
            frames=2 if is_animated else 1 if format_name == "gif" else getattr(image, "n_frames", 1),
            has_alpha=image.mode == "RGBA" or "transparency" in image.info,
        )


def _tiff_header(image: Image.Image) -> Header:
    tags = image.tag_v2  # type: ignore[attr-defined]
    orientation = tags.get(_TIFF_ORIENTATION)
    orientation = orientation if orientation in range(1, 9) else UPRIGHT
    # Pillow rotates a TIFF itself and reports the size after the rotation.
    height, width = (image.width, image.height) if orientation >= 5 else (image.height, image.width)
    is_signed = _SIGNED in tags.get(_TIFF_SAMPLE_FORMAT, ())
    return Header(
        format="tiff",
        height=height,
        width=width,
        mode="I" if is_signed else image.mode,
        orientation=orientation,
        frames=2 if image.is_animated else 1,  # type: ignore[attr-defined]
        has_alpha=image.mode in ("RGBA", "LA", "PA"),
        bit_depth=max(tags.get(_TIFF_BITS, (1,))),
    )


def _min_bytes(header: Header) -> float:
    pixels = header.height * header.width
    if header.format == "jpeg" and not header.progressive:
        return pixels * _JPEG_MIN_BYTES_PER_PIXEL
    if header.format == "png":
        return pixels * header.bit_depth / 8 / _DEFLATE_MAX_RATIO
    return 0

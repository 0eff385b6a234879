"""One image at a time: bytes -> checked, upright, trainer-readable bytes and what is known of them. Pure functions.

The order matters. The header is read and judged first, because decoding is what a hostile file wants; then the image is
normalised if the trainer's decoder could not read it or would read it wrongly; then what will be stored is
decoded once with that very decoder, so that no accepted record can fail in training.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.options import ImageLimits
from beam_jobs.types import ImageFacts

if TYPE_CHECKING:
    import tensorflow as tf

# Magic bytes -> (our name, Pillow's name). Anything else is refused before a parser sees it.
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
_PILLOW_NAME = {ours: theirs for _, ours, theirs in _MAGIC}
STORED_FORMATS = ("jpeg", "png")  # what the trainer's decoder reads on every code path
_LOSSY = ("jpeg", "webp")  # re-encoding these as PNG would multiply their size for nothing

# A baseline JPEG spends at least two bits (DC and EOB code) on each 8x8 block: fewer bytes prove a lying header.
_JPEG_MIN_BYTES_PER_PIXEL = 1 / 256
_DEFLATE_MAX_RATIO = 1032  # zlib technical notes, "maximum compression factor"

Triple = tuple[float, float, float]

_JPEG_QUALITY = 95  # of re-encoded images; with 4:4:4 chroma the loss stays under what training can see
_ORIENTATION_TAG = 0x0112
_UPRIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the first bytes of an image promise.

    Attributes:
      format: one of `jpeg png gif bmp tiff webp`, from the magic bytes.
      height: rows, in pixels, as stored (before EXIF rotation).
      width: columns, in pixels.
      mode: Pillow mode, such as `RGB`, `CMYK` or `P`.
      orientation: EXIF orientation, 1-8; 1 is upright.
      frames: 1 unless animated.
      has_alpha: whether some pixels may be transparent.
      bit_depth: bits a channel.
      progressive: whether a JPEG is progressive.
    """

    format: str
    height: int
    width: int
    mode: str
    orientation: int = _UPRIGHT
    frames: int = 1
    has_alpha: bool = False
    bit_depth: int = 8
    progressive: bool = False


def examine(data: bytes, limits: ImageLimits) -> tuple[bytes, ImageFacts]:
    """Checks, normalises and measures one image. Deterministic.

    Args:
      data: the file as read.
      limits: what an image may be.

    Returns:
      the bytes to store (`data` itself when it conforms) and the facts about them.

    Raises:
      BadImage: it cannot be used; the reason says why.
    """
    header = gate(data, limits)
    reasons = _why_normalise(data, header)
    encoded = _normalise(data, header) if reasons else data
    pixels = _decode_checked(encoded)
    return encoded, _facts(data, encoded, pixels, header, reasons)


def store(data: bytes, facts: ImageFacts) -> bytes:
    """Returns the bytes to store for an image that was examined before; `data` itself when it conformed.

    Raises:
      BadImage: it no longer normalises to the bytes that were examined.
    """
    if hashlib.sha256(data).hexdigest() != facts.source_sha256:
        raise BadImage(RejectReason.UNREADABLE, "the file is not the one that was examined")
    if not facts.normalised:
        return data
    encoded = _normalise(data, read_header(data))
    if hashlib.sha256(encoded).hexdigest() != facts.sha256:
        raise BadImage(RejectReason.UNREADABLE, "normalising it again gave other bytes; were libraries upgraded?")
    return encoded


def decode_rgb(encoded: tf.Tensor | bytes) -> tf.Tensor:
    """Decodes as training and serving do; the kernel reads JPEG and PNG by their magic bytes.

    Args:
      encoded: string scalar, a JPEG or PNG file.

    Returns:
      uint8[height, width, 3], sRGB, 0-255.

    Raises:
      tf.errors.InvalidArgumentError: it cannot be decoded.
    """
    import tensorflow as tf

    return tf.io.decode_jpeg(encoded, channels=3)


def sniff(data: bytes) -> str:
    """Returns the format the magic bytes name.

    Raises:
      BadImage: no supported format starts like this.
    """
    if not data:
        raise BadImage(RejectReason.EMPTY_FILE, "the file has 0 bytes")
    for magic, name, _ in _MAGIC:
        if data.startswith(magic) and (name != "webp" or data[8:12] == b"WEBP"):
            return name
    raise BadImage(RejectReason.NOT_AN_IMAGE, f"it starts with {data[:8]!r}; known are {', '.join(_PILLOW_NAME)}")


def gate(data: bytes, limits: ImageLimits) -> Header:
    """Judges an image by its header, without decoding it.

    Raises:
      BadImage: the format is unknown, the header is broken, or a limit is crossed.
    """
    if len(data) > limits.max_bytes:
        raise BadImage(RejectReason.TOO_MANY_BYTES, f"{len(data)} bytes; max_bytes is {limits.max_bytes}")
    header = read_header(data)
    short, long = sorted((header.height, header.width))
    described = f"{header.width}x{header.height} pixels"
    if short < limits.min_side_px:
        raise BadImage(RejectReason.TOO_SMALL, f"{described}; min_side_px is {limits.min_side_px}")
    if long > limits.max_side_px or short * long > limits.max_pixels:
        raise BadImage(
            RejectReason.TOO_LARGE,
            f"{described}; max_side_px is {limits.max_side_px}, max_pixels is {limits.max_pixels}",
        )
    if long > short * limits.max_aspect:
        raise BadImage(RejectReason.BAD_ASPECT, f"{described}; max_aspect is {limits.max_aspect:g}")
    if header.mode == "F" or (header.mode == "I" and header.format != "png"):
        raise BadImage(RejectReason.UNKNOWN_RANGE, f"pixels of mode {header.mode}: nothing says which value is white")
    if len(data) < _least_bytes(header):
        raise BadImage(RejectReason.FORGED_SIZE, f"{described} cannot fit in {len(data)} bytes of {header.format}")
    return header


def read_header(data: bytes) -> Header:
    """Parses the header with Pillow, restricted to the one format the magic bytes name.

    Raises:
      BadImage: the format is unknown or the header is broken.
    """
    name = sniff(data)
    try:
        with _open(data, name) as image:
            return Header(
                format=name,
                height=image.height,
                width=image.width,
                mode=image.mode,
                orientation=_orientation(image),
                frames=getattr(image, "n_frames", 1) if image.format != "MPO" else 1,
                has_alpha=image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info,
                bit_depth=_bit_depth(data, name, image.mode),
                progressive=bool(image.info.get("progressive")),
            )
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(RejectReason.TOO_LARGE, str(error)) from error
    except BadImage:
        raise
    except UnidentifiedImageError as error:  # its text holds a memory address, another one in every run
        raise BadImage(RejectReason.BAD_HEADER, f"{name}: the header cannot be parsed") from error
    # Pillow's parsers raise whatever their arithmetic runs into on broken headers, SyntaxError included.
    except Exception as error:
        raise BadImage(RejectReason.BAD_HEADER, f"{name}: {error}") from error


def dhash(pixels: np.ndarray) -> int:
    """Returns the 64-bit difference hash of an image as a signed integer.

    Each bit says whether brightness grows from one cell to the next in an 8 x 9 grid, so scale, compression and
    brightness hardly change it. Source: N. Krawetz, "Kind of Like That" (2013). Pixels are decimated before they
    are averaged, which moves few bits and costs next to nothing.

    Args:
      pixels: uint8[height, width, 3].
    """
    sampled = cv2.resize(pixels, (72, 64), interpolation=cv2.INTER_NEAREST)  # 64 samples a cell
    cells = cv2.resize(cv2.cvtColor(sampled, cv2.COLOR_RGB2GRAY), (9, 8), interpolation=cv2.INTER_AREA)
    bits = np.packbits(cells[:, 1:] > cells[:, :-1])
    return int.from_bytes(bits.tobytes(), "big", signed=True)


def _facts(data: bytes, encoded: bytes, pixels: np.ndarray, header: Header, reasons: tuple[str, ...]) -> ImageFacts:
    mean, variance = _moments(pixels)
    source_sha256 = hashlib.sha256(data).hexdigest()
    stored = read_header(encoded) if reasons else header
    return ImageFacts(
        format=stored.format,
        source_format=header.format,
        height=pixels.shape[0],
        width=pixels.shape[1],
        channels=1 if stored.mode in ("1", "L", "LA") else 3,
        bytes=len(encoded),
        sha256=hashlib.sha256(encoded).hexdigest() if reasons else source_sha256,
        source_sha256=source_sha256,
        dhash=dhash(pixels),
        mean_rgb=mean,
        var_rgb=variance,
        normalised="+".join(reasons),
    )


def _moments(pixels: np.ndarray) -> tuple[Triple, Triple]:
    """Returns mean and population variance of each channel; a plane at a time costs half of all at once."""
    red, green, blue = (cv2.meanStdDev(plane) for plane in cv2.split(pixels))
    mean = (red[0].item(), green[0].item(), blue[0].item())
    return mean, (red[1].item() ** 2, green[1].item() ** 2, blue[1].item() ** 2)


def _open(data: bytes, name: str) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=(_PILLOW_NAME[name],))


def _orientation(image: Image.Image) -> int:
    # `PngImageFile.getexif` decodes the whole image when it meets no eXIf chunk, so only a chunk already seen counts.
    if image.format == "PNG" and "exif" not in image.info:
        return _UPRIGHT
    with contextlib.suppress(Exception):  # a broken EXIF block does not make a broken image
        value = image.getexif().get(_ORIENTATION_TAG, _UPRIGHT)
        return value if value in range(1, 9) else _UPRIGHT
    return _UPRIGHT


def _bit_depth(data: bytes, name: str, mode: str) -> int:
    if name == "png":
        return data[24]  # IHDR: length 4, type 4, width 4, height 4 after the 8 magic bytes
    return 16 if mode.startswith("I;16") else 8


def _least_bytes(header: Header) -> float:
    pixels = header.height * header.width
    if header.format == "jpeg" and not header.progressive:
        return pixels * _JPEG_MIN_BYTES_PER_PIXEL
    if header.format == "png":
        return pixels * header.bit_depth / 8 / _DEFLATE_MAX_RATIO
    return 0


def _why_normalise(data: bytes, header: Header) -> tuple[str, ...]:
    reasons = []
    if header.format not in STORED_FORMATS:
        reasons.append("format")
    if header.orientation != _UPRIGHT:
        reasons.append("exif_orientation")
    if header.mode in ("CMYK", "LAB", "YCbCr"):
        reasons.append("colour_space")
    if header.bit_depth == 16:
        reasons.append("sixteen_bit")
    if header.frames > 1:
        reasons.append("animated")
    if header.has_alpha and (reasons or not _opaque(data, header)):
        reasons.append("alpha")
    return tuple(reasons)


def _opaque(data: bytes, header: Header) -> bool:
    with _pillow_errors(header), _open(data, header.format) as image:
        return np.asarray(image.convert("RGBA"))[..., 3].min() == 255


def _normalise(data: bytes, header: Header) -> bytes:
    """Re-encodes upright, 8 bit, grey or RGB, first frame, transparency over white, without metadata."""
    with _pillow_errors(header), _open(data, header.format) as image:
        image.load()
        upright = ImageOps.exif_transpose(image) or image
        plain = _flatten(upright)
        out = io.BytesIO()
        clean = Image.frombytes(plain.mode, plain.size, plain.tobytes())  # leaves EXIF, GPS and profiles behind
        if header.format in _LOSSY:
            clean.save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
        else:
            clean.save(out, "PNG")
        return out.getvalue()


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bit grey; Pillow's own conversion clips instead of scaling
        values = np.clip(np.asarray(image, dtype=np.int64), 0, 65535)
        return Image.fromarray((values >> 8).astype(np.uint8), "L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


@contextlib.contextmanager
def _pillow_errors(header: Header) -> Iterator[None]:
    try:
        yield
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(RejectReason.UNDECODABLE, f"{header.format}: {error}") from error


def _decode_checked(encoded: bytes) -> np.ndarray:
    import tensorflow as tf

    try:
        return np.asarray(memoryview(decode_rgb(encoded)))  # `.numpy()` would copy the pixels
    except tf.errors.InvalidArgumentError as error:
        raise BadImage(RejectReason.UNDECODABLE, _first_sentence(error.message)) from error


def _first_sentence(message: str) -> str:
    # TensorFlow wraps its message in the names of the op and its node, which say nothing about the image.
    return re.sub(r"^\{\{.*?\}\}\s*", "", message).split(" [Op:")[0].splitlines()[0][:200]

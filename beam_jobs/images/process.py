"""Conversion of an image to checked, upright bytes that the trainer can decode, and facts about them. Pure functions.

The header is checked first, because hostile files attack decoders. Then the image is normalised if the trainer's
decoder cannot decode it correctly. Last, the bytes to store are decoded to that decoder's pixels, so that training can
decode every accepted record. These pixels give the perceptual hash and the moments (mean, variance) of each channel.
"""

from __future__ import annotations

import dataclasses
import hashlib

import google_crc32c
import numpy as np

from beam_jobs.images import normalise
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.header_check import Header, check_header, read_header
from beam_jobs.images.perceptual_hash import difference_hash, moments_and_dhash
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.types import ImageFacts

FULL_SIZE_QUALITY = 95  # JPEG quality at full size; with 4:4:4 chroma the loss does not affect training
_HASHED_SIDE = 64  # pixels; with a smaller decode the perceptual hash would miss half of the near duplicates
_UNKNOWN = (0.0, 0.0, 0.0)  # moments that were not measured


def examine(
    data: bytes, limits: ImageLimits, pixels: PixelOptions | None = None, facts: str = "all"
) -> tuple[bytes, ImageFacts]:
    """Checks, normalises and measures one image. Deterministic.

    Args:
      data: the bytes of the source file.
      limits: limits of bytes, pixels and sides.
      pixels: the policy for the stored pixels; None is `copy`.
      facts: `all`, or `basic` for no moments.

    Returns:
      the bytes to store (`data` itself when they need no change) and the facts about them.

    Raises:
      BadImage: the image is rejected; `reason` of the error is the reason.
    """
    header = check_header(data, limits)
    conversion_reasons = normalise.conversion_reasons(data, header)
    pixel_options = pixels or PixelOptions()
    if pixel_options.policy == "copy":
        return _examine_copy(data, header, conversion_reasons, facts)
    return _examine_resized(data, header, conversion_reasons, pixel_options, facts)


def _examine_copy(
    data: bytes, header: Header, conversion_reasons: tuple[str, ...], facts: str
) -> tuple[bytes, ImageFacts]:
    """Examines an image that is stored at full size, and converted only if there are conversion reasons."""
    encoded = data
    if conversion_reasons:
        encoded = normalise.encode(normalise.decode_converted(data, header), header.format, FULL_SIZE_QUALITY)
    stored = read_header(encoded) if conversion_reasons else header
    pixels = decode_checked(encoded, _ratio_of_check(stored, facts), stored)
    image_facts, normalised = _measure(data, encoded, stored, pixels, facts), "+".join(conversion_reasons)
    return encoded, dataclasses.replace(image_facts, source_format=header.format, normalised=normalised)


def _ratio_of_check(stored: Header, facts: str) -> int:
    """Returns the divisor of height and width for the decode that checks an image; 1 when moments are needed.

    A smaller decode accepts and rejects the same files, because it also reads the entropy-coded data to the end.
    """
    if facts == "all" or stored.format != "jpeg":
        return 1
    return normalise.decode_ratio(min(stored.height, stored.width) / _HASHED_SIDE)


def _examine_resized(
    data: bytes, header: Header, conversion_reasons: tuple[str, ...], pixel_options: PixelOptions, facts: str
) -> tuple[bytes, ImageFacts]:
    geometry = normalise.geometry(pixel_options, *normalise.upright_size(header))
    if geometry.is_identity and pixel_options.policy == "resize":
        return _examine_copy(data, header, conversion_reasons, facts)
    pixels = normalise.resized_pixels(data, header, conversion_reasons, geometry)
    if pixel_options.policy == "raw":
        rgb_pixels = np.ascontiguousarray(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
        stored = Header(format="raw", height=geometry.stored[0], width=geometry.stored[1], mode="RGB")
        encoded = rgb_pixels.tobytes()
        image_facts = _measure(data, encoded, stored, rgb_pixels, facts)
        return encoded, _add_source_facts(image_facts, header, (*conversion_reasons, "raw"))
    encoded = normalise.encode(pixels, header.format, pixel_options.quality, subsample=True)
    stored = Header(
        format="jpeg" if encoded.startswith(b"\xff\xd8") else "png",
        height=geometry.stored[0],
        width=geometry.stored[1],
        mode="L" if pixels.ndim == 2 else "RGB",
    )
    # This process has encoded the pixels, so they need no check; only their statistics need a decode.
    decoded = decode_checked(encoded, header=stored) if facts == "all" else normalise.as_rgb(pixels)
    image_facts = _measure(data, encoded, stored, decoded, facts)
    return encoded, _add_source_facts(image_facts, header, (*conversion_reasons, "resized"))


def _add_source_facts(facts: ImageFacts, header: Header, conversions: tuple[str, ...]) -> ImageFacts:
    height, width = normalise.upright_size(header)
    return dataclasses.replace(
        facts, source_format=header.format, source_height=height, source_width=width, normalised="+".join(conversions)
    )


def _measure(data: bytes, encoded: bytes, stored: Header, pixels: np.ndarray, scope: str) -> ImageFacts:
    """Returns the facts about the stored image `encoded`: `data` if unchanged; `pixels` are its decoded pixels."""
    if scope == "all":
        mean, variance, dhash = moments_and_dhash(pixels)
    else:
        mean, variance, dhash = _UNKNOWN, _UNKNOWN, difference_hash(pixels)
    source_sha256 = hashlib.sha256(data).hexdigest()
    return ImageFacts(
        format=stored.format,
        source_format=stored.format,
        height=stored.height,
        width=stored.width,
        source_height=stored.height,
        source_width=stored.width,
        channels=1 if stored.mode in ("1", "L", "LA") else 3,
        bytes=len(encoded),
        sha256=source_sha256 if encoded is data else hashlib.sha256(encoded).hexdigest(),
        source_sha256=source_sha256,
        crc32c=google_crc32c.value(encoded),
        dhash=dhash,
        mean_rgb=mean,
        var_rgb=variance,
    )

"""Conversion of the bytes of an image to checked, upright, trainer-readable bytes and facts about them. Pure functions.

The order matters. The header is checked first, because hostile files attack decoders. Then the image is normalised if
the trainer's decoder cannot read it correctly. Last, the bytes to store are decoded to that decoder's pixels, so that
training can decode every accepted record; the perceptual hash and the moments of each channel come from these pixels.
"""

from __future__ import annotations

import dataclasses
import hashlib

import google_crc32c
import numpy as np

from beam_jobs.images import normalise
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.header_check import Header, gate, read_header
from beam_jobs.images.perceptual_hash import difference_hash, moments_and_dhash
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.types import ImageFacts

FULL_SIZE_QUALITY = 95  # of images re-encoded at full size; with 4:4:4 chroma the loss does not affect training
_HASHED_SIDE = 64  # pixels; with a smaller decode the perceptual hash would miss half of the near duplicates
_UNKNOWN = (0.0, 0.0, 0.0)


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
      BadImage: the image is rejected, for the reason it holds.
    """
    header = gate(data, limits)
    reasons = normalise.reasons(data, header)
    policy = pixels or PixelOptions()
    if policy.policy == "copy":
        return _examine_copy(data, header, reasons, facts)
    return _examine_resized(data, header, reasons, policy, facts)


def _examine_copy(data: bytes, header: Header, reasons: tuple[str, ...], facts: str) -> tuple[bytes, ImageFacts]:
    encoded = data
    if reasons:
        encoded = normalise.encode(normalise.plain_pixels(data, header), header.format, FULL_SIZE_QUALITY)
    stored = read_header(encoded) if reasons else header
    pixels = decode_checked(encoded, _check_ratio(stored, facts), stored)
    image_facts = _measure(data, encoded, stored, pixels, facts)
    return encoded, dataclasses.replace(image_facts, source_format=header.format, normalised="+".join(reasons))


def _check_ratio(stored: Header, facts: str) -> int:
    """Returns the divisor of height and width for the decode that checks an image; 1 when moments are needed.

    A smaller decode accepts and rejects the same files, because it also reads the entropy-coded data to the end.
    """
    if facts == "all" or stored.format != "jpeg":
        return 1
    return normalise.decode_ratio(min(stored.height, stored.width) / _HASHED_SIDE)


def _examine_resized(
    data: bytes, header: Header, reasons: tuple[str, ...], policy: PixelOptions, facts: str
) -> tuple[bytes, ImageFacts]:
    plan = normalise.geometry(policy, *normalise.upright_size(header))
    if plan.is_identity and policy.policy == "resize":
        return _examine_copy(data, header, reasons, facts)
    pixels = normalise.resized_pixels(data, header, reasons, plan)
    if policy.policy == "raw":
        colours = np.ascontiguousarray(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
        stored = Header(format="raw", height=plan.stored[0], width=plan.stored[1], mode="RGB")
        encoded = colours.tobytes()
        image_facts = _measure(data, encoded, stored, colours, facts)
        return encoded, _add_source_facts(image_facts, header, (*reasons, "raw"))
    encoded = normalise.encode(pixels, header.format, policy.quality, subsample=True)
    stored = Header(
        format="jpeg" if encoded.startswith(b"\xff\xd8") else "png",
        height=plan.stored[0],
        width=plan.stored[1],
        mode="L" if pixels.ndim == 2 else "RGB",
    )
    # Our own encoder has written these pixels, so only their statistics need a decode.
    decoded = decode_checked(encoded, header=stored) if facts == "all" else normalise.as_rgb(pixels)
    return encoded, _add_source_facts(_measure(data, encoded, stored, decoded, facts), header, (*reasons, "resized"))


def _add_source_facts(facts: ImageFacts, header: Header, reasons: tuple[str, ...]) -> ImageFacts:
    height, width = normalise.upright_size(header)
    return dataclasses.replace(
        facts, source_format=header.format, source_height=height, source_width=width, normalised="+".join(reasons)
    )


def _measure(data: bytes, encoded: bytes, stored: Header, pixels: np.ndarray, scope: str) -> ImageFacts:
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

"""One image at a time: bytes -> checked, upright, trainer-readable bytes and what is known of them. Pure functions.

The order matters. The header is read and judged first, because decoding is what a hostile file wants; then the image is
normalised if the trainer's decoder could not read it or would read it wrongly; then what will be stored is
decoded once with that very decoder, so that no accepted record can fail in training.
"""

from __future__ import annotations

import dataclasses
import hashlib

import google_crc32c
import numpy as np

from beam_jobs.images import normalise, resize, statistics
from beam_jobs.images.decode import decode_checked
from beam_jobs.images.geometry import geometry
from beam_jobs.images.header.read import Header, gate, read_header
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.types import ImageFacts

KEPT_QUALITY = 95  # of images re-encoded at full size; with 4:4:4 chroma the loss stays under what training can see
_HASHED_SIDE = 64  # pixels; of a smaller decode the perceptual hash would miss half of the near duplicates
_UNKNOWN = (0.0, 0.0, 0.0)


def examine(
    data: bytes, limits: ImageLimits, pixels: PixelOptions | None = None, facts: str = "all"
) -> tuple[bytes, ImageFacts]:
    """Checks, normalises and measures one image. Deterministic.

    Args:
      data: the file as read.
      limits: what an image may be.
      pixels: what becomes of the pixels; `copy` when None.
      facts: `all`, or `basic` for no moments.

    Returns:
      the bytes to store (`data` itself when they need no change) and the facts about them.

    Raises:
      BadImage: it cannot be used; the reason says why.
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
        encoded = normalise.encode(normalise.plain_pixels(data, header), header.format, KEPT_QUALITY)
    stored = read_header(encoded) if reasons else header
    pixels = decode_checked(encoded, _check_ratio(stored, facts))
    known = _facts(data, encoded, stored, pixels, facts)
    return encoded, dataclasses.replace(known, source_format=header.format, normalised="+".join(reasons))


def _check_ratio(stored: Header, facts: str) -> int:
    """Returns what the decode that checks an image may divide its sides by, where its moments are not needed.

    A smaller decode accepts and rejects the same files: it too reads the entropy-coded data, all that can be damaged,
    to its end.
    """
    if facts == "all" or stored.format != "jpeg":
        return 1
    return resize.decode_ratio(min(stored.height, stored.width) / _HASHED_SIDE)


def _examine_resized(
    data: bytes, header: Header, reasons: tuple[str, ...], policy: PixelOptions, facts: str
) -> tuple[bytes, ImageFacts]:
    plan = geometry(policy, *resize.upright_size(header))
    if plan.is_identity and policy.policy == "resize":
        return _examine_copy(data, header, reasons, facts)
    pixels = resize.resized_pixels(data, header, reasons, plan)
    if policy.policy == "raw":
        colours = np.ascontiguousarray(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
        stored = Header(format="raw", height=plan.stored[0], width=plan.stored[1], mode="RGB")
        encoded = colours.tobytes()
        known = _facts(data, encoded, stored, colours, facts)
        return encoded, _resized(known, header, (*reasons, "raw"))
    encoded = normalise.encode(pixels, header.format, policy.quality, subsample=True)
    stored = Header(
        format="jpeg" if encoded.startswith(b"\xff\xd8") else "png",
        height=plan.stored[0],
        width=plan.stored[1],
        mode="L" if pixels.ndim == 2 else "RGB",
    )
    # Nothing but our own encoder stands between these pixels and the trainer, so only their statistics need a decode.
    seen = decode_checked(encoded) if facts == "all" else resize.as_rgb(pixels)
    return encoded, _resized(_facts(data, encoded, stored, seen, facts), header, (*reasons, "resized"))


def _resized(facts: ImageFacts, header: Header, reasons: tuple[str, ...]) -> ImageFacts:
    height, width = resize.upright_size(header)
    return dataclasses.replace(
        facts,
        source_format=header.format,
        source_height=height,
        source_width=width,
        normalised="+".join(reasons),
    )


def _facts(data: bytes, encoded: bytes, stored: Header, pixels: np.ndarray, facts: str) -> ImageFacts:
    if facts == "all":
        mean, variance, dhash = statistics.moments_and_dhash(pixels)
    else:
        mean, variance, dhash = _UNKNOWN, _UNKNOWN, statistics.dhash(pixels)
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

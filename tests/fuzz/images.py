"""All that becomes of an image: the gate, the decoders, normalising, measuring."""

from __future__ import annotations

import hashlib

import numpy as np

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.errors import BadImage
    from beam_jobs.images import process
    from beam_jobs.images.decode import decode_rgb, decode_sound_jpeg
    from beam_jobs.images.header_check import check_header
    from beam_jobs.options import ImageLimits, PixelOptions

_LIMITS = ImageLimits(max_pixels=1 << 14)
_POLICIES = (PixelOptions(), PixelOptions(policy="resize", side_px=16), PixelOptions(policy="raw", side_px=16))


def target(data: bytes) -> None:
    """Examines an image under one of the policies, which its length chooses; what is stored is what is said of it."""
    try:
        stored, facts = process.examine(data, _LIMITS, _POLICIES[len(data) % len(_POLICIES)])
    except BadImage:
        return
    assert facts.bytes == len(stored), facts
    assert facts.sha256 == hashlib.sha256(stored).hexdigest(), facts
    assert facts.format in ("jpeg", "png", "raw"), facts
    if (pixels := decode_sound_jpeg(data, check_header(data, _LIMITS))) is not None:
        assert np.array_equal(pixels, decode_rgb(data))
    assert all(0 <= np.float32(value) <= 255 for value in facts.mean_rgb), facts  # as it is stored


if __name__ == "__main__":
    drive.main(target)

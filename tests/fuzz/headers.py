"""The gate in front of the decoders: the headers of every image format."""

from __future__ import annotations

from tests.fuzz import drive

with drive.instrumented(__name__):
    from beam_jobs.errors import BadImage
    from beam_jobs.images import header_check
    from beam_jobs.options import ImageLimits

_LIMITS = ImageLimits(max_pixels=1 << 22)


def target(data: bytes) -> None:
    """Judges an image by its header; one that passes keeps the limits."""
    try:
        header = header_check.check_header(data, _LIMITS)
    except BadImage:
        return
    assert 0 < header.height * header.width <= _LIMITS.max_pixels, header
    assert min(header.height, header.width) >= _LIMITS.min_side_px, header
    assert 1 <= header.orientation <= 8, header


if __name__ == "__main__":
    drive.main(target)

from __future__ import annotations

import numpy as np
from PIL import Image

from beam_jobs.images.decode import decode_checked
from beam_jobs.images.perceptual_hash import difference_hash
from tests.make_images import crop, encode


def hamming(one: int, other: int) -> int:
    return ((one ^ other) & (2**64 - 1)).bit_count()


def test_dhash_survives_scaling_and_compression_but_tells_photographs_apart():
    photos = {
        seed: crop(seed, 200, 240, name) for seed, name in [(1, "china.jpg"), (2, "flower.jpg"), (3, "china.jpg")]
    }
    hashes = {seed: difference_hash(pixels) for seed, pixels in photos.items()}
    for seed, pixels in photos.items():
        half = np.asarray(Image.fromarray(pixels).resize((120, 100)))
        poor = decode_checked(encode(pixels, "JPEG", quality=30))
        assert max(hamming(hashes[seed], difference_hash(changed)) for changed in (half, poor)) <= 8
    assert min(hamming(hashes[one], hashes[other]) for one, other in [(1, 2), (1, 3), (2, 3)]) >= 16


def test_dhash_says_where_brightness_grows_as_a_signed_integer():
    ramp = np.repeat(np.tile(np.arange(0, 90, dtype=np.uint8), (80, 1))[..., None], 3, axis=2)
    assert difference_hash(ramp) == -1  # 64 ones
    assert difference_hash(ramp[:, ::-1]) == 0

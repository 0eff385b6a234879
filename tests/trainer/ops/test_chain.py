from __future__ import annotations

import re

import pytest

from beam_jobs.errors import OptionError
from trainer.ops import Decode, Flip, MultiCrop, Normalize, Resize, parse_ops


@pytest.mark.parametrize(
    ("spec", "ops"),
    [
        (" decode | resize( side = 8 ) | flip( ) ", (Decode(), Resize(side=8), Flip())),
        ("decode|resize(8, 'area')|flip(0.3)", (Decode(), Resize(side=8, method="area"), Flip(probability=0.3))),
        ("decode|normalize((1,2,3), (4,5,6))", (Decode(), Normalize((1, 2, 3), (4, 5, 6)))),
        ("decode|multi_crop(5, 24, mirror=False)", (Decode(), MultiCrop(count=5, side=24, mirror=False))),
    ],
)
def test_chains_are_read(spec, ops):
    assert parse_ops(spec) == ops


# Arguments that no image could fit.
UNFIT = (
    *("resize(0)", "resize(8, 'cubic')", "pad_reflect(-1)", "flip(1.5)", "rotate(200)", "cutout(8, 256)"),
    *("color_jitter(hue=0.6)", "rand_augment(0)", "mixup(0)", "cutmix('a')", "multi_crop(5, 8, mirror=2)"),
    *("normalize((1, 2), (3, 4))", "random_crop_resize(8, 0)", "random_crop(8, keep=2)"),
)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "ops '': '' is not an op; write a chain"),
        ("decode|resize(", "'resize(' is not an op"),
        ("decode|resize(__import__('os'))", "\"resize(__import__('os'))\" is not an op"),
        ("decode|resiz(8)", "there is no op 'resiz'; did you mean resize? known are center_crop, color_jitter"),
        ("decode|resize", "'resize' does not fit; resize takes side, method"),
        ("decode(1)", "'decode(1)' does not fit; decode takes no argument"),
        ("decode|normalize|flip", "normalize must be the last op"),
        ("decode|mixup(0.2)|flip", "only mixup, cutmix and normalize may follow mixup and cutmix"),
        ("decode|multi_crop(2, 8)|multi_crop(2, 8)", "contain multi_crop twice"),
        ("resize(8)", "ops 'resize(8)' must start with decode"),
        ("decode|resize(8)|decode_random_crop(8)", "decode only once"),
        *((f"decode|{part}", part) for part in UNFIT),
    ],
)
def test_a_wrong_chain_is_refused_with_what_is_wrong(spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        parse_ops(spec)

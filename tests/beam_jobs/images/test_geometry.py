from __future__ import annotations

import pytest

from beam_jobs.images.normalise import geometry
from beam_jobs.options import PixelOptions

# Policy, fit and side -> source, resized, top and left, stored; heights first.
CASES = {
    "copy leaves everything": (("copy", "short", 10), (60, 80), (60, 80), (0, 0), (60, 80)),
    "short side": (("resize", "short", 30), (60, 80), (30, 40), (0, 0), (30, 40)),
    "long side of a portrait": (("resize", "inside", 40), (80, 60), (40, 30), (0, 0), (40, 30)),
    "long side never enlarges": (("resize", "inside", 81), (60, 80), (60, 80), (0, 0), (60, 80)),
    "one pixel less": (("resize", "short", 59), (60, 80), (59, 79), (0, 0), (59, 79)),
    "sides are rounded": (("resize", "short", 256), (375, 500), (256, 341), (0, 0), (256, 341)),
    "no side vanishes": (("resize", "inside", 10), (8, 160), (1, 10), (0, 0), (1, 10)),
    "raw cuts the centre of a landscape": (("raw", "short", 30), (60, 80), (30, 40), (0, 5), (30, 30)),
    "raw cuts the centre of a portrait": (("raw", "short", 30), (80, 60), (40, 30), (5, 0), (30, 30)),
    "raw enlarges": (("raw", "short", 120), (60, 80), (120, 160), (0, 20), (120, 120)),
    "raw rounds the odd column to the right": (("raw", "short", 30), (60, 82), (30, 41), (0, 5), (30, 30)),
}


@pytest.mark.parametrize(("options", "source", "resized", "corner", "stored"), CASES.values(), ids=CASES)
def test_a_policy_becomes_a_resize_and_a_crop(options, source, resized, corner, stored):
    policy, fit, side = options
    plan = geometry(PixelOptions(policy=policy, fit=fit, side_px=side), *source)
    assert plan.source == source
    assert (plan.resized, (plan.top, plan.left), plan.stored) == (resized, corner, stored)
    assert plan.is_identity == (source == resized == stored)


@pytest.mark.parametrize("policy", ["resize", "raw"])
def test_the_short_side_is_exact_whatever_the_source(policy):
    options = PixelOptions(policy=policy, side_px=224)
    for short in range(224, 4000, 37):
        for long in (short, short + 1, short * 2 - 1, short * 20):
            plan = geometry(options, short, long)
            assert min(plan.resized) == 224
            assert plan.resized[1] / plan.resized[0] == pytest.approx(long / short, rel=0.5 / 224)
            assert plan.top + plan.stored[0] <= plan.resized[0]
            assert plan.left + plan.stored[1] <= plan.resized[1]

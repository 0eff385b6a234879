from __future__ import annotations

import json
from pathlib import Path

import pytest

from beam_jobs.options import IngestOptions, PixelOptions
from beam_jobs.runners import cost_estimate

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "latest.json"


def big_options(**values) -> IngestOptions:
    return IngestOptions(source="x", out="y", **values)


def test_the_measured_seconds_are_those_of_the_benchmarks():
    """Within a third: the machine that `make bench` last ran on may have been busier."""
    results = json.loads(RESULTS.read_text())["results"]
    small = {
        ("copy", "basic"): "copy, decode check",
        ("copy", "all"): "copy, all image statistics",
        ("resize", "basic"): "resize to 256, decode check",
        ("resize", "all"): "resize to 256, all image statistics",
        ("raw", "all"): "raw 224, all image statistics",
    }
    for key, name in small.items():
        assert cost_estimate.RATES_SMALL[key] == pytest.approx(results["ingest"][name]["rate"], rel=0.33)
    name = "2000x1500, resize to 256, all image statistics"
    assert cost_estimate.RATES_LARGE["resize", "all"] == pytest.approx(results["large"][name]["rate"], rel=0.33)
    assert pytest.approx(results["large"][name]["base"], rel=0.33) == cost_estimate.DECODE_LARGE


def test_seconds_meet_the_measured_sizes_and_grow_with_the_image():
    for policy in ("copy", "resize"):
        chosen = big_options(pixels=PixelOptions(policy=policy))
        small = cost_estimate.core_seconds(chosen, cost_estimate.SMALL_MEGAPIXELS)
        assert small == pytest.approx(cost_estimate.CORES / cost_estimate.RATES_SMALL[policy, "all"])
        assert cost_estimate.core_seconds(chosen, 12.0) > cost_estimate.core_seconds(chosen, 3.0) > small
        assert cost_estimate.core_seconds(chosen, 0.0) > 0
    resize = big_options(pixels=PixelOptions(policy="resize"))
    assert cost_estimate.core_seconds(resize, cost_estimate.LARGE_MEGAPIXELS) == pytest.approx(
        2 / cost_estimate.RATES_LARGE["resize", "all"]
    )
    assert cost_estimate.core_seconds(big_options(facts="basic"), 1.0) < cost_estimate.core_seconds(big_options(), 1.0)


@pytest.mark.parametrize(("value", "text"), [(0.2, "under 1 s"), (59.4, "59 s"), (1800, "30 min"), (400_000, "110 h")])
def test_times_are_told_in_the_unit_that_fits(value, text):
    assert cost_estimate.duration(value) == text


@pytest.mark.parametrize(("value", "text"), [(999, "1 kB"), (12, "12 B"), (5e15, "5,000 TB")])
def test_sizes_are_told_in_the_unit_that_fits(value, text):
    assert cost_estimate.size(value) == text

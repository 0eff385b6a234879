"""The simulation of the last units of a job, with the workers that a job on Dataflow begins with."""

from __future__ import annotations

import pytest

from benchmarks.stragglers import SHAPES, WORKERS, excess, unit_sizes


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_ends_soon_after_the_ideal_with_any_number_of_workers(shape):
    sizes = unit_sizes(1_000_000, shape)
    assert sizes.sum() / sizes[0] == pytest.approx(1_000_000 / 2048, rel=0.05)
    ratios = {most: excess(sizes, most)[1] for most in WORKERS}
    assert all(1 <= ratio <= 1.15 for ratio in ratios.values()), ratios


def test_units_of_one_size_take_whole_rounds():
    assert excess(unit_sizes(2048 * 8, 1e9), max_workers=1) == (1, pytest.approx(1, rel=1e-6))
    assert excess(unit_sizes(2048 * 9, 1e9), max_workers=1) == (1, pytest.approx(3 / (9 / 4), rel=1e-6))

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset.divergence import shares
from beam_jobs.storage.database import open_database
from components.dataset_gate.drift_and_skew import Values, jensen_shannon, l_infinity, sampling_value


@pytest.mark.parametrize(("measure", "first", "second"), [("l_infinity", 24, 6), ("jensen_shannon", 30, 30)])
def test_samples_of_one_population_seldom_differ_by_more_than_sampling_gives(measure, first, second):
    random = np.random.default_rng(1)
    population = shares(np.arange(1, 11))
    over = 0
    for _ in range(300):
        one, other = random.multinomial(first, population), random.multinomial(second, population)
        found = {"l_infinity": l_infinity, "jensen_shannon": jensen_shannon}[measure](shares(one), shares(other))
        over += found > sampling_value(measure, one, other, (first, second))
    assert over <= 8  # 1.5 are expected; more than 8 would be one chance in 10,000


def test_sampling_fades_with_the_number_of_images_and_is_the_same_every_time():
    counts = np.arange(1, 11)
    given = [sampling_value("jensen_shannon", counts, counts, (size, size)) for size in (30, 300, 30_000)]
    assert given == sorted(given, reverse=True)
    assert given[0] > 0.15
    assert given[-1] < 0.001
    assert sampling_value("jensen_shannon", counts, counts, (30, 30)) == given[0]


def test_sampling_of_a_million_categories_is_that_of_the_frequent():
    counts = np.append(np.ones(1_000_000, np.int64), [500_000, 500_000])
    assert sampling_value("l_infinity", counts, counts, (1000, 1000)) == pytest.approx(0.06, abs=0.02)


def test_images_that_belong_together_count_as_less():
    alone, videos, one_of_them = "abcdefgh", "aaaabbbb", "aaaaaaab"
    with open_database("the test", 200) as database:
        sizes = []
        for table, units in {"alone": alone, "videos": videos, "one_of_them": one_of_them}.items():
            database.insert(table, pa.table({"unit": [*units.encode()]}))
            sizes.append(Values(database, f"FROM {table}", {}).effective_size())
    assert sizes == [8, 2, 64 / 50]

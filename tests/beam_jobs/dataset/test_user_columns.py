from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest

from beam_jobs.dataset.schemas import column_mismatch, count_float32_changes, fits_float32


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (0.1, True),  # printed as 0.1 by both
        (48.858370123, False),
        (16777216.0, True),
        (16777217.0, False),
        (123456700.0, False),  # its float32 is printed as 1.234567e+08, and is another whole number
        (1e39, False),
        (1e-50, False),
        (math.nan, True),
    ],
)
def test_a_float32_keeps_equal_whole_numbers_and_fractions_printed_alike(number, fits):
    assert fits_float32(number) is fits


def test_what_float32_changes_is_counted_over_images_and_lists():
    cells = [json.dumps({"a": [0.5, 1e39], "b": 0.25, "n": 123456789})] * 3 + ["{}", json.dumps({"a": 1 / 3})]
    found: dict = {}
    count_float32_changes(found, pa.chunked_array([cells[:2]]))
    count_float32_changes(found, pa.chunked_array([cells[2:]]))
    assert {name for name, column in found.items() if column.changed} == {"a"}
    assert (found["a"].changed, found["a"].numbers, found["a"].example) == (4, 7, 1e39)
    assert "changes 4 of 7 numbers of the user column 'a', such as 1e+39 to inf; " in found["a"].warning("a")


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ("{}", {}),
        ('{"a": 123456701.0}', {"extra/a": [123456704.0]}),
        ('{"a": [1e39, NaN]}', {"extra/a": [math.inf, math.nan]}),
        ('{"a": 7, "b": "é"}', {"extra/a": [7], "extra/b": ["é".encode()]}),
    ],
)
def test_a_record_agrees_with_its_row_where_it_holds_the_nearest_float32(cells, values):
    assert column_mismatch(cells, values) == ""


@pytest.mark.parametrize(
    ("cells", "values", "message"),
    [
        ("{}", {"extra/a": [7]}, "it has [] for 'extra/a', the record has [7]"),
        ('{"a": 7}', {}, "it has [7] for 'extra/a', the record has []"),
        ('{"a": 7}', {"extra/a": [7.0]}, "it has [7] for 'extra/a', the record has [7.0]"),
        ('{"a": 0.5}', {"extra/a": [0.25]}, "it has [0.5] for 'extra/a', the record has [0.25]"),
        (None, {}, "its user columns are None, which no ingest writes"),
        ("[1]", {}, "its user columns are '[1]', which no ingest writes"),
        ('{"a": [null]}', {}, "its user columns are '{\"a\": [null]}', which no ingest writes"),
    ],
)
def test_a_record_that_differs_from_its_row_is_named(cells, values, message):
    assert column_mismatch(cells, values) == message

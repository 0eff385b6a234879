from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import schemas
from beam_jobs.stages.summary import Summary
from beam_jobs.types import Annotations
from tests.beam_jobs.make_rows import examined_row, make_facts, make_ref


def planned(key: str, labels=(), extra=None, **facts) -> dict:
    annotations = Annotations(labels=labels, weight=0.5) if labels else None
    row = examined_row(make_ref(key, annotations=annotations, extra=extra or {}), make_facts(key, **facts))
    return {**{name: row.get(name) for name in schemas.PLANNED.names}, "cluster": "", "near": "", "label_index": 0}


ROWS = [
    planned("a", ("cat", "dog"), {"age": 1}, normalised="alpha", mean_rgb=(1.0, 2.0, 3.0), height=2, width=3),
    planned("b", ("cat",), {"age": 2.5, "name": ["x", "y"], "sizes": []}, mean_rgb=(5.0, 5.0, 5.0), height=4, width=1),
    planned("c", (), {"age": "old"}, normalised="alpha", mean_rgb=(9.0, 0.0, 1.0), height=1, width=1),
]


def measured(rows: list[dict], label_kind: str) -> Summary:
    return Summary.measure(pa.Table.from_pylist(rows, schemas.PLANNED), label_kind)


@pytest.mark.parametrize("label_kind", ["single", "multi", "none"])
def test_summaries_of_shards_add_up_to_that_of_all_images(label_kind):
    total = Summary()
    for row in ROWS:
        travelled = json.loads(json.dumps(measured([row], label_kind).to_json()))
        total.add(Summary.from_json(travelled))
    whole = measured(ROWS, label_kind)
    np.testing.assert_allclose(total.sums, whole.sums)
    np.testing.assert_allclose(total.squares, whole.squares)
    for one in (total, whole):
        assert (one.pixels, one.parts, one.normalised) == (11.0, {"weight"}, {"alpha": 2})
        assert one.extra_types == {"age": str, "name": str, "sizes": int}
    classes = {"single": {"cat": 3}, "multi": {"cat": 2, "dog": 1}, "none": {}}
    assert total.classes == whole.classes == classes[label_kind]

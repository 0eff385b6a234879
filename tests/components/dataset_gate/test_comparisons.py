from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon

from components.dataset_gate.drift_and_skew import _median_text, drift, skew
from components.dataset_gate.limits import GateLimits
from tests import image_table
from tests.components.dataset_gate.datasets import Row, ingest, photograph


def direct(one: pd.Series, other: pd.Series) -> float:
    """Jensen-Shannon on the deciles of both samples, each image repeated so that the samples weigh the same."""
    both = np.sort(np.concatenate([np.repeat(one, len(other)), np.repeat(other, len(one))]))
    edges = np.unique(both[[-(-len(both) * place // 10) - 1 for place in range(1, 10)]])
    bins = [-np.inf, *edges, np.inf]
    counts = [pd.cut(values, bins).value_counts(sort=False) for values in (one, other)]
    return jensenshannon(*(count / count.sum() for count in counts), base=2) ** 2


@pytest.mark.parametrize("name", ["columns", "bright eval"])
def test_every_comparison_equals_a_pandas_computation_on_the_table(library, name):
    table = image_table.read(library.path(name)).to_pandas()
    mean = np.stack(table["mean_rgb"])
    table["image/brightness"] = mean.astype(float).mean(axis=1)
    for place, colour in enumerate(("red", "green", "blue")):
        table[f"image/mean_{colour}"] = mean[:, place].astype(float)
    table["image/short_side"] = table[["height", "width"]].min(axis=1)
    table["image/aspect_ratio"] = table["width"] / table["height"]
    extra = pd.DataFrame(table["extra"].map(json.loads).tolist(), index=table.index)
    table = table.rename(columns={"bytes": "image/bytes", "label": "image/class/text", "format": "image/format"})
    table = pd.concat([table, extra.add_prefix("extra/")], axis=1)
    train, held_back = (table[table["split"] == split] for split in ("train", "eval"))
    found = [one.comparison for one in skew(library.load(name), GateLimits())]
    assert len(found) == 9 + extra.shape[1]
    for one in found:
        first, second = train[one.feature], held_back[one.feature]
        if one.measure == "l_infinity":
            difference = first.value_counts(normalize=True).sub(second.value_counts(normalize=True), fill_value=0)
            expected = difference.abs().max()
        else:
            expected = direct(first, second)
        assert one.value == pytest.approx(expected, abs=1e-9), one.feature


def test_a_column_of_numbers_is_compared_with_one_of_texts_as_text(library, tmp_path):
    sets = {}
    for name, values in {"numbers": (1, 2), "texts": (1, "x")}.items():
        rows = [
            Row(f"{index}.jpg", photograph(index), "a", ("train", "eval")[index // 8], {"mixed": values[index % 2]})
            for index in range(16)
        ]
        sets[name] = library.open(ingest(tmp_path / name, rows, splits={"train": 0.5, "eval": 0.5}))
    assert sets["numbers"].features["extra/mixed"].is_number
    found = {one.comparison.feature: one for one in drift(sets["texts"], sets["numbers"], "span 1", GateLimits())}
    assert found["extra/mixed"].comparison.measure == "l_infinity"
    assert found["extra/mixed"].comparison.value == 0.5


def test_frames_of_one_video_do_not_count_as_independent_images(library, tmp_path):
    """Two videos each in train and eval: with so few, any difference may be chance."""
    from beam_jobs.options import TableColumns

    rows = [
        Row(f"{index}.jpg", photograph(index, index % 40 < 20), "a", "train", {"video": f"v{index // 20}"})
        for index in range(80)
    ]
    rows = [row if index < 40 else Row(row.name, row.data, "a", "eval", row.extra) for index, row in enumerate(rows)]
    columns = TableColumns(split="split", group="video")
    dataset = library.open(ingest(tmp_path / "videos", rows, columns, splits={"train": 0.5, "eval": 0.5}))
    by_video = {one.comparison.feature: one.comparison for one in skew(dataset, GateLimits())}
    alone = library.open(
        ingest(tmp_path / "frames", rows, TableColumns(split="split"), splits={"train": 0.5, "eval": 0.5})
    )
    by_frame = {one.comparison.feature: one.comparison for one in skew(alone, GateLimits())}
    assert by_video["image/brightness"].value == by_frame["image/brightness"].value
    assert by_video["image/brightness"].sampling > 2 * by_frame["image/brightness"].sampling


def test_copies_of_an_image_count_as_one(library):
    for name, copies in {"sound": 0, "copy in one split": 1}.items():
        images = library.load(name).database
        assert images.number("SELECT count(*) - count(DISTINCT unit) FROM images") == copies


@pytest.mark.parametrize(
    ("values", "text"), [([22_480.4], "22480"), ([0.01234], "0.01234"), ([-5000.0], "-5000"), ([np.nan], "none")]
)
def test_a_median_is_written_as_people_write_numbers(values, text):
    assert _median_text(np.array(values)) == text

"""What StatisticsGen counts, held against a computation on the image table that knows nothing of TFDV."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.dataset import manifest
from beam_jobs.errors import CorruptDataset
from components.statistics import dataset_statistics, statistics_options
from tests import image_table
from tests.components.conftest import BEAM_ARGS
from tests.components.make_tables import EXTRA, ingest_table, write_table

pytestmark = pytest.mark.filterwarnings("ignore")

SPLITS = ("train", "eval")
NUMBERS = (
    *("image/height", "image/width", "image/channels", "image/bytes", "image/aspect_ratio"),
    *("image/mean_rgb", "image/var_rgb", "image/brightness", "extra/age", "extra/score"),
)
CATEGORIES = ("image/format", "image/class/text", "image/class/label", "extra/city", "extra/tags")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("statistics")
    return ingest_table(write_table(root / "photos", 60), root / "dataset")


@pytest.fixture(scope="module")
def counted(made) -> dict[str, dict]:
    """split -> feature -> its statistics."""
    found = dataset_statistics(str(made), manifest.load(str(made)))
    return {
        split: {feature.path.step[0]: feature for feature in statistics.datasets[0].features}
        for split, statistics in found.items()
    }


@pytest.fixture(scope="module")
def expected(made) -> dict[str, dict[str, list[list]]]:
    """split -> feature -> the values of each image, from the table of the dataset; an empty list for a missing one."""
    values: dict = {split: {} for split in SPLITS}
    for row in image_table.read(made).to_pylist():
        extra = {name: [] for name in EXTRA} | json.loads(row["extra"])
        cells = {
            **{f"image/{name}": [row[name]] for name in ("format", "height", "width", "channels", "bytes")},
            "image/aspect_ratio": [row["width"] / row["height"]],
            "image/mean_rgb": row["mean_rgb"],
            "image/var_rgb": row["var_rgb"],
            "image/brightness": [np.mean(row["mean_rgb"])],
            "image/class/text": [row["label"]],
            "image/class/label": [str(row["label_index"])],
            **{f"extra/{name}": value if isinstance(value, list) else [value] for name, value in extra.items()},
        }
        for name, cell in cells.items():
            values[row["split"]].setdefault(name, []).append(cell)
    return values


def test_small_numbers_and_categories_are_counted_and_nothing_else(counted):
    assert counted.keys() == set(SPLITS)
    assert {name for found in counted.values() for name in found} == {*NUMBERS, *CATEGORIES}


@pytest.mark.parametrize(("name", "split"), zip(NUMBERS, itertools.cycle(SPLITS)))
def test_numbers_are_those_of_the_table(counted, expected, split, name):
    cells = expected[split][name]
    values = np.array([value for cell in cells for value in cell], np.float32).astype(np.float64)
    found = counted[split][name].num_stats
    assert (found.min, found.max) == (values.min(), values.max())
    assert (found.mean, found.std_dev) == pytest.approx((values.mean(), values.std()), rel=1e-9)
    assert found.num_zeros == np.sum(values == 0)
    assert found.common_stats.tot_num_values == len(values)
    check_presence(found.common_stats, cells)


@pytest.mark.parametrize(("name", "split"), zip(CATEGORIES, itertools.cycle(SPLITS)))
def test_categories_are_those_of_the_table(counted, expected, split, name):
    cells = expected[split][name]
    counts = Counter(value for cell in cells for value in cell)
    found = counted[split][name].string_stats
    assert {bucket.label: bucket.sample_count for bucket in found.rank_histogram.buckets} == counts
    assert found.unique == len(counts)
    check_presence(found.common_stats, cells)


def check_presence(common, cells) -> None:
    present = [cell for cell in cells if cell]
    assert (common.num_non_missing, common.num_missing) == (len(present), len(cells) - len(present))
    assert (common.min_num_values, common.max_num_values) == (min(map(len, present)), max(map(len, present)))


def test_each_of_more_classes_than_tfdv_lists_by_itself_is_counted(tmp_path):
    names = [f"class {index}".encode() for index in range(5000)]
    batch = pa.RecordBatch.from_arrays([pa.array([[name] for name in names])], ["image/class/text"])
    out = tmp_path / "statistics"
    with beam.Pipeline(options=PipelineOptions(BEAM_ARGS)) as pipeline:
        _ = (
            pipeline
            | beam.Create([batch])
            | tfdv.GenerateStatistics(statistics_options(()))
            | tfdv.WriteStatisticsToBinaryFile(str(out))
        )
    [feature] = tfdv.load_stats_binary(str(out)).datasets[0].features
    assert {bucket.label.encode() for bucket in feature.string_stats.rank_histogram.buckets} == set(names)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda shards: shards[0].write_bytes(shards[0].read_bytes()[:-9]), r"cannot be read: Not a valid TFRecord.*;"),
        (lambda shards: shards[0].unlink(), r"has \d+ records in train, its manifest has \d+$"),
        (lambda shards: [shard.unlink() for shard in shards], "cannot be read: No files found"),
    ],
    ids=["torn shard", "missing shard", "missing split"],
)
def test_a_damaged_dataset_is_said_in_one_line(dataset, damage, message):
    damage(sorted((dataset / "Split-train").iterdir()))
    with pytest.raises(CorruptDataset, match=message) as caught:
        dataset_statistics(str(dataset), manifest.load(str(dataset)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400

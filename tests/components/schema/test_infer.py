"""Inferred schemas against the real validation: nothing on the data they come from, and exactly what is put in else."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import tensorflow_data_validation as tfdv

from beam_jobs import ingest
from beam_jobs.dataset import manifest
from beam_jobs.errors import SourceError
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from components.dataset_gate.component import load_anomalies
from components.schema.component import infer, infer_from_dataset, observed_ranges
from components.statistics import dataset_statistics
from tests.components.conftest import validate
from tests.components.make_tables import EXTRA, ingest_table, write_table
from tests.make_images import class_folders, jpeg

pytestmark = pytest.mark.filterwarnings("ignore")

LIMITS = ImageLimits(max_side_px=120)
FACTS = ("format", "height", "width", "channels", "bytes", "aspect_ratio")
MOMENTS = ("mean_rgb", "var_rgb", "brightness")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("schema")
    return ingest_table(write_table(root / "photos", 40), root / "dataset", limits=LIMITS)


@pytest.fixture(scope="module")
def statistics(made):
    return dataset_statistics(str(made), manifest.load(str(made)))


@pytest.fixture(scope="module")
def schema(made, statistics):
    return infer(statistics, manifest.load(str(made)))


def anomalous(schema, statistics, out: Path) -> dict[str, set[str]]:
    """Returns split -> anomalous features, as ExampleValidator writes them."""
    found = load_anomalies(validate(schema, statistics, out))
    assert not [split for split, anomalies in found.items() if anomalies.HasField("dataset_anomaly_info")]
    return {split: set(anomalies.anomaly_info) for split, anomalies in found.items()}


def test_user_columns_are_as_tfdv_infers_them(schema, statistics):
    plain = tfdv.update_schema(tfdv.infer_schema(statistics["train"]), statistics["eval"])
    expected = {feature.name: feature for feature in plain.feature if feature.name.startswith("extra/")}
    assert {feature.name: feature for feature in schema.feature if feature.name.startswith("extra/")} == expected
    assert set(expected) == {f"extra/{name}" for name in EXTRA}
    kept = {domain.name: domain for domain in schema.string_domain if domain.name.startswith("extra/")}
    assert kept == {domain.name: domain for domain in plain.string_domain if domain.name.startswith("extra/")}


def test_what_the_schema_does_not_allow_is_found_and_nothing_else(schema, tmp_path):
    table = write_table(tmp_path / "photos", 40)
    rows = [{**json.loads(line), "split": "train"} for line in table.read_text().splitlines()]
    faults = ({"label": "zzz"}, {"city": "Ulm"}, {"score": None}, {})
    for row, fault in zip(rows[-4:], faults, strict=True):
        row.update({"split": "eval", **fault})
    (table.parent / rows[-1]["image"]).write_bytes(jpeg(1, 60, 140))
    table.write_text("\n".join(json.dumps(row) for row in rows))
    dataset = ingest_table(table, tmp_path / "dataset", columns={"split": "split"})
    found = anomalous(schema, dataset_statistics(str(dataset), manifest.load(str(dataset))), tmp_path)
    faulty = {"image/class/text", "image/class/label", "image/width", "extra/city", "extra/score"}
    assert found == {"train": set(), "eval": faulty}


@pytest.mark.parametrize(
    ("columns", "options", "features"),
    [
        (
            {"labels": "labels", "weight": "weight"},
            {"pixels": PixelOptions(policy="resize", side_px=20, fit="inside")},
            {*FACTS, *MOMENTS, "class/label", "class/text", "weight"},
        ),
        ({"label": ""}, {"facts": "basic", "pixels": PixelOptions(policy="raw", side_px=16)}, {*FACTS}),
    ],
    ids=["many labels, weights, resized", "no labels, basic facts, raw"],
)
def test_every_kind_of_dataset_fits_its_own_schema(tmp_path, columns, options, features):
    table = write_table(tmp_path / "photos", 24)
    dataset = ingest_table(table, tmp_path / "dataset", columns=columns, **options)
    statistics = dataset_statistics(str(dataset), manifest.load(str(dataset)))
    schema = infer(statistics, manifest.load(str(dataset)))
    names = {feature.name for feature in schema.feature}
    assert names == {f"image/{name}" for name in features} | {f"extra/{name}" for name in EXTRA}
    assert anomalous(schema, statistics, tmp_path) == {"train": set(), "eval": set()}


def test_objects_are_described_too(tmp_path):
    photos = class_folders(tmp_path / "photos", per_class=6, labels=("china",))
    names = sorted(path.name for path in (photos / "china").iterdir())
    boxes = [
        {"id": n, "image_id": n % 6, "category_id": 1 + n % 2, "bbox": [1, 2, 10 + n, 20], "area": 5, "iscrowd": n % 2}
        for n in range(11)
    ]
    values = {
        "images": [{"id": n, "file_name": f"china/{name}"} for n, name in enumerate(names)],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "door"}, {"id": 2, "name": "roof"}],
    }
    (photos / "coco.json").write_text(json.dumps(values))
    out = tmp_path / "dataset"
    ingest.run(IngestOptions(source=str(photos / "coco.json"), out=str(out), splits={"all": 1}))
    statistics = dataset_statistics(str(out), manifest.load(str(out)))
    schema = infer(statistics, manifest.load(str(out)))
    described = {feature.name: feature for feature in schema.feature}
    assert described["image/object/class/label"].int_domain.max == 1
    assert described["image/object/bbox/ymax"].float_domain.max == 1
    assert {"door", "roof"} in [set(domain.value) for domain in schema.string_domain]
    assert "image/object/mask" not in described
    assert anomalous(schema, statistics, tmp_path) == {"all": set()}


def test_every_split_has_a_say(made):
    columns = {
        "train": {"image/height": [50, 60, 70], "extra/colour": ["red", "blue", "red"]},
        "eval": {"image/height": [9, 60, 200_000], "extra/colour": ["green", None, "red"]},
    }
    counted = {
        split: tfdv.generate_statistics_from_dataframe(pd.DataFrame(values), n_jobs=1)
        for split, values in columns.items()
    }
    assert observed_ranges(counted) == {"image/height": (9, 200_000)}
    schema = infer(counted, manifest.load(str(made)))
    described = {feature.name: feature for feature in schema.feature}
    assert described["image/height"].int_domain.max == 200_000
    assert described["extra/colour"].presence.min_fraction < 1
    assert {value for domain in schema.string_domain for value in domain.value} == {"red", "blue", "green"}


def test_only_a_dataset_has_a_schema(tmp_path):
    with pytest.raises(SourceError, match="is not a dataset: it has no dataset.json"):
        infer_from_dataset(str(tmp_path))

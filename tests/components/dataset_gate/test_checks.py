from __future__ import annotations

import dataclasses
import re

import pyarrow as pa
import pytest
from tensorflow_metadata.proto.v0 import anomalies_pb2

from beam_jobs.dataset.manifest import Manifest
from beam_jobs.storage.database import open_database
from components.dataset_gate.checks import check_anomalies, check_classes, check_dataset, count_anomalies
from components.dataset_gate.drift_and_skew import GateDataset
from components.dataset_gate.limits import GateLimits
from tests.components.conftest import manifest_of


def anomalies(dataset: str = "", **features: str) -> anomalies_pb2.Anomalies:
    found = anomalies_pb2.Anomalies()
    for name, description in features.items():
        found.anomaly_info[name].description = description
    if dataset:
        found.dataset_anomaly_info.description = dataset
    return found


@pytest.fixture
def described():
    """Makes a dataset of a manifest; its images have objects, or not."""
    with open_database("the test", 200) as database:

        def make(dataset: Manifest, has_objects: bool = False) -> GateDataset:
            database.run("DROP TABLE IF EXISTS images")
            database.insert("images", pa.table({"has_objects": [has_objects]}))
            return GateDataset(dataset, database)

        yield make


def test_every_anomalous_feature_of_a_split_is_a_finding_of_its_own():
    found = {"train": anomalies(), "eval": anomalies(height="out of range: 99", width="missing")}
    first, second = sorted(check_anomalies(found, GateLimits()), key=lambda finding: finding.feature)
    assert str(first) == (
        "anomaly: height in eval: out of range: 99; allowed: 0 anomalous features a split; "
        "repair the data, or change the schema if the data is correct"
    )
    assert (second.split, second.feature, second.value) == ("eval", "width", "missing")


@pytest.mark.parametrize(("limit", "tripped"), [(0, 2), (1, 2), (2, 0)])
def test_anomalous_features_are_counted_by_split(limit, tripped):
    found = {"train": anomalies(height="x"), "eval": anomalies(height="x", width="y")}
    by_split = [finding.split for finding in check_anomalies(found, GateLimits(max_anomalies=limit))]
    assert by_split.count("eval") == tripped
    assert by_split.count("train") == (1 if limit == 0 else 0)


def test_the_dataset_as_a_whole_counts_as_one_more_anomaly():
    found = anomalies(dataset="too few examples", height="x")
    assert count_anomalies(found) == 2
    assert count_anomalies(anomalies()) == 0
    assert [finding.value for finding in check_anomalies({"train": found}, GateLimits(max_anomalies=1))] == [
        "x",
        "too few examples",
    ]


def test_a_description_loses_its_full_stop_and_the_short_one_stands_in_for_none():
    (finding,) = check_anomalies({"train": anomalies(height="Examples contain values: 99.")}, GateLimits())
    assert finding.value == "Examples contain values: 99"
    found = anomalies_pb2.Anomalies()
    found.anomaly_info["height"].short_description = "Short"
    found.dataset_anomaly_info.short_description = "Few"
    assert [finding.value for finding in check_anomalies({"train": found}, GateLimits())] == ["Short", "Few"]


def test_the_first_split_is_the_first_of_the_manifest_whatever_its_name(described):
    dataset = described(manifest_of({"zoo": {"cat": 5}, "alpha": {"dog": 1}}))
    (finding,) = check_classes(dataset, GateLimits())
    assert (finding.split, finding.value) == ("alpha", "dog, absent from zoo")


def test_labels_that_only_objects_have_are_no_missing_classes(described):
    for has_objects, missing in ((True, []), (False, ["no image of wheel"])):
        labelled = dataclasses.replace(manifest_of({"train": {"cat": 5}}), labels=("cat", "wheel"))
        dataset = described(labelled, has_objects)
        assert [finding.value for finding in check_classes(dataset, GateLimits())] == missing


def test_long_lists_of_classes_are_cut(described):
    dataset = described(manifest_of({"train": {f"c{index}": 1 for index in range(8)}}))
    (finding,) = check_classes(dataset, GateLimits(min_images_per_class=2))
    assert re.search(r"c4 with 1 image and 3 more$", finding.value)
    assert "c5" not in finding.value


def test_all_checks_report_together(library):
    limits = GateLimits(min_images_per_class=100, min_side_px=500, max_reject_ratio=0, skew_limits={"class": 0})
    outcome = check_dataset(library.load("rejects"), {"train": anomalies(height="x")}, limits)
    assert [finding.check for finding in outcome.findings] == [
        *("anomaly", "rejects", "small classes", "low resolution", "low resolution")
    ]
    assert {one.kind for one in outcome.comparisons} == {"skew"}

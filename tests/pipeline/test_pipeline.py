from __future__ import annotations

import json

import pytest

from beam_jobs.options import IngestOptions
from pipeline.config import EvaluateOptions, PipelineConfig

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def make():
    from pipeline.pipeline import create_pipeline

    return create_pipeline


@pytest.fixture
def config(tmp_path) -> PipelineConfig:
    ingest = IngestOptions(source="photos", out="", splits={"zeta": 0.8, "alpha": 0.2})
    return PipelineConfig(root=str(tmp_path), ingest=ingest, evaluate=EvaluateOptions(min_accuracy=0.6))


def test_every_component_is_there_once_and_training_waits_for_the_gate(make, config):
    components = {component.id: component for component in make(config).components}
    assert sorted(components) == [
        "DatasetGate",
        "DatasetReport",
        "Evaluator",
        "ExampleValidator",
        "ImageExampleGen",
        "Pusher",
        "SchemaGen",
        "StatisticsGen",
        "Trainer",
        "Transform",
    ]
    assert components["DatasetGate"] in components["Transform"].upstream_nodes
    assert components["Evaluator"] in components["Pusher"].upstream_nodes


def test_the_first_split_trains_and_the_second_is_held_back(make, config):
    properties = {component.id: component.exec_properties for component in make(config).components}
    assert json.loads(properties["Trainer"]["train_args"])["splits"] == ["zeta"]
    assert json.loads(properties["Trainer"]["eval_args"])["splits"] == ["alpha"]
    assert json.loads(properties["Evaluator"]["example_splits"]) == ["alpha"]
    ingest = IngestOptions.from_json(json.loads(properties["ImageExampleGen"]["options"]))
    assert list(ingest.splits) == ["zeta", "alpha"]


def test_a_reviewed_schema_is_imported_instead_of_inferred(make, config, tmp_path):
    schema = tmp_path / "schema.pbtxt"
    schema.write_text("")
    reviewed = PipelineConfig(root=config.root, ingest=config.ingest, schema=str(schema))
    ids = {component.id for component in make(reviewed).components}
    assert "ReviewedSchema" in ids
    assert "SchemaGen" not in ids


def test_the_threshold_holds_for_the_whole_split_and_not_for_every_class(config):
    from pipeline.pipeline import evaluation_config

    [metrics] = evaluation_config(config).metrics_specs
    accuracy = metrics.metrics[0]
    assert not accuracy.HasField("threshold")
    [threshold] = accuracy.per_slice_thresholds
    assert [list(spec.feature_keys) for spec in threshold.slicing_specs] == [[]]
    assert threshold.threshold.value_threshold.lower_bound.value == 0.6


def test_statistics_never_see_image_bytes(config):
    from pipeline.pipeline import statistics_options

    names = statistics_options(config).feature_allowlist
    assert "image/encoded" not in names
    assert "image/height" in names


def test_code_goes_to_workers_by_name_not_by_copy(make, config):
    for component in make(config).components:
        assert not component.exec_properties.get("module_file")

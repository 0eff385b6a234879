from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from components.dataset_gate.limits import GateLimits
from components.evaluation.results import EvaluateOptions
from pipeline.config import PipelineConfig
from trainer.options import TrainOptions

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def make():
    from pipeline.pipeline import create_pipeline

    return create_pipeline


@pytest.fixture
def config(tmp_path) -> PipelineConfig:
    ingest = IngestOptions(source="photos", out="", splits={"zeta": 0.8, "alpha": 0.2})
    return PipelineConfig(root=str(tmp_path), ingest=ingest, evaluate=EvaluateOptions(min_accuracy=0.6))


def test_the_first_split_trains_and_the_second_is_held_back(make, config):
    properties = {component.id: component.exec_properties for component in make(config).components}
    assert json.loads(properties["Trainer"]["train_args"])["splits"] == ["zeta"]
    assert json.loads(properties["Trainer"]["eval_args"])["splits"] == ["alpha"]
    assert json.loads(properties["Evaluator"]["example_splits"]) == ["alpha"]
    ingest = IngestOptions.from_json(json.loads(properties["ImageExampleGen"]["options"]))
    assert list(ingest.splits) == ["zeta", "alpha"]


def test_training_waits_for_the_gate_which_compares_with_the_dataset_before(make, config):
    components = {component.id: component for component in make(config).components}
    assert components["DatasetGate"] in components["Transform"].upstream_nodes
    assert components["Evaluator"] in components["Pusher"].upstream_nodes
    assert components["PreviousSpan"] in components["DatasetGate"].upstream_nodes
    assert "DatasetReport" in components


@pytest.mark.parametrize(("max_drop", "compared"), [(None, False), (0.1, True)])
def test_a_model_is_compared_with_the_one_before_only_when_asked(make, config, max_drop, compared):
    evaluate = EvaluateOptions(max_drop=max_drop)
    ids = {c.id for c in make(PipelineConfig(root=config.root, ingest=config.ingest, evaluate=evaluate)).components}
    assert ("BlessedModel" in ids) is compared


def test_limits_reach_the_gate_whole(make, config):
    limits = GateLimits(mode="report", max_drift_jensen_shannon=0.25, drift_limits={"brightness": 0.1})
    components = make(PipelineConfig(root=config.root, ingest=config.ingest, gate=limits)).components
    [text] = [component.exec_properties["limits"] for component in components if component.id == "DatasetGate"]
    assert GateLimits.from_json(json.loads(text)) == limits


def test_columns_that_do_not_exist_are_named_when_the_configuration_is_made(config):
    with pytest.raises(OptionError, match="evaluate.slice_by: there is no user column 'camera'"):
        PipelineConfig(root=config.root, ingest=config.ingest, evaluate=EvaluateOptions(slice_by=("camera",)))


def test_changed_code_of_the_model_and_changed_weights_miss_the_cache_of_the_trainer(
    make, config, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    weights = tmp_path / "first.weights.h5"
    train = TrainOptions(model="piped_model.build", weights=str(weights))
    asked = PipelineConfig(root=config.root, ingest=config.ingest, train=train)
    properties = []
    for code, content in (("1", b"a"), ("2", b"a"), ("2", b"b"), ("2", b"b")):
        (tmp_path / "piped_model.py").write_text(code)
        weights.write_bytes(content)
        properties.append({component.id: component.exec_properties for component in make(asked).components})
    trainers = [each["Trainer"]["custom_config"] for each in properties]
    assert trainers[2] == trainers[3]
    assert len(set(trainers)) == 3

from __future__ import annotations

from dataclasses import replace

import pytest

from beam_jobs.dataset import manifest
from components.evaluation import Accuracy
from trainer.bench import Rates

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def summary(dataset):
    from pipeline.runs.history import Step
    from pipeline.runs.summary import RunSummary

    step = Step(component="Trainer", state="cached", seconds=1.0, outputs={}, properties={})
    return RunSummary(
        dataset_dir=str(dataset),
        dataset=manifest.load(str(dataset)),
        anomalies={"train": 0, "eval": 2},
        findings=(),
        remarks=(),
        largest_class_share=0.25,
        baseline=None,
        accuracy=Accuracy(value=0.5, low=0.4038, high=0.5962, images=100),
        blessed=True,
        refused=(),
        model_dir="serving/7",
        report="report.html",
        schema="schema.pbtxt",
        schema_inferred=True,
        schema_named=False,
        steps={
            "Trainer": step,
            "Pusher": replace(step, component="Pusher", state="complete"),
            "PreviousSpan": replace(step, component="PreviousSpan", state="complete"),
        },
        rates=Rates(feedline=3000.0, naive=1500.0),
        input_wait=0.0123,
    )


def test_text_says_what_a_user_wants_to_know(summary):
    from pipeline.runs.summary import text

    lines = dict(line.split(maxsplit=1) for line in text(summary).splitlines() if not line.startswith(" "))
    assert lines["images"] == "24 found, 24 written"
    assert lines["rejected"] == "none"
    assert lines["duplicates"] == "none"
    assert lines["schema"] == "inferred; review it, then give it with --schema, or set schema in pipeline.yaml:"
    assert lines["anomalies"] == "0 in train, 2 in eval"
    assert lines["accuracy"] == (
        "0.5000, 95 % confidence interval 0.4038 to 0.5962, on 100 images; always predicting the largest class: 0.2500"
    )
    assert lines["gate"] == "passed"
    assert lines["input"] == "3,000 images/s, naive pipeline 1,500 images/s, ratio 2.00"
    assert lines["waited"] == "1.2% of the time of the training steps for input"
    assert lines["cache"] == "1 of 2 components taken from the cache"
    assert lines["model"] == "serving/7"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"blessed": False, "model_dir": ""}, "model        not pushed"),
        (
            {"blessed": False, "model_dir": "", "refused": ("loss is nan after step 7", "another")},
            "model        not pushed: loss is nan after step 7; another",
        ),
        (
            {"findings": ("drift: 0.4",), "remarks": ("ingest: an empty folder",)},
            "gate         only reports: drift: 0.4\ngate         and 1 remark: see the report\nremark       ingest: ",
        ),
        (
            {"remarks": ("ingest: a folder", "imbalance: 11 : 1")},
            "gate         passed with 2 remarks: see the report\nremark       ingest: a folder\nremark       imba",
        ),
        (
            {"baseline": Accuracy(value=0.75, low=0.6, high=0.9, images=9)},
            "before       0.7500, 95 % confidence interval",
        ),
        ({"schema_named": True}, "schema       inferred, because the file did not exist; review it"),
    ],
)
def test_what_is_not_as_usual_is_said(summary, changed, said):
    from pipeline.runs.summary import text

    assert said in text(replace(summary, **changed))


def test_json_holds_the_ratio_and_the_whole_manifest(summary):
    values = summary.to_json()
    assert values["rates"]["ratio"] == 2.0
    assert values["dataset"]["digest"] == summary.dataset.digest

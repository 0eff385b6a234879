"""The results of a run: as plain values, as text for a terminal, and as the report in the root of the pipeline.

The report is the page of the component DatasetReport, with the steps and the lineage of the run added.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ml_metadata.metadata_store import MetadataStore

from beam_jobs import storage
from beam_jobs.common.strings import plural
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from components.blessed_model import NODE_ID as BLESSED_MODEL
from components.dataset_gate.component import VERDICT_NAME
from components.dataset_gate.limits import Finding, Remark
from components.dataset_report.component import REPORT_NAME
from components.dataset_report.render import render
from components.evaluation import Accuracy, load_evaluation
from components.previous_span.resolver import NODE_ID as PREVIOUS_SPAN
from pipeline.config import PipelineConfig
from pipeline.runs.dataset_lines import aligned, dataset_lines
from pipeline.runs.history import Step
from pipeline.runs.lineage import run_details
from pipeline.runs.lineage_find import SERVING_DIR
from pipeline.runs.unchanged import RunOutput
from trainer.bench import Rates
from trainer.run_fn import HISTORY_NAME
from trainer.training.checkpoint import DIVERGED_NAME

_INFERRED = "inferred; review it, then give it with --schema, or set schema in pipeline.yaml:"
_INFERRED_AS_NAMED = "inferred, because the file did not exist; review it before the next run, which uses it"
_RESOLVERS = (PREVIOUS_SPAN, BLESSED_MODEL)  # never cached


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The results of a finished run.

    Attributes:
      dataset_dir: directory of the published dataset.
      dataset: manifest of the dataset.
      anomalies: split -> number of anomalous features.
      findings: findings of a gate that only reports, a sentence each.
      remarks: remarks of the gate, a sentence each.
      accuracy: accuracy on the held-back split.
      largest_class_share: accuracy of always predicting the largest class, 0-1; None if not measured.
      baseline: accuracy of the last blessed model on the same images; None without a comparison.
      blessed: whether the training succeeded and the accuracy reached its limits.
      refused: a sentence for each limit that the model missed.
      model_dir: directory of the pushed model; empty when it was not pushed.
      report: path of the HTML report.
      schema: path of the schema that was used.
      schema_inferred: whether this pipeline inferred the schema, which then needs a review.
      schema_named: whether the configuration names the file of the schema.
      steps: component -> step.
      rates: images/s of the input pipeline and of the naive one.
      input_wait: share of the training time spent waiting for input, 0-1.
    """

    dataset_dir: str
    dataset: Manifest
    anomalies: Mapping[str, int]
    findings: tuple[str, ...]
    remarks: tuple[str, ...]
    accuracy: Accuracy
    largest_class_share: float | None
    baseline: Accuracy | None
    blessed: bool
    refused: tuple[str, ...]
    model_dir: str
    report: str
    schema: str
    schema_inferred: bool
    schema_named: bool
    steps: Mapping[str, Step]
    rates: Rates
    input_wait: float

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            **asdict(self),
            "dataset": self.dataset.to_json(),
            "rates": {**asdict(self.rates), "ratio": self.rates.ratio},
        }


def collect(steps: Mapping[str, Step], rates: Rates, report: str, schema: str, is_named: bool) -> RunSummary:
    """Gathers the summary of a finished run.

    Args:
      steps: component -> step, from `history.newest_run`.
      rates: images/s measured on the dataset.
      report: path of the HTML report.
      schema: path of the copy of an inferred schema; empty when it was not inferred.
      is_named: whether the configuration names the file of the schema.
    """
    verdict = storage.read_json(os.path.join(steps["DatasetGate"].outputs["verdict"], VERDICT_NAME))
    model_dir = steps["Pusher"].properties["pushed_model"].get("pushed_destination", "")
    dataset_dir, model_run = steps["ImageExampleGen"].outputs["examples"], steps["Trainer"].outputs["model_run"]
    evaluator = steps["Evaluator"].outputs
    diverged_path = os.path.join(steps["Trainer"].outputs["model"], SERVING_DIR, DIVERGED_NAME)
    training_failure = (storage.read_bytes(diverged_path).decode(),) if os.path.exists(diverged_path) else ()
    is_blessed = os.path.exists(os.path.join(evaluator["blessing"], "BLESSED")) and not training_failure
    schema_step = steps.get("InferredSchema") or steps["ReviewedSchema"]
    dataset = manifest.load(dataset_dir)
    evaluation = load_evaluation(evaluator["evaluation"], dataset.labels)
    return RunSummary(
        dataset_dir=dataset_dir,
        dataset=dataset,
        anomalies=verdict["anomalies"],
        findings=tuple(str(Finding(**finding)) for finding in verdict["findings"]),
        remarks=tuple(str(Remark(**remark)) for remark in verdict.get("remarks", ())),  # older verdicts have none
        accuracy=evaluation.overall,
        largest_class_share=evaluation.largest_class_share,
        baseline=evaluation.baseline,
        blessed=is_blessed,
        refused=(*training_failure, *evaluation.refused),
        model_dir=model_dir,
        report=report,
        schema=schema or os.path.join(schema_step.outputs["schema"], "schema.pbtxt"),
        schema_inferred="InferredSchema" in steps,
        schema_named=is_named,
        steps=steps,
        rates=rates,
        input_wait=float(storage.read_json(os.path.join(model_run, HISTORY_NAME))["input_wait"]),
    )


def text(summary: RunSummary) -> str:
    """Returns the summary as aligned lines for a terminal."""
    steps = {name: step for name, step in summary.steps.items() if name not in _RESOLVERS}
    cached = [name for name, step in steps.items() if step.state == "cached"]
    rates = summary.rates
    share = summary.largest_class_share
    largest = "" if share is None else f"; always predicting the largest class: {share:.4f}"
    speed = f"{rates.feedline:,.0f} images/s, naive pipeline {rates.naive:,.0f} images/s, ratio {rates.ratio:.2f}"
    lines = [
        # The remarks include the warnings; verdicts of older releases have no remarks.
        *(line for line in dataset_lines(summary.dataset) if line[0] != "warning" or not summary.remarks),
        ("anomalies", ", ".join(f"{count} in {split}" for split, count in summary.anomalies.items())),
        *(("gate", f"only reports: {finding}") for finding in summary.findings),
        *_remark_lines(summary),
        ("schema", _schema_text(summary)),
        ("", summary.schema),
        ("accuracy", f"{_accuracy_text(summary.accuracy)}{largest}"),
        *([("before", _accuracy_text(summary.baseline))] if summary.baseline else []),
        ("input", speed),
        ("waited", f"{summary.input_wait:.1%} of the time of the training steps for input"),
        ("cache", f"{len(cached)} of {len(steps)} components taken from the cache"),
        ("dataset", summary.dataset_dir),
        ("report", summary.report),
        ("model", summary.model_dir or f"not pushed: {'; '.join(summary.refused)}"),
    ]
    return aligned(lines)


def _remark_lines(summary: RunSummary) -> list[tuple[str, str]]:
    if not summary.remarks:
        return [] if summary.findings else [("gate", "passed")]
    count = plural(len(summary.remarks), "remark")
    heading = ("gate", f"{'and' if summary.findings else 'passed with'} {count}: see the report")
    return [heading, *(("remark", remark) for remark in summary.remarks)]


def _schema_text(summary: RunSummary) -> str:
    if not summary.schema_inferred:
        return "as reviewed"
    return _INFERRED_AS_NAMED if summary.schema_named else _INFERRED


def run_output(summary: RunSummary) -> RunOutput:
    """Returns the output of `feedline run`."""
    reasons = "; ".join(summary.refused)
    refusal = f"{reasons}; the model was not pushed; train longer, evaluate on more images, or lower the limit"
    return RunOutput(
        text=text(summary),
        values=summary.to_json(),
        refusal="" if summary.blessed else refusal,
        model_dir=summary.model_dir,
    )


def unchanged_output(summary: RunSummary) -> RunOutput:
    """Returns the output of `feedline run` for a later run in which nothing changed: every component is cached."""
    steps = {
        name: step if name in _RESOLVERS else replace(step, state="cached") for name, step in summary.steps.items()
    }
    return run_output(replace(summary, steps=steps))


def _accuracy_text(accuracy: Accuracy) -> str:
    interval = f"95 % confidence interval {accuracy.low:.4f} to {accuracy.high:.4f}"
    return f"{accuracy.value:.4f}, {interval}, on {accuracy.images:,} images"


def write_report(
    config: PipelineConfig,
    store: MetadataStore,
    steps: Mapping[str, Step],
    source: str,
    verdict: Mapping[str, Any] | None = None,
) -> str:
    """Writes `report.html` about the newest run, finished or not, into the root.

    Args:
      config: configuration of the pipeline.
      store: database of the pipeline.
      steps: component -> step of the run.
      source: directory of the images, to show the rejected ones.
      verdict: content of `verdict.json` of a gate that stopped the run; None reads the file, if any.

    Returns:
      path of the page; empty when the run has no dataset.
    """
    dataset = _report_output(steps, "ImageExampleGen", "examples")
    if not dataset:
        return ""
    verdict_dir = _report_output(steps, "DatasetGate", "verdict")
    if verdict_dir and verdict is None:
        verdict = storage.read_json(os.path.join(verdict_dir, VERDICT_NAME))
    evaluation = _report_output(steps, "Evaluator", "evaluation")
    model = _report_output(steps, "Trainer", "model") if evaluation else ""
    model_run = _report_output(steps, "Trainer", "model_run")
    training = storage.read_json(os.path.join(model_run, HISTORY_NAME)) if model_run else None
    page = render(
        dataset,
        load_evaluation(evaluation, manifest.load(dataset).labels) if evaluation else None,
        verdict=verdict,
        model=os.path.join(model, SERVING_DIR) if model else "",
        input_options=asdict(config.input),
        run=replace(run_details(store, config.name), training=training),
        source=source,
    )
    path = os.path.join(config.root, REPORT_NAME)
    storage.write_bytes(path, page.encode())
    return path


def _report_output(steps: Mapping[str, Step], component: str, key: str) -> str:
    step = steps.get(component)
    return step.outputs.get(key, "") if step and step.state in ("complete", "cached") else ""

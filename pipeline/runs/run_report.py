"""The report in the root of a pipeline: that of the component, and what only a finished run knows: its own course."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ml_metadata.metadata_store import MetadataStore

from beam_jobs import storage
from beam_jobs.dataset import manifest
from components.dataset_gate.executor import VERDICT_NAME
from components.dataset_report.executor import REPORT_NAME
from components.dataset_report.render import render
from components.evaluation import load_evaluation
from pipeline.config import PipelineConfig
from pipeline.runs.history import Step, newest_run
from pipeline.runs.lineage import run_details

_SERVING = "Format-Serving"


def write_report(
    config: PipelineConfig, store: MetadataStore, source: str, verdict: Mapping[str, Any] | None = None
) -> str:
    """Writes `report.html` into the root, about as much of the newest run as there is.

    Args:
      config: of the pipeline.
      store: its database.
      source: where the images came from, to show what was rejected.
      verdict: of a gate that stopped the run; the one it left behind when None.

    Returns:
      the path of the page, empty when the run did not come to a dataset.
    """
    steps = newest_run(store, config.name)
    dataset = _output(steps, "ImageExampleGen", "examples")
    if not dataset:
        return ""
    judged = _output(steps, "DatasetGate", "verdict")
    if judged and verdict is None:
        verdict = json.loads(storage.read_bytes(os.path.join(judged, VERDICT_NAME)))
    evaluation = _output(steps, "Evaluator", "evaluation")
    model = _output(steps, "Trainer", "model") if evaluation else ""
    page = render(
        dataset,
        load_evaluation(evaluation, manifest.load(dataset).labels) if evaluation else None,
        verdict=verdict,
        model=os.path.join(model, _SERVING) if model else "",
        input_options=asdict(config.input),
        run=run_details(store, config.name),
        source=source,
    )
    path = os.path.join(config.root, REPORT_NAME)
    storage.write_bytes(path, page.encode())
    return path


def _output(steps: Mapping[str, Step], component: str, key: str) -> str:
    step = steps.get(component)
    return step.outputs.get(key, "") if step and step.state in ("complete", "cached") else ""

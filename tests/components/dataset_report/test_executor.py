from __future__ import annotations

import json
import shutil
from pathlib import Path

from tfx.types import standard_artifacts

from components.artifacts import DatasetVerdict, HtmlReport
from components.dataset_report.component import Executor
from components.evaluation import load_evaluation
from tests.components.conftest import artifact
from tests.components.dataset_report.page import Page


def do(dataset: Path, out: Path, properties: dict | None = None, **inputs) -> Page:
    Executor().Do(
        {"examples": [artifact(standard_artifacts.Examples, dataset)], **{name: [one] for name, one in inputs.items()}},
        {"report": [artifact(HtmlReport, out)]},
        {"code": "1", "input_options": "", "source": "", **(properties or {})},
    )
    assert [path.name for path in out.iterdir()] == ["report.html"]
    return Page((out / "report.html").read_text(encoding="utf-8"))


def test_every_input_is_on_the_page(dataset, evaluation_dir, always_first_class, tmp_path):
    verdict = artifact(DatasetVerdict, tmp_path / "verdict")
    (tmp_path / "verdict" / "verdict.json").write_text(json.dumps({"limits": {}, "anomalies": {}, "findings": []}))
    model = artifact(standard_artifacts.Model, tmp_path / "model")
    shutil.copytree(always_first_class, tmp_path / "model" / "Format-Serving")
    model_run = artifact(standard_artifacts.ModelRun, tmp_path / "model_run")
    (tmp_path / "model_run" / "training.json").write_text(json.dumps({"history": {"loss": [2.0, 1.0]}}))
    page = do(
        dataset,
        tmp_path / "report",
        {"input_options": json.dumps({"image_side_px": 16})},
        evaluation=artifact(standard_artifacts.ModelEvaluation, evaluation_dir),
        verdict=verdict,
        model=model,
        model_run=model_run,
    )
    words = page.words()
    found = load_evaluation(str(evaluation_dir)).overall
    assert f"{100 * found.value:.1f} % accuracy on {found.images} images" in words
    assert "The gate found no problem" in words
    assert "Epoch Loss 1 2 2 1" in words
    assert "Recall" in words
    assert "Macro average" in words
    assert "Weighted average" in words
    assert "decode_random_crop(16)|flip" in words
    assert f"is wrong for {found.images - round(found.value * found.images)}; these" in words


def test_rejects_are_drawn_from_the_source(tmp_path):
    from tests.components.dataset_report.page import ingest
    from tests.make_images import png

    made = ingest(tmp_path, {"a/good.png": png(1), "stray.png": png(2)})
    page = do(made, tmp_path / "report", {"source": str(tmp_path / "source")})
    assert [picture["alt"] for picture in page.images()] == ["a/good.png", "stray.png"]

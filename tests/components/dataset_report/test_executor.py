from __future__ import annotations

from pathlib import Path

import pytest
from tfx.types import standard_artifacts

from beam_jobs import manifest
from beam_jobs.errors import CorruptDataset
from components.artifacts import HtmlReport
from components.dataset_report.executor import Executor
from components.evaluation import load_evaluation


def artifact(kind, path: Path):
    path.mkdir(exist_ok=True)
    made = kind()
    made.uri = str(path)
    return made


def do(dataset: Path, evaluation: Path, out: Path) -> str:
    Executor().Do(
        {
            "examples": [artifact(standard_artifacts.Examples, dataset)],
            "evaluation": [artifact(standard_artifacts.ModelEvaluation, evaluation)],
        },
        {"report": [artifact(HtmlReport, out)]},
        {"code": "1"},
    )
    return (out / "report.html").read_text(encoding="utf-8")


def test_the_page_shows_the_dataset_and_the_evaluation(dataset, evaluation_dir, tmp_path):
    text = do(dataset, evaluation_dir, tmp_path / "report")
    found = load_evaluation(str(evaluation_dir))
    assert manifest.load(str(dataset)).digest[:16] in text
    assert f"<b>{100 * found.overall.value:.1f} %</b>accuracy" in text
    assert f'<tr><td>flower</td><td class="number">{found.classes["flower"].images}</td>' in text
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.html"]


def test_an_incomplete_evaluation_is_refused(dataset, tmp_path):
    with pytest.raises(CorruptDataset, match="holds no overall metrics"):
        do(dataset, tmp_path / "evaluation", tmp_path / "report")

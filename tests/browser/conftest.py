"""A real Chromium, and pages of the report with everything on them. `make test-browser` installs what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.make_images import encode, jpeg, png

SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "\"'><img src=x onerror='window.hacked=2'>"
EVIL_CLASS = "<script>window.hacked=4<"  # with a folder "script>" below it, the key closes the tag
# A slash would make it another folder.
EVIL_NAME = "\"'><img src=x onerror=window.hacked=3>.png"
LEVELS = {"bright": 200, "dark": 30, EVIL_CLASS: 120}


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the Chromium of the system."""
    if not os.environ.get("FEEDLINE_BROWSER"):  # set where a missing browser is a failure
        pytest.importorskip("playwright", reason="playwright is not installed; run `make test-browser`")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found and not os.environ.get("FEEDLINE_BROWSER"):
        pytest.skip("there is no Chromium; run `make test-browser`, which installs the Debian package")
    assert found, "there is no Chromium"
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox does not run as root, and containers have a small /dev/shm.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section, whose names try to be markup."""
    from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
    from components.dataset_report.render import render

    folder = tmp_path_factory.mktemp("report")
    source = _source(folder / "source")
    _ingest(source, folder / "dataset")
    history = {"loss": [2.0, 1.0, 0.5], "val_loss": [2.0, 1.5, 1.75], "learning_rate": [1e-3, 1e-4, 0.0]}
    details = RunDetails(
        training={"history": history, "config": {"train": {"model": SCRIPT}}},
        steps=(
            StepDetail(component="Trainer", state="complete", seconds=20.0),
            StepDetail(component=SCRIPT, state="cached", seconds=3.0),
        ),
        artifacts=(
            ArtifactDetail(id=1, type="Examples", producer=SCRIPT, properties={"digest": IMAGE}),
            ArtifactDetail(id=2, type="Model", producer="Trainer", inputs=(1,)),
        ),
    )
    comparison = {"kind": "skew", "baseline": "train", "split": "eval", "measure": "l_infinity"}
    verdict = {
        "mode": "report",
        "checks": [dict.fromkeys(("check", "measured", "limit", "setting", "result"), SCRIPT + IMAGE)],
        "anomalies": {"train": 0},
        "findings": [dict.fromkeys(("check", "split", "feature", "value", "limit", "remedy"), SCRIPT + IMAGE)],
        "comparisons": [{**comparison, "feature": IMAGE, "value": 0.2, "limit": 0.1}],
    }
    text = render(
        str(folder / "dataset"),
        verdict=verdict,
        model=str(_model(folder / "model")),
        input_options={"image_side_px": 32},
        run=details,
        source=str(source),
    )
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


def _source(folder: Path) -> Path:
    for label, level in LEVELS.items():
        home = folder / label / ("script>" if label == EVIL_CLASS else "")
        home.mkdir(parents=True)
        for index in range(14):
            pixels = np.full((40 + index, 60, 3), level + index, np.uint8)
            pixels[10:30, 10 + index : 30 + index] = 255 - level
            (home / f"{index:02d}.png").write_bytes(encode(Image.fromarray(pixels), "PNG"))
    shutil.copy(folder / "bright/00.png", folder / "dark/copy.png")
    (folder / "bright" / EVIL_NAME).write_bytes(png(3))
    (folder / "dark" / f"bad{EVIL_NAME}").write_bytes(b"<script>no image")
    (folder / "dark/cut.jpg").write_bytes(jpeg(4)[:1200])
    (folder / "stray.png").write_bytes(png(5))
    return folder


def _ingest(source: Path, out: Path) -> None:
    from beam_jobs.ingest import run
    from beam_jobs.options import IngestOptions

    run(IngestOptions(source=str(source), out=str(out), splits={"train": 0.6, "eval": 0.4}, max_reject_ratio=1))


def _model(path: Path) -> Path:
    """Exports a model that knows light from dark and nothing in between."""
    from tests.trainer.evaluation.brightness import linear
    from trainer.ops import parse_ops
    from trainer.serving.export import export

    # In order of the labels: the class of the script, bright, dark.
    model = linear([0.0, 5 / 255, -5 / 255], [-9.0, -7.0, 7.0])
    export(model, parse_ops("decode|resize(8)"), tuple(sorted(LEVELS)), 8, str(path))
    return path

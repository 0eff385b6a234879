"""The page of a very large dataset whose names and pictures are as heavy as they can be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.dataset import manifest, schemas
from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
from components.dataset_report.render import render
from components.evaluation import Accuracy, Evaluation
from tests import image_table
from tests.components.dataset_report.page import ingest
from tests.make_images import encode

IMAGES, REJECTS, CLASSES = 100_000, 20_000, 1_000
HEAVY = "<&'\"" * 100  # five characters each, once escaped


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory):
    """A dataset of 12 pictures of noise, which no JPEG makes small, with tables of 100,000 rows that share them."""
    folder = tmp_path_factory.mktemp("enlarged")
    random = np.random.default_rng(0)
    noise = {
        f"a/{index}.jpg": encode(random.integers(0, 256, (400, 400, 3), dtype=np.uint8), "JPEG", quality=95)
        for index in range(12)
    }
    made = ingest(folder, noise, splits={"train": 0.7, "eval": 0.3})
    dataset = manifest.load(str(made))
    labels = [f"{index:04d}{HEAVY}" for index in range(CLASSES)]
    columns = json.dumps({f"{index}{HEAVY}": HEAVY for index in range(12)})
    rows = image_table.read(made).to_pylist()
    enlarged = [
        {
            **rows[index % len(rows)],
            "key": f"{index}{HEAVY}",
            "label": labels[index % CLASSES],
            "extra": columns if index < 3_000 else "{}",
            "cluster": f"{index // 30:016x}" if index % 3 == 0 else "",
            "near": f"{index // 50:016x}" if index % 5 == 0 else "",
        }
        for index in range(IMAGES)
    ]
    image_table.write(made, pa.Table.from_pylist(enlarged, schemas.IMAGES))
    reject = {"uri": "x", "stage": "examine", "bytes": 5, "detail": HEAVY}
    rejects = [{**reject, "key": f"{index}{HEAVY}", "reason": f"reason{index % 22}"} for index in range(REJECTS)]
    schemas.write(str(made / "rejects.parquet"), pa.Table.from_pylist(rejects, schemas.REJECTS))
    splits = {
        name: replace(info, classes=dict.fromkeys(labels, IMAGES // CLASSES // 2))
        for name, info in dataset.splits.items()
    }
    counts = replace(dataset.counts, found=IMAGES + REJECTS, written=IMAGES, rejects={"reason0": REJECTS})
    manifest.write(replace(dataset, labels=tuple(labels), splits=splits, counts=counts), str(made))
    return made, labels


def test_the_page_of_100_000_images_stays_under_10_megabytes_and_says_what_is_left_out(enlarged):
    made, labels = enlarged
    half = Accuracy(value=0.5, low=0.4, high=0.6, images=50)
    evaluation = Evaluation(
        overall=half,
        classes=dict.fromkeys(labels, half),
        slices={f"{index}{HEAVY}": dict.fromkeys(labels, half) for index in range(20)},
        confusion={"labels": labels, "counts": np.ones((CLASSES, CLASSES), int).tolist()},
    )
    verdict = {
        "findings": [
            dict.fromkeys(("check", "split", "feature", "value", "limit", "remedy"), HEAVY) for _ in range(1_000)
        ],
        "comparisons": [
            {**dict.fromkeys(("kind", "baseline", "split", "feature", "measure"), HEAVY), "value": 0.5, "limit": 0.1}
            for _ in range(2_000)
        ],
    }
    details = RunDetails(
        steps=tuple(StepDetail(component=HEAVY, state="complete", seconds=1.0) for _ in range(500)),
        artifacts=tuple(
            ArtifactDetail(id=index, type=HEAVY, producer=HEAVY, inputs=tuple(range(index)), properties={HEAVY: HEAVY})
            for index in range(500)
        ),
    )
    text = render(str(made), evaluation, verdict=verdict, run=details, input_options={"image_side_px": 64})
    # No model of a thousand such classes is at hand: its mistakes are 0.6 MB of pictures and 24 rows at most.
    assert len(text.encode()) < 10_000_000 - 800_000
    words = " ".join(text.split())
    for said in (
        "of the first 60 of 1,000 classes",
        " images of 100,000, a random sample",
        "200 of them are listed",
        "30 are shown",
        "800 classes between them are left out",
        "700 better classes left out",
        "980 classes left out",
        "And 950 further findings",
        "And 1,800 further comparisons",
        "And 440 further artifacts",
        "And 440 further components",
    ):
        assert said in words, said

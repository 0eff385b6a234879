"""What a user types, with buckets in the place of folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.dataset import manifest
from tests.command import feedline
from tests.doc_pages import blocks
from tests.make_images import class_folders

pytestmark = [pytest.mark.stores, pytest.mark.timeout(600)]

RUN = ("--image-side", 32, "--epochs", 1, "--batch-size", 8, "--set", "train.learning_rate=0.01", "--json")
RUN += ("--set", "evaluate.above_largest_class=false")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "feedline" / "datasets"


def pipeline_run(*arguments: object) -> dict[str, Any]:
    """Runs the pipeline in a process of its own and returns its summary."""
    result = feedline("run", *arguments, *RUN, timeout=500)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_bucket_is_ingested_verified_inspected_and_reported(said, photos, bucket, dataset, tmp_path):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    said("ingest", source, "--out", out, "--splits", "train=0.7,eval=0.3", "--shards", 2)
    assert manifest.load(out).digest == manifest.load(str(dataset)).digest
    assert said("verify", out) == said("verify", dataset)
    assert said("inspect", out, "-n", 1) == said("inspect", dataset, "-n", 1)
    assert said("inspect", out, "--key", "china/000.jpg") == said("inspect", dataset, "--key", "china/000.jpg")
    shard = manifest.load(out).shard_paths(out, "train")[0]
    assert "records, " in said("inspect", shard)
    said("report", out, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/") > 10


def test_the_page_shows_commands_that_do_it(said, photos, s3_bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    s3_bucket.put_tree("photos", photos)
    (block,) = [block for block in blocks("object-stores") if "feedline verify" in block.code]
    *commands, training = block.commands
    assert [words[1] for words in commands] == ["ingest", "verify", "inspect", "report"]
    assert training[1] == "run"  # which a test below does, with fewer and smaller images
    for words in commands:
        assert said(*(word.replace("s3://bucket", s3_bucket.url) for word in words[1:]))
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_what_cannot_be_reached_is_one_line(refused, bucket, tmp_path):
    assert "is not a dataset: it has no dataset.json" in refused("verify", f"{bucket.url}/none")
    assert "is not a dataset: it has no dataset.json" in refused("report", f"{bucket.url}/none")
    assert "cannot be read" in refused("inspect", f"{bucket.url}/none")
    assert "is not a dataset" in refused("run", "--dataset", f"{bucket.url}/none", "--root", tmp_path / "work")
    assert "cannot be listed" in refused("ingest", f"{bucket.url}-not/photos", "--out", tmp_path / "out")
    assert "cannot be listed" in refused("run", "--images", f"{bucket.url}-not/x", "--root", tmp_path / "work")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "work").exists()


def test_denied_access_is_one_line(refused, bucket, tmp_path):
    bucket.tap.refuse = lambda _: 403
    commands = (("verify",), ("inspect",), ("report",), ("bench", "input"))
    for command in commands:
        assert "cannot be read" in refused(*command, f"{bucket.url}/dataset")
    assert "cannot be read" in refused("run", "--dataset", f"{bucket.url}/dataset", "--root", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_the_pipeline_takes_a_dataset_of_a_bucket_and_trains_from_it(dataset, s3_bucket, tmp_path, cache):
    there = s3_bucket.put_tree("dataset", dataset)
    work = tmp_path / "work"
    made = pipeline_run("--dataset", there, "--root", work)
    assert (Path(made["model_dir"]) / "saved_model.pb").is_file()
    assert made["dataset"]["digest"] == manifest.load(str(dataset)).digest
    assert len(list(cache.rglob("*.tfrecord"))) == 4
    again = pipeline_run("--dataset", there, "--root", work)
    assert {again["steps"][name]["state"] for name in ("ImageExampleGen", "StatisticsGen", "Trainer")} == {"cached"}


def test_the_pipeline_takes_images_of_a_bucket(gs_bucket, tmp_path):
    source = gs_bucket.put_tree("photos", class_folders(tmp_path / "photos", per_class=20))
    splits = ("--splits", "train=0.7,eval=0.3", "--shards", 1)
    made = pipeline_run("--images", source, "--root", tmp_path / "work", *splits)
    assert made["dataset"]["counts"]["written"] == 40
    assert (Path(made["model_dir"]) / "saved_model.pb").is_file()


def test_the_input_pipeline_of_a_bucket_is_measured(said, dataset, s3_bucket):
    there = s3_bucket.put_tree("dataset", dataset)
    found = json.loads(
        said("bench", "input", there, *("--image-side", 32, "--batch-size", 8, "--seconds", 0.05, "--json"))
    )
    assert found["pipeline"]["images_s"] > 0

"""What `feedline compile` refuses before it loads TFX, and what it says to do with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import config
from pipeline.runners import airflow
from tests.command import loads

_HEAVY = ("tfx", "tensorflow", "kfp")  # what takes half a minute to load
_GOOD = {"root": "gs://bucket/photos", "source": "gs://bucket/raw", "image": "registry/feedline:1"}


def project(folder: Path, **values: str) -> Path:
    found = {**_GOOD, **values}
    path = folder / "pipeline.yaml"
    path.write_text(
        f"root: {found['root']}\ningest: {{source: {found['source']}}}\nkubeflow: {{image: {found['image']}}}\n"
    )
    return path


def test_a_file_that_cannot_be_written_is_refused_before_tfx_is_loaded(tmp_path, photos):
    assignments = ["--set", "root=work", "--set", f"ingest.source={photos}"]
    # No file is made there, not even by root.
    out = "/proc/self/new/dag.py"
    line = ["compile", "--target", "airflow", "-c", project(tmp_path), "--out", out, *assignments]
    code, loaded, done = loads(_HEAVY, *line)
    assert (code, loaded) == (2, [])
    assert f"--out {out} cannot be written: /proc/self cannot be written by " in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"root": "gs://BUCKET/photos"}, "root is 'gs://BUCKET/photos'; replace BUCKET by your name"),
        ({"source": "gs://YOUR-BUCKET/raw"}, "ingest.source is 'gs://YOUR-BUCKET/raw'; replace YOUR-BUCKET by"),
        ({"image": "IMAGE"}, "kubeflow.image is 'IMAGE'; replace IMAGE by your name"),
    ],
)
def test_placeholders_are_refused(tmp_path, refused, values, message):
    out = tmp_path / "compiled.yaml"
    line = ["compile", "--target", "kubeflow", "-c", project(tmp_path, **values), "--out", out]
    assert message in refused(*line)
    assert not out.exists()


@pytest.mark.parametrize(
    ("path", "word"),
    [("gs://BUCKET/x", "BUCKET"), ("gs://bucket/DIR", ""), ("s3://Old.Bucket/{SPAN}", ""), ("BUCKET", "")],
)
def test_only_words_that_cannot_be_names_of_buckets_are_placeholders(path, word):
    assert config.placeholder_in_path(path) == word


@pytest.mark.parametrize(
    ("image", "word"), [("IMAGE:1", "IMAGE"), ("host:5000/P/x@sha256:ab", "P"), ("registry/feedline:RC1", "")]
)
def test_only_words_that_cannot_be_parts_of_an_image_are_placeholders(image, word):
    assert config.placeholder_in_image(image) == word


# --- the folder of Airflow


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    (tmp_path / "airflow" / "dags").mkdir(parents=True)
    return tmp_path / "airflow"


def test_a_file_that_is_in_the_folder_of_airflow_need_not_be_put_there(home, monkeypatch):
    monkeypatch.chdir(home)
    for out in (home / "dags" / "dag.py", home / "dags" / "mine" / "dag.py", "dags/dag.py"):
        assert airflow.dags_folder_hint(str(out), "photos") == (
            "it is in Airflow's DAGs folder, so try it: airflow dags test photos"
        )
    elsewhere = airflow.dags_folder_hint(str(home / "dags.py"), "photos")
    assert elsewhere == f"put it into Airflow's DAGs folder {home}/dags, then: airflow dags test photos"
    (home / "dags").rmdir()
    assert airflow.dags_folder_hint("dag.py", "photos").startswith("put it into Airflow's DAGs folder, then: ")


def test_the_folder_is_the_one_that_airflow_is_told(home, tmp_path, monkeypatch):
    assert airflow.dags_folder() == f"{home}/dags"
    (home / "airflow.cfg").write_text(f"[core]\ndags_folder = {tmp_path}/told\n[logging]\nformat = %(message)s\n")
    assert airflow.dags_folder() == f"{tmp_path}/told"
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", f"{tmp_path}/named")
    assert airflow.dags_folder() == f"{tmp_path}/named"
    monkeypatch.delenv("AIRFLOW__CORE__DAGS_FOLDER")
    (home / "airflow.cfg").write_text("this is no configuration")
    assert airflow.dags_folder() == f"{home}/dags"

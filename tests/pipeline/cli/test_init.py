from __future__ import annotations

import json
import os
import re

import pytest

from pipeline.cli import execute
from pipeline.cli.init import project_files
from pipeline.config import build
from pipeline.settings.layers import gather
from tests.command import feedline
from tests.make_images import class_folders

pytestmark = pytest.mark.slow

WRITTEN = [".gitignore", "README.md", "my_model.py", "pipeline.yaml"]


def uncommented(text: str) -> str:
    """The file as it is when every setting in it is switched on."""
    return re.sub(r"^( *)#(?=[a-z])", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["deep/er", "."])
def test_a_project_is_written_into_any_directory(here, said, name):
    (here / "empty").mkdir()
    target = here / name
    shown = said("init", name)
    assert sorted(set(os.listdir(target)) - {"empty"}) == WRITTEN
    assert "Set ingest.source in" in shown
    last = shown.splitlines()[-1]
    assert last.startswith("Try next:  ")
    assert last.endswith("run --config pipeline.yaml")
    assert (f"cd {name} && " in last) == (name != ".")


def test_it_is_written_beside_the_images(here, said):
    class_folders(here / "photos", per_class=1)
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert "Set ingest.source in" not in said("init", ".")  # they are where the file says
    assert sorted(os.listdir()) == sorted([*WRITTEN, "photos"])
    assert before == {path: path.read_bytes() for path in (here / "photos").rglob("*") if path.is_file()}
    assert gather("pipeline.yaml", {}, (), {}).build().ingest.source == str(here / "photos")


@pytest.mark.parametrize("arguments", ["", "-c pipeline.yaml"])
def test_a_run_without_a_file_leads_to_init(here, refused, arguments):
    assert re.search(r"`[^`]+ init` creates one$", refused("run", *arguments.split()))
    assert execute(["init"]) == 0
    line = refused("run", *arguments.split())
    assert ("photos does not exist" if arguments else "in the --config file, as in -c pipeline.yaml\n") in f"{line}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "full"], "full already has pipeline.yaml, README.md; move them, or name another directory"),
        (["init", "full/notes.txt"], "full/notes.txt is a file; name an existing or a new directory"),
        (["init", "gs://bucket/project"], "gs://bucket/project is not on this machine; name a local directory"),
        (["init", "full/notes.txt/below"], "full/notes.txt/below cannot be written: Not a directory"),
    ],
)
def test_what_is_there_is_left_alone(here, refused, arguments, message):
    (here / "full").mkdir()
    for name in ("notes.txt", "pipeline.yaml"):
        (here / "full" / name).write_text("mine")
    (here / "full" / "README.md").symlink_to("nowhere")
    assert message in refused(*arguments)
    assert sorted(path.name for path in here.rglob("*")) == ["README.md", "full", "notes.txt", "pipeline.yaml"]
    assert (here / "full" / "pipeline.yaml").read_text() == "mine"


def test_the_file_is_a_configuration_and_what_it_shows_as_defaults_are_the_defaults(here):
    text = project_files()["pipeline.yaml"]
    (here / "as_it_is.yaml").write_text(text)
    (here / "all.yaml").write_text(uncommented(text))
    as_it_is, everything = (gather(f"{name}.yaml", {}, (), {}) for name in ("as_it_is", "all"))
    assert len(everything.origin) > len(as_it_is.origin) + 20
    assert everything.build() == as_it_is.build()


def test_named_images_are_found_from_the_project(here, said):
    class_folders(here / "my: photos", per_class=1)
    values = json.loads(said("init", "project", "--images", "my: photos", "--json"))
    assert values["next"].startswith("cd project && ")
    os.chdir("project")
    assert build(gather("pipeline.yaml", {}, (), {}).values).ingest.source == str(here / "my: photos")


def test_images_that_are_not_there_are_named(here, capsys):
    assert execute(["init", "project", "--images", "nowhere"]) == 0
    said = "nowhere does not exist yet; put the images there, or correct ingest.source in project/pipeline.yaml\n"
    assert capsys.readouterr().err == said


def test_a_remote_source_is_written_as_it_is(here, capsys):
    assert execute(["init", "project", "--images", "s3://bucket/{SPAN}"]) == 0
    assert capsys.readouterr().err == ""
    assert gather("project/pipeline.yaml", {}, (), {}).values["ingest"]["source"] == "s3://bucket/{SPAN}"


@pytest.mark.e2e
def test_what_was_written_runs_and_trains_the_model_in_it(here, photos, monkeypatch):
    assert feedline("init", "project", "--images", photos, cwd=here).returncode == 0
    project = here / "project"
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setenv("FEEDLINE_INPUT__IMAGE_SIDE_PX", "32")
    assignments = ("--set", "train.epochs=1", "--set", "train.model=my_model.build", "--batch-size", 8)
    assignments += ("--set", "evaluate.above_largest_class=false")
    done = feedline("run", "--config", "pipeline.yaml", *assignments, cwd=project)
    assert done.returncode == 0, done.stderr
    assert os.listdir(project / "work" / "serving")
    assert (project / "work" / "report.html").is_file()
    ignored = (project / ".gitignore").read_text().splitlines()
    assert {f"{name.name}/" if name.is_dir() else name.name for name in project.iterdir()} - set(WRITTEN) - {
        "__pycache__"
    } <= set(ignored)

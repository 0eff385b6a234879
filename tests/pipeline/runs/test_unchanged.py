"""What a run depends on, each changed alone: the answer of the last run is used only while all of it is the same."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import PipelineConfig, build
from pipeline.runs import unchanged
from pipeline.runs.root import exclusive_run
from pipeline.runs.unchanged import RunOutput
from tests.make_images import class_folders, jpeg

# Settings that are of no dataset, or of no type, with the value of the test: nothing is known then.
WITHOUT_DATA = ("source", "splits", "span", "version", "columns")
ANSWER = RunOutput(text="images  3", values={"images": 3}, refusal="", model_dir="serving/1")
FILES = ("photos/china/000.jpg", "weights.h5", "schema.pbtxt", "mine.py", "layers.py", "work/report.html")
OUTPUTS = ("metadata.sqlite", "report.html", "artifacts/Trainer/model/7/saved.pb", "serving/1/saved.pb")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Photographs, a root with outputs, a module of the user, and what the configuration names besides."""
    class_folders(tmp_path / "photos", per_class=3)
    for name in OUTPUTS:
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("output")
    for name in ("weights.h5", "schema.pbtxt", "layers.py"):
        (tmp_path / name).write_text("#")
    (tmp_path / "mine.py").write_text("def build(spec):\n    from layers import block\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    unchanged._environment.cache_clear()
    yield tmp_path
    unchanged._environment.cache_clear()


@pytest.fixture
def config(place: Path) -> PipelineConfig:
    return build(
        {
            "root": str(place / "work"),
            "ingest": {"source": str(place / "photos")},
            "train": {"model": "mine.build", "weights": str(place / "weights.h5")},
            "schema": str(place / "schema.pbtxt"),
        }
    )


@pytest.fixture
def known(config: PipelineConfig) -> PipelineConfig:
    """The configuration of a run that is on record."""
    unchanged.write_record(config, unchanged.input_digest(config), ANSWER)
    return config


def is_answered(config: PipelineConfig) -> bool:
    """Whether a new process, which has looked at nothing yet, answers from the record."""
    unchanged._environment.cache_clear()
    return unchanged.find(config) is not None


def edit(path: Path) -> None:
    """Changes a byte, and neither the size nor the time of the last change."""
    before = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, (*path, field.name))
        else:
            yield (*path, field.name)


def test_the_answer_of_the_last_run_is_given_until_something_changes_and_leaves_a_trace(known):
    assert unchanged.find(known)[0] == ANSWER
    assert unchanged.find(known)[0] == ANSWER
    assert len(unchanged.traces(known.root)) == 2
    edit(Path(known.root) / "report.html")
    assert unchanged.find(known) is None
    assert len(unchanged.traces(known.root)) == 2


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of values of another type
def test_every_setting_counts(config):
    before, settings = unchanged.input_digest(config), list(leaves(config))
    assert before
    for *sections, name in settings:
        changed = copy.deepcopy(config)
        node: Any = changed
        for section in sections:
            node = getattr(node, section)
        value = getattr(node, name)
        object.__setattr__(node, name, value + 1 if type(value) in (int, float) else f"not {value}")
        after = unchanged.input_digest(changed)
        assert after != before, name
        assert after or name in WITHOUT_DATA, name
    assert len(settings) > 100


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [edit, Path.unlink, lambda path: path.rename(f"{path}.bak")])
def test_a_changed_file_counts(place, known, name, change):
    change(place / name)
    assert not is_answered(known)


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_counts(place, known, name):
    edit(place / "work" / name)
    assert not is_answered(known)


@pytest.mark.parametrize(
    "name",
    [
        *("photos/china/new.jpg", "photos/new/0.jpg", "work/artifacts/Trainer/model/8/saved.pb"),
        *("elsewhere/layers.py", "elsewhere/library-2.0.dist-info/METADATA", "elsewhere/more.pth"),
    ],
    ids=["image", "class", "output", "module that comes first", "version of a package", "more paths"],
)
def test_a_new_file_counts(place, known, name):
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(jpeg())
    assert not is_answered(known)


def test_other_code_and_another_environment_count(known, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert not is_answered(known)
    monkeypatch.delenv("KERAS_BACKEND")
    assert is_answered(known)
    monkeypatch.setattr(unchanged, "code_version", lambda: "another")
    assert not is_answered(known)


def test_the_order_of_the_splits_counts(place):
    orders = ({"train": 0.5, "eval": 0.5}, {"eval": 0.5, "train": 0.5})
    ingests = [{"source": str(place / "photos"), "splits": splits} for splits in orders]
    one, other = (unchanged.input_digest(build({"root": str(place / "work"), "ingest": ingest})) for ingest in ingests)
    assert one
    assert other not in ("", one)


def test_another_number_of_the_same_images_counts(place):
    config = build({"root": str(place / "work"), "ingest": {"source": str(place / "spans" / "{SPAN}")}})
    class_folders(place / "spans" / "1", per_class=1)
    before = unchanged.input_digest(config)
    (place / "spans" / "1").rename(place / "spans" / "2")
    assert before
    assert unchanged.input_digest(config) not in ("", before)


def test_every_archive_of_a_pattern_counts(place):
    for name in ("in/a.tar", "other/b.tar"):
        (place / name).parent.mkdir()
        (place / name).write_bytes(b"tar")
    config = build({"root": str(place / "work"), "ingest": {"source": f"{place}/in/{{a,../other/b}}.tar"}})
    before = unchanged.input_digest(config)
    edit(place / "other/b.tar")
    assert before
    assert unchanged.input_digest(config) not in ("", before)


def test_what_changes_during_a_run_is_not_recorded(place, config):
    before = unchanged.input_digest(config)
    edit(place / "photos/china/000.jpg")
    unchanged.write_record(config, before, ANSWER)
    assert not is_answered(config)


def test_another_run_ends_the_record(place, config):
    shutil.rmtree(place / "work")  # what is there is of no run
    (place / "work").mkdir()
    unchanged.write_record(config, unchanged.input_digest(config), ANSWER)
    assert is_answered(config)
    with exclusive_run(config):
        assert not unchanged.is_recorded(config.root)
    assert unchanged.traces(config.root) == []


@pytest.mark.parametrize("doubt", ["table", "link", "store", "weights in a store", "damaged record"])
def test_what_cannot_be_compared_takes_the_long_way(place, config, doubt):
    if doubt == "table":
        (place / "table.csv").write_text("image,label\nphotos/china/000.jpg,a\n")
        config = build({"root": config.root, "ingest": {"source": str(place / "table.csv")}})
    elif doubt == "link":
        (place / "photos" / "more").symlink_to(place / "photos" / "china")
    elif doubt == "store":
        config = build({"root": config.root, "ingest": {"source": "gs://bucket/photos"}})
    elif doubt == "weights in a store":
        ingest, train = {"source": str(place / "photos")}, {"weights": "gs://bucket/weights.h5"}
        config = build({"root": config.root, "ingest": ingest, "train": train})
    unchanged.write_record(config, unchanged.input_digest(config), ANSWER)
    if doubt == "damaged record":
        (place / "work" / "unchanged.json").write_text('{"format": 1, "inputs": []}')
    assert not is_answered(config)

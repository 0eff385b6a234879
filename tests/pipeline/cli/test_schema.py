from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli import execute as run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def inferred(_dataset, tmp_path_factory) -> Path:
    """The schema file of the dataset. Read only."""
    path = tmp_path_factory.mktemp("inferred") / "schema.pbtxt"
    assert run(["schema", "init", str(_dataset), "--out", str(path)]) == 0
    return path


@pytest.fixture
def place(inferred, dataset, here) -> Path:
    """A directory with `dataset` and `old.pbtxt`, its schema, and in `new.pbtxt` what a reviewer made of it."""
    text = inferred.read_text()
    (here / "old.pbtxt").write_text(text)
    text = text.replace('value: "flower"', 'value: "flower"\n  value: "zoo"')
    text = text.replace('name: "image/bytes"', 'name: "image/size"')
    (here / "new.pbtxt").write_text(text)
    return here


def test_a_schema_is_shown_as_a_table(place, said):
    lines = [line.split(maxsplit=4) for line in said("schema", "show", "old.pbtxt").splitlines()]
    assert lines[0] == ["name", "type", "presence", "shape", "domain"]
    assert ["image/class/text", "bytes", "required", "1", "china, flower"] in lines
    assert ["image/mean_rgb", "float", "required", "3", "0 to 255"] in lines
    assert ["int_domain", "{", "is_categorical:", "true", "}"] in lines


def test_a_schema_is_shown_to_machines(place, said):
    features = {row["name"]: row for row in json.loads(said("schema", "show", "old.pbtxt", "--json"))["features"]}
    assert features["image/format"] == {
        "name": "image/format",
        "type": "bytes",
        "presence": "required",
        "shape": "1",
        "domain": "set",
        "values": ["jpeg", "png"],
        "other": "",
    }


def test_a_difference_names_both_values_and_the_exit_code_tells_it(place, capsys):
    assert run("schema diff old.pbtxt new.pbtxt".split()) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "- image/bytes: int, required, 1, 1 to 52,428,800",
        "+ image/size: int, required, 1, 1 to 52,428,800",
        "~ image/class/text: values 2 values -> 3 values, with zoo",
    ]
    assert captured.err == "feedline: error: old.pbtxt and new.pbtxt differ in 3 features\n"


def test_a_difference_is_told_to_machines(place, capsys):
    assert run("schema diff old.pbtxt new.pbtxt --json".split()) == 3
    values = json.loads(capsys.readouterr().out)
    assert values["equal"] is False
    assert [row["name"] for row in values["added"]] == ["image/size"]
    assert [row["name"] for row in values["removed"]] == ["image/bytes"]
    assert values["changed"]["image/class/text"]["old"]["values"] == ["china", "flower"]
    assert values["changed"]["image/class/text"]["new"]["values"] == ["china", "flower", "zoo"]


def test_a_dataset_is_compared_by_the_schema_it_would_get(place, said):
    values = json.loads(said("schema", "diff", "old.pbtxt", "dataset", "--json"))
    assert values == {"equal": True, "added": [], "removed": [], "changed": {}}


def test_a_reviewed_file_is_overwritten_on_demand_alone(place, said, refused):
    (place / "old.pbtxt").write_text("# reviewed\n")
    line = refused("schema", "init", "dataset", "--out", "old.pbtxt")
    assert "old.pbtxt exists, and may have been reviewed" in line
    assert (place / "old.pbtxt").read_text() == "# reviewed\n"
    values = json.loads(said("schema", "init", "dataset", "--out", "old.pbtxt", "--overwrite", "--json"))
    assert values == {"schema": str(place / "old.pbtxt"), "features": 11}
    assert "image/brightness" in (place / "old.pbtxt").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("schema init dataset --out old.pbtxt/schema.pbtxt", "--out old.pbtxt/schema.pbtxt cannot be written: "),
        ("schema init dataset --out dataset --overwrite", "--out dataset is a directory; name a file"),
        ("schema show empty.pbtxt", "schema empty.pbtxt names no feature; `feedline schema init DATASET --out FILE`"),
        ("schema show dataset/dataset.json", "schema dataset/dataset.json cannot be used: 1:1 : "),
    ],
)
def test_a_wrong_request_is_one_line_with_code_2(place, refused, line, message):
    (place / "empty.pbtxt").touch()
    before = sorted(path.name for path in place.iterdir())
    error = refused(*line.split())
    assert error.startswith("feedline: error: ")
    assert message in error
    assert sorted(path.name for path in place.iterdir()) == before

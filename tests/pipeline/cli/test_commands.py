"""What a user types and what comes back. In process where nothing heavy is loaded."""

from __future__ import annotations

import json
import os
import re
from importlib import metadata
from pathlib import Path

import pytest

from beam_jobs import stack
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from pipeline.cli import execute as run
from pipeline.cli.ingest import command as ingest_command
from tests.command import loads
from tests.make_images import class_folders, jpeg
from tests.trainer.evaluation.brightness import linear
from trainer.ops import parse_ops
from trainer.serving.export import export
from trainer.serving.predict import ServingSpec


@pytest.fixture
def place(here: Path) -> Path:
    """A working directory with one good and several wrong sources."""
    class_folders(here / "photos", per_class=6)
    (here / "empty").mkdir()
    (here / "hollow" / "cat").mkdir(parents=True)
    (here / "flat").mkdir()
    (here / "flat" / "1.jpg").write_bytes(jpeg())
    (here / "table.csv").write_text("file,kind\nphotos/china/000.jpg,a\n")
    (here / "wrong.yaml").write_text("trian: {epochs: 3}\n")
    return here


WRONG = [
    ("ingest empty --out o", "empty holds nothing; it must hold one folder per class"),
    ("ingest wrong.yaml --out o", "wrong.yaml is not a source; give a folder"),
    ("ingest table.csv --out o", "table.csv has no column 'image' for the image; it has 'file', 'kind'"),
    ("ingest photos --out o --shard-size 3", "'--shard-size'; did you mean --shards? see `feedline ingest --help`"),
    ("ingest photos --out o --splits a-b=1", "split name 'a-b' is not allowed"),
    ("ingest photos --out o --duplicates maybe", "'maybe'; known are keep, drop, report; see `feedline ingest --help`"),
    (
        "ingest photos --out o --side-px 64",
        "--side-px has no effect with --policy copy; give --policy resize or raw too",
    ),
    *(
        (f"ingest photos --out o {more} --near-distance 2", "give --near-duplicates report or group or drop too")
        for more in ("--near-duplicates off", "--facts basic")
    ),
    ("ingest photos --out o --overwrite --append", "overwrite and append exclude one another; give one of them"),
    ("ingest photos --out o --append", "o holds no dataset to add to; leave --append out to make one"),
    ("ingest photos", "--out is missing; see `feedline ingest --help`"),
    ("ingest photos --out flat", "flat holds '1.jpg' and is not an unfinished ingest"),
    ("ingst", "there is no command 'ingst'; did you mean ingest?"),
    ("ingest photos --out o --seed x", "--seed: 'x' is not a valid integer; see `feedline ingest --help`"),
    ("ingest --out o", "SOURCE is missing; see `feedline ingest --help`"),
    ("completion fsh", "there is no SHELL 'fsh'; did you mean fish? known are bash, zsh, fish"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_request_is_one_line_with_code_2_and_writes_nothing(place, refused, line, message):
    before = sorted(place.rglob("*"))
    assert message in refused(*line.split())
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_a_group_without_command_shows_its_help(capsys, arguments):
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: feedline")


def test_ingest_prints_its_result_and_json_has_all_of_it(place, said, capsys):
    assert run("ingest photos --out plain --splits train=0.5,eval=0.5".split()) == 0
    captured = capsys.readouterr()
    assert "train" in captured.out
    assert str(place / "plain") in captured.out
    assert "scanned" in captured.err
    values = json.loads(said("ingest", "photos", "--out", "machine", "--splits", "train=0.5,eval=0.5", "--json"))
    assert values["counts"]["written"] == 12
    assert values["digest"] == json.loads((place / "plain" / "dataset.json").read_text())["digest"]


@pytest.fixture
def asked_for(monkeypatch):
    """Returns a function that runs a line and returns the options that reach the ingest, which is not run."""
    seen = []

    def take(options, **_):
        seen.append(options)
        raise OptionError("enough")

    monkeypatch.setattr("beam_jobs.ingest.run", take)
    return lambda line: (run(line.split()), seen.pop())[1]


def test_what_is_not_given_is_left_to_the_defaults(asked_for, place):
    assert asked_for("ingest photos --out o") == IngestOptions(source="photos", out="o")
    assert asked_for("ingest photos --out o --append") == IngestOptions(source="photos", out="o", append=True)


def test_the_defaults_that_help_names_are_the_defaults():
    options = IngestOptions(source="photos", out="o")
    sections = (options, options.pixels, options.columns, options.limits, options.http)
    values = {name: value for section in sections for name, value in vars(section).items()}
    values |= {f"{name}_column": value for name, value in vars(options.columns).items()}
    values |= {f"http_{name}": value for name, value in vars(options.http).items()}
    named = {
        parameter.name: default[1]
        for parameter in ingest_command.params
        if (default := re.search(r"\[default: (\S+)\]$", getattr(parameter, "help", None) or ""))
        and parameter.name in values.keys() - {"splits"}
    }
    assert len(named) >= 28
    assert named == {
        name: f"{values[name]:g}" if isinstance(values[name], float) else str(values[name]) for name in named
    }


def test_images_without_a_label_are_asked_for_with_an_empty_column(place, said):
    line = "ingest table.csv --out o --image-column file --splits all=1 --json --label-column"
    values = json.loads(said(*line.split(), ""))
    assert (values["label_kind"], values["labels"], values["splits"]["all"]["classes"]) == ("none", [], {})


def test_one_option_of_a_section_leaves_the_others_to_the_dataset_that_is_added_to(place, said, refused):
    resized = "--splits train=0.5,eval=0.5 --policy resize --side-px 24 --quality 71 --min-side-px 9"
    said("ingest", "photos", "--out", "o", *resized.split())
    (place / "photos" / "china" / "new.jpg").write_bytes(jpeg(99))
    said(*"ingest photos --out o --append --side-px 24 --max-side-px 900".split())
    options = json.loads((place / "o" / "dataset.json").read_text())["options"]
    assert options["pixels"] == {"policy": "resize", "side_px": 24, "fit": "short", "quality": 71}
    assert (options["limits"]["min_side_px"], options["limits"]["max_side_px"]) == (9, 900)
    line = refused(*"ingest photos --out o --append --side-px 25".split())
    assert "o was made with pixels.side_px 24, not 25; omit it" in line


def test_what_is_of_no_use_to_the_dataset_that_is_added_to_is_to_be_left_out(place, said, refused):
    said("ingest", "photos", "--out", "o", "--splits", "train=0.5,eval=0.5")
    line = refused("ingest", "photos", "--out", "o", "--append", "--side-px", 256)
    assert line == "feedline: error: --side-px has no effect with --policy copy; leave it out"


def test_class_folders_without_a_good_image_are_named(place, capsys):
    (place / "photos" / "bare").mkdir()
    (place / "photos" / ".hidden").mkdir()
    (place / "photos" / "spoilt").mkdir()
    (place / "photos" / "spoilt" / "1.jpg").write_bytes(b"no")
    assert run("ingest photos --out o --max-reject-ratio 0.5".split()) == 0
    said = capsys.readouterr().err
    assert "warning   2 class folders hold no good image, so the dataset has no such class: bare, spoilt\n" in said
    assert run("ingest photos/*/*.jpg --out another --max-reject-ratio 0.5".split()) == 0
    assert "class folder" not in capsys.readouterr().err


def test_an_image_that_cannot_be_classified_is_named(place, capsys, refused):
    os.makedirs("model/1")
    (place / "model" / "1" / "saved_model.pb").write_bytes(b"")
    ServingSpec().write("model/1")
    assert run("predict model table.csv --json".split()) == 3
    shown = capsys.readouterr()
    assert "left out: table.csv is not a usable image: not_an_image" in shown.err
    answers = json.loads(shown.out)
    assert answers["predictions"] == []
    assert list(answers["refused"]) == ["table.csv"]
    line = refused("predict", "empty", "photos/china/000.jpg")
    assert "empty holds no model; give the folder that `feedline run` pushed to" in line
    os.makedirs("work/serving")
    assert "work holds no model; give work/serving" in refused("predict", "work", "photos/china/000.jpg")


def test_every_label_of_an_image_over_the_threshold_is_shown(place, said):
    for name, biases in {"two": [2.0, -1.0, 1.0], "none": [-1.0, -1.0, -1.0]}.items():
        model, spec = linear([0.0, 0.0, 0.0], biases, "sigmoid"), ServingSpec(multi_label=True)
        export(model, parse_ops("decode|resize(8)"), ("a", "b", "c"), 8, name, spec=spec)
    for name, shown in {"two": "a  0.8808  c  0.7311", "none": "no label over 0.5"}.items():
        assert said("predict", name, "photos/china/000.jpg") == f"photos/china/000.jpg  {shown}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict model nowhere.jpg", "nowhere.jpg does not exist; give image files"),
        ("predict model photos", "photos is a directory; give the image files in it, such as photos/*.jpg"),
        ("ingest nowhere --out o", "nowhere does not exist; give a folder"),
        ("ingest photos --out published", "published already holds a dataset; choose another --out"),
        ("ingest photos --out hollow", "hollow holds 'cat' and is not an unfinished ingest"),
        ("ingest photos --out photos/o", "photos/o lies inside the source photos"),
    ],
)
def test_a_wrong_path_is_refused_before_what_takes_long_is_imported(place, line, message):
    (place / "published").mkdir()
    (place / "published" / "dataset.json").write_text("{}")
    code, loaded, done = loads(("tensorflow", "apache_beam", "pyarrow", "numpy"), *line.split())
    assert message in done.stderr
    assert (code, loaded) == (2, [])


def test_the_version_names_the_stack(said):
    own, of_stack = said("--version").splitlines()
    assert own == f"feedline, version {metadata.version('feedline')}"
    assert of_stack == stack.summary()

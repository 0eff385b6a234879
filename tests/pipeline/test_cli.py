"""What a user types and what comes back. In process where nothing heavy is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline.cli import execute as run
from pipeline.cli.run import _merge, _parse_assignment
from tests.make_images import class_folders, jpeg


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one good and several wrong sources."""
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", per_class=6)
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow" / "cat").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.jpg").write_bytes(jpeg())
    (tmp_path / "table.csv").write_text("file,kind\nphotos/china/000.jpg,a\n")
    (tmp_path / "wrong.yaml").write_text("trian: {epochs: 3}\n")
    return tmp_path


WRONG = [
    ("ingest empty --out o", "empty holds nothing; it must hold one folder a class"),
    ("ingest flat --out o", "flat holds no visible folder; it must hold one folder a class"),
    ("ingest hollow --out o", "hollow has 1 class folders and no file in any"),
    ("ingest nowhere --out o", "nowhere does not exist; give a folder"),
    ("ingest wrong.yaml --out o", "wrong.yaml is not a source; give a folder"),
    ("ingest table.csv --out o", "table.csv has no column 'image' for the image; it has 'file', 'kind'"),
    ("ingest table.csv --image-column file --out o", "no column 'label' for the label"),
    ("ingest photos --out o --shard-size 3", "No such option '--shard-size'. (Did you mean one of"),
    ("ingest photos --out o --splits train", "splits is 'train'; write it as train=0.9,eval=0.1"),
    ("ingest photos --out o --splits a-b=1", "split name 'a-b' is not allowed"),
    ("ingest photos --out o --shard-mb 0", "shard_mb is 0.0; it must be a number of at least 0.001"),
    ("ingest photos --out o --max-reject-ratio 2", "max_reject_ratio is 2.0; it must be between 0 and 1"),
    ("ingest photos --out o --duplicates maybe", "'maybe' is not one of 'keep', 'drop'"),
    ("ingest photos", "Missing option '--out'"),
    ("ingest photos --out flat", "flat holds '1.jpg' and is not the rest of an earlier ingest"),
    ("ingest photos --out table.csv", "table.csv is a file"),
    ("run --images photos", "--root is missing"),
    ("run --root work", "--images is missing"),
    ("run --images empty --root work", "empty holds nothing"),
    ("run --images photos --root table.csv", "table.csv is a file"),
    ("run --images photos --root work --config wrong.yaml", "there is no setting 'trian'; did you mean train?"),
    ("run --images photos --root work --config no.yaml", "config no.yaml cannot be read"),
    ("run --images photos --root work --set train.epoch=3", "there is no setting 'train.epoch'; did you mean epochs?"),
    ("run --images photos --root work --set epochs", "--set is 'epochs'; write it as train.epochs=20"),
    ("run --images photos --root work --schema no.pbtxt", "schema is 'no.pbtxt', which is not a file"),
    ("verify empty", "empty is not a dataset: it has no dataset.json"),
    ("report empty", "empty is not a dataset"),
    ("ingst", "there is no command 'ingst'; did you mean ingest?"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_request_is_one_line_with_code_2_and_writes_nothing(place, capsys, line, message):
    before = sorted(place.rglob("*"))
    assert run(line.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(place.rglob("*")) == before


def test_help_lists_every_command_and_each_has_an_example(capsys):
    assert run(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2].split("\n")
    names = [line.split()[0] for line in commands if line.startswith("  ") and line[2] != " "]
    assert names == ["demo", "ingest", "run", "verify", "inspect", "report", "predict", "bench"]
    for name in names:
        arguments = [name, "input", "--help"] if name == "bench" else [name, "--help"]
        assert run(arguments) == 0
        assert "feedline " + name in capsys.readouterr().out.partition("Example")[2]


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_a_group_without_command_shows_its_help(capsys, arguments):
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: feedline")


def test_ingest_prints_its_result_and_json_has_all_of_it(place, capsys):
    assert run("ingest photos --out plain --splits train=0.5,eval=0.5".split()) == 0
    captured = capsys.readouterr()
    assert "train" in captured.out
    assert str(place / "plain") in captured.out
    assert "scanned" in captured.err
    assert run("ingest photos --out machine --splits train=0.5,eval=0.5 --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["counts"]["written"] == 12
    assert values["digest"] == json.loads((place / "plain" / "dataset.json").read_text())["digest"]


def test_ingest_passes_every_option_on(place, capsys):
    line = (
        "ingest table.csv --out o --image-column file --label-column kind --key-column file --extra-column kind"
        " --splits all=1 --seed 7 --shard-mb 2 --shards 1 --duplicates drop --max-reject-ratio 0.5 --threads 1"
        " --min-side-px 9 --max-side-px 900 --max-pixels 90000 --max-bytes 90001 --max-aspect 9 --source-kind csv"
        " --json"
    )
    assert run(line.split()) == 0, capsys.readouterr().err
    options = json.loads(capsys.readouterr().out)["options"]
    assert options["columns"]["extra"] == ["kind"]
    assert options["splits"] == [["all", 1.0]]
    assert (options["seed"], options["shard_mb"], options["shards"], options["duplicates"]) == (7, 2.0, 1, "drop")
    assert options["limits"] == {
        "max_bytes": 90001,
        "max_pixels": 90000,
        "max_side_px": 900,
        "min_side_px": 9,
        "max_aspect": 9.0,
    }


def test_too_many_bad_images_are_code_3(place, capsys):
    (place / "photos" / "china" / "bad.jpg").write_bytes(b"no")
    assert run("ingest photos --out o".split()) == 3
    assert "1 of 13 images are bad (7.7%), max_reject_ratio is 5.0%" in capsys.readouterr().err
    assert not (place / "o" / "dataset.json").exists()


def test_interruption_is_code_130_and_says_how_to_go_on(place, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("beam_jobs.ingest.scan", interrupted)
    assert run("ingest photos --out o".split()) == 130
    assert "run the same command again to continue" in capsys.readouterr().err


def test_the_unforeseen_is_code_1_with_a_traceback_only_under_debug(place, capsys, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("beam_jobs.ingest.scan", broken)
    assert run("ingest photos --out o".split()) == 1
    plain = capsys.readouterr().err
    assert plain.startswith("feedline: error: ZeroDivisionError: oops")
    assert "Traceback" not in plain
    assert run("--debug ingest photos --out p".split()) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_image_that_cannot_be_classified_is_named(place, capsys):
    os.makedirs("model/1")
    (place / "model" / "1" / "saved_model.pb").write_bytes(b"")
    assert run("predict model table.csv".split()) == 2
    assert "table.csv is not a usable image: not_an_image" in capsys.readouterr().err
    assert run("predict empty photos/china/000.jpg".split()) == 2
    assert "empty holds no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("train.epochs=3", {"train": {"epochs": 3}}),
        ("schema=a=b", {"schema": "a=b"}),
        ("ingest.splits={train: 1}", {"ingest": {"splits": {"train": 1}}}),
    ],
)
def test_assignments_become_nested_settings(text, settings):
    assert _parse_assignment(text) == settings


def test_later_settings_win_and_neighbours_stay():
    assert _merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}) == {"a": {"b": 9, "c": 2}, "d": 3}

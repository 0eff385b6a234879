"""What a user types and what comes back. In process where nothing heavy is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import keras
import pytest

from beam_jobs import stack
from beam_jobs.errors import OptionError
from beam_jobs.options import HttpOptions, ImageLimits, IngestOptions, PixelOptions, TableColumns
from pipeline.cli import execute as run
from pipeline.cli.ingest import command as ingest_command
from pipeline.settings.layers import gather
from tests.make_images import class_folders, jpeg
from trainer.ops import parse_ops
from trainer.serving.export import export
from trainer.serving.spec import ServingSpec


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
    (
        "ingest photos --out o --shard-size 3",
        "there is no option '--shard-size'; did you mean --shards? see `feedline ingest --help`",
    ),
    ("ingest photos --out o --splits train", "splits is 'train'; write it as train=0.9,eval=0.1"),
    ("ingest photos --out o --splits a-b=1", "split name 'a-b' is not allowed"),
    ("ingest photos --out o --shard-mb 0", "shard_mb is 0.0; it must be a number of at least 0.001"),
    ("ingest photos --out o --max-reject-ratio 2", "max_reject_ratio is 2.0; it must be between 0 and 1"),
    (
        "ingest photos --out o --duplicates maybe",
        "there is no --duplicates 'maybe'; known are keep, drop, report; see `feedline ingest --help`",
    ),
    ("ingest photos --out o --near-duplicates maybe", "there is no --near-duplicates 'maybe'; known are off, report"),
    (
        "ingest photos --out o --near-distance 9",
        "near_distance is 9; give 0 to 8: over 8 of 64 bits unlike",
    ),
    (
        "ingest photos --out o --policy crop",
        "there is no --policy 'crop'; did you mean copy? known are copy, resize, raw",
    ),
    ("ingest photos --out o --side-px 0", "side_px is 0; it must be a whole number of at least 1"),
    ("ingest photos --out o --quality 101", "quality is 101; it must be from 1 to 100"),
    (
        "ingest photos --out o --side-px 64",
        "--side-px is of no use to --policy copy; give --policy resize or raw too, or leave it out",
    ),
    ("ingest photos --out o --policy raw --fit short", "--fit is of no use to --policy raw; give --policy resize too"),
    ("run --images photos --root o --quality 80", "--quality is of no use to --policy copy; give --policy resize too"),
    (
        "ingest photos --out o --near-distance 2",
        "--near-distance is of no use to --near-duplicates off; give --near-duplicates report or group or drop too",
    ),
    ("ingest photos --out o --facts none", "there is no --facts 'none'; known are all, basic"),
    ("ingest photos --out o --http-timeout-s 0", "timeout_s is 0.0; it must be a number above 0"),
    (
        "ingest photos --out o --source-kind rar",
        "there is no --source-kind 'rar'; did you mean tar? known are auto, folder",
    ),
    ("ingest table.csv --out o --image-column file --labels-column kinds", "no column 'kinds' for the labels"),
    ("ingest table.csv --out o --image-column file --label-column kind --mask-column m", "no column 'm' for the mask"),
    ("ingest photos --out o --overwrite --append", "overwrite and append exclude one another; give one of them"),
    ("ingest photos --out o --append", "o holds no dataset to add to; leave --append out to make one"),
    ("ingest photos --out o --retry-rejects", "o holds no dataset to add to; leave --retry-rejects out to make one"),
    ("ingest photos", "--out is missing; see `feedline ingest --help`"),
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
    ("run --images photos --root work --schema no/no.pbtxt", "schema is 'no/no.pbtxt', which is neither a file nor"),
    ("verify empty", "empty is not a dataset: it has no dataset.json"),
    ("report empty", "empty is not a dataset"),
    ("ingst", "there is no command 'ingst'; did you mean ingest?"),
    ("ingest photos --out o --seed x", "--seed: 'x' is not a valid integer; see `feedline ingest --help`"),
    ("ingest photos --out o --frobnicate", "there is no option '--frobnicate'; see `feedline ingest --help`"),
    ("ingest --out o", "SOURCE is missing; see `feedline ingest --help`"),
    ("schema dif a b", "there is no command 'dif'; did you mean diff? known are init, show, diff"),
    ("compile -c wrong.yaml --out o", "--target is missing; known are airflow, kubeflow"),
    ("completion fsh", "there is no SHELL 'fsh'; did you mean fish? known are bash, zsh, fish"),
    ("verify o --thraeds 1", "there is no option '--thraeds'; did you mean --threads?"),
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


@pytest.mark.parametrize("arguments", [[], ["bench"], ["schema"]])
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
        " --min-side-px 9 --max-side-px 900 --max-pixels 90000 --max-bytes 90001 --max-aspect 9 --max-seconds 7"
        " --mask-classes 3 --mask-ignore 255 --source-kind csv --json"
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
        "max_seconds": 7.0,
        "mask_classes": 3,
        "mask_ignore": 255,
    }


EVERY_OPTION = (
    "ingest table.csv --out o --overwrite --source-kind csv --splits a=3,b=1 --stratify --seed 7 --shard-mb 2"
    " --shards 1 --split-conflicts refuse --duplicates report --near-duplicates group --near-distance 4"
    " --policy resize --side-px 99 --fit inside --quality 71 --facts basic --max-reject-ratio 0.5"
    " --threads 3 --image-column i --label-column l"
    " --labels-column ls --label-separator ; --mask-column m --weight-column w --key-column k --group-column g"
    " --split-column s --extra-column x --extra-column y --max-value-bytes 90"
    " --max-bytes 90001 --max-pixels 90000 --max-side-px 900"
    " --min-side-px 9 --max-aspect 9 --max-seconds 7 --http-timeout-s 1.5 --http-retries 8 --http-per-host 2"
    " --allow-bucket s3://a --allow-bucket gs://b --http-allow-private --unreadable reject --float32-loss refuse"
    " --mask-classes 4 --mask-ignore 255"
)


@pytest.fixture
def asked_for(monkeypatch):
    """Returns a function that runs a line and returns the options that reach the ingest, which is not run."""
    seen = []

    def take(options, **_):
        seen.append(options)
        raise OptionError("enough")

    monkeypatch.setattr("beam_jobs.ingest.run", take)

    def asked_for(line: str) -> IngestOptions:
        assert run(line.split()) == 2
        return seen.pop()

    return asked_for


def test_a_span_is_filled_in(asked_for, place):
    for name in ("7/v1", "012/v1", "012/v2"):
        (place / "batches" / name).mkdir(parents=True)
    assert asked_for("ingest batches/{SPAN} --out o").source == "batches/012"
    assert asked_for("ingest batches/{SPAN} --out o --span 7").source == "batches/7"
    assert asked_for("ingest batches/{SPAN}/v{VERSION} --out o").source == "batches/012/v2"
    assert asked_for("ingest batches/{SPAN}/v{VERSION} --out o --span-version 1").source == "batches/012/v1"


def test_every_option_reaches_its_setting(asked_for):
    known = {name for parameter in ingest_command.params for name in parameter.opts if name.startswith("--")}
    used = {word for word in EVERY_OPTION.split() if word.startswith("--")}
    of_the_command = {"--append", "--retry-rejects", "--span", "--span-version", "--json", "--json-schema", "--help"}
    of_where_it_runs = {"--config", "--runner", "--runner-option", "--dry-run"}
    assert known - used == (of_the_command | of_where_it_runs) & known
    assert asked_for(EVERY_OPTION) == IngestOptions(
        source="table.csv",
        allow_buckets=("s3://a", "gs://b"),
        out="o",
        overwrite=True,
        source_kind="csv",
        splits={"a": 3.0, "b": 1.0},
        stratify=True,
        seed=7,
        shard_mb=2.0,
        shards=1,
        duplicates="report",
        near_duplicates="group",
        near_distance=4,
        split_conflicts="refuse",
        pixels=PixelOptions(policy="resize", side_px=99, fit="inside", quality=71),
        facts="basic",
        max_reject_ratio=0.5,
        unreadable="reject",
        float32_loss="refuse",
        threads=3,
        columns=TableColumns(
            image="i",
            label="l",
            labels="ls",
            label_separator=";",
            mask="m",
            weight="w",
            key="k",
            group="g",
            split="s",
            extra=("x", "y"),
            max_value_bytes=90,
        ),
        limits=ImageLimits(
            max_bytes=90001,
            max_pixels=90000,
            max_side_px=900,
            min_side_px=9,
            max_aspect=9.0,
            max_seconds=7.0,
            mask_classes=4,
            mask_ignore=255,
        ),
        http=HttpOptions(timeout_s=1.5, retries=8, per_host=2, allow_private=True),
    )


def test_what_is_not_given_is_left_to_the_defaults(asked_for, place):
    assert asked_for("ingest photos --out o") == IngestOptions(source="photos", out="o")
    assert asked_for("ingest photos --out o --append") == IngestOptions(source="photos", out="o", append=True)
    retry = IngestOptions(source="photos", out="o", retry_rejects=True)
    assert asked_for("ingest photos --out o --retry-rejects") == retry


def test_the_defaults_that_help_names_are_the_defaults():
    helps = {name: parameter.help for parameter in ingest_command.params for name in parameter.opts if name != "source"}
    options = IngestOptions(source="photos", out="o")
    for name, value in {
        "--source-kind": options.source_kind,
        "--seed": options.seed,
        "--shard-mb": f"{options.shard_mb:g}",
        "--shards": options.shards,
        "--duplicates": options.duplicates,
        "--near-duplicates": options.near_duplicates,
        "--near-distance": options.near_distance,
        "--split-conflicts": options.split_conflicts,
        "--policy": options.pixels.policy,
        "--side-px": options.pixels.side_px,
        "--fit": options.pixels.fit,
        "--quality": options.pixels.quality,
        "--facts": options.facts,
        "--max-reject-ratio": options.max_reject_ratio,
        "--unreadable": options.unreadable,
        "--float32-loss": options.float32_loss,
        "--threads": options.threads,
        "--image-column": options.columns.image,
        "--label-column": options.columns.label,
        "--label-separator": options.columns.label_separator,
        "--max-value-bytes": options.columns.max_value_bytes,
        "--max-bytes": options.limits.max_bytes,
        "--max-pixels": options.limits.max_pixels,
        "--max-side-px": options.limits.max_side_px,
        "--min-side-px": options.limits.min_side_px,
        "--max-aspect": f"{options.limits.max_aspect:g}",
        "--max-seconds": f"{options.limits.max_seconds:g}",
        "--mask-classes": options.limits.mask_classes,
        "--mask-ignore": options.limits.mask_ignore,
        "--http-timeout-s": f"{options.http.timeout_s:g}",
        "--http-retries": options.http.retries,
        "--http-per-host": options.http.per_host,
    }.items():
        assert helps[name].endswith(f"[default: {value}]"), name


def test_images_without_a_label_are_asked_for_with_an_empty_column(place, capsys):
    line = "ingest table.csv --out o --image-column file --splits all=1 --json --label-column"
    assert run([*line.split(), ""]) == 0, capsys.readouterr().err
    values = json.loads(capsys.readouterr().out)
    assert (values["label_kind"], values["labels"], values["splits"]["all"]["classes"]) == ("none", [], {})


def test_images_are_added_to_a_dataset(place, capsys):
    line = "ingest photos --out o --splits train=0.5,eval=0.5 --json"
    assert run(line.split()) == 0
    (place / "photos" / "china" / "new.jpg").write_bytes(jpeg(99))
    assert run([*line.split(), "--append"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run("verify o".split()) == 0
    assert json.loads((place / "o" / "dataset.json").read_text())["counts"]["written"] == 13


def test_one_option_of_a_section_leaves_the_others_to_the_dataset_that_is_added_to(place, capsys):
    resized = "--splits train=0.5,eval=0.5 --policy resize --side-px 24 --quality 71 --min-side-px 9"
    assert run(["ingest", "photos", "--out", "o", *resized.split()]) == 0
    (place / "photos" / "china" / "new.jpg").write_bytes(jpeg(99))
    assert run("ingest photos --out o --append --side-px 24 --max-side-px 900".split()) == 0, capsys.readouterr().err
    options = json.loads((place / "o" / "dataset.json").read_text())["options"]
    assert options["pixels"] == {"policy": "resize", "side_px": 24, "fit": "short", "quality": 71}
    assert (options["limits"]["min_side_px"], options["limits"]["max_side_px"]) == (9, 900)
    capsys.readouterr()
    assert run("ingest photos --out o --append --side-px 25".split()) == 2
    assert "o was made with pixels.side_px 24, not 25; leave it out" in capsys.readouterr().err


def test_what_is_of_no_use_to_the_dataset_that_is_added_to_is_to_be_left_out(place, capsys):
    assert run("ingest photos --out o --splits train=0.5,eval=0.5".split()) == 0
    capsys.readouterr()
    assert run("ingest photos --out o --append --side-px 256".split()) == 2
    assert capsys.readouterr().err == ("feedline: error: --side-px is of no use to --policy copy; leave it out\n")


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
    for line in ("--debug ingest photos --out p", "ingest photos --debug --out p", "ingest photos --out p --debug"):
        assert run(line.split()) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_image_that_cannot_be_classified_is_named(place, capsys):
    os.makedirs("model/1")
    (place / "model" / "1" / "saved_model.pb").write_bytes(b"")
    ServingSpec().write("model/1")
    assert run("predict model table.csv --json".split()) == 3
    shown = capsys.readouterr()
    assert "left out: table.csv is not a usable image: not_an_image" in shown.err
    answers = json.loads(shown.out)
    assert answers["predictions"] == []
    assert list(answers["refused"]) == ["table.csv"]
    assert run("predict empty photos/china/000.jpg".split()) == 2
    assert "empty holds no model; give the folder that `feedline run` pushed to" in capsys.readouterr().err
    os.makedirs("work/serving")
    assert run("predict work photos/china/000.jpg".split()) == 2
    assert "work holds no model; give work/serving" in capsys.readouterr().err


def test_every_label_of_an_image_over_the_threshold_is_shown(place, capsys):
    for name, biases in {"two": [2.0, -1.0, 1.0], "none": [-1.0, -1.0, -1.0]}.items():
        dense = keras.layers.Dense(3, "sigmoid", kernel_initializer="zeros")
        inputs = keras.Input([8, 8, 3], dtype="uint8")
        model = keras.Model(inputs, dense(keras.layers.Flatten()(keras.layers.Rescaling(1.0)(inputs))))
        dense.bias.assign(biases)
        spec = ServingSpec(multi_label=True)
        export(model, parse_ops("decode|resize(8)"), ("a", "b", "c"), 8, name, spec=spec)
    capsys.readouterr()
    for name, shown in {"two": "a  0.8808  c  0.7311", "none": "no label over 0.5"}.items():
        assert run(f"predict {name} photos/china/000.jpg".split()) == 0
        assert capsys.readouterr().out == f"photos/china/000.jpg  {shown}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ingest nowhere --out o", "nowhere does not exist"),
        ("predict model nowhere.jpg", "nowhere.jpg does not exist; give image files"),
        ("predict model photos", "photos is a directory; give the image files in it, such as photos/*.jpg"),
    ],
)
def test_a_path_that_is_not_there_is_told_before_what_takes_long_is_imported(place, line, message):
    program = "import sys; from pipeline.cli import execute as run; print(run(sys.argv[1:]), sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program, *line.split()], capture_output=True, text=True)
    assert message in done.stderr
    assert done.stdout.startswith("2 ")
    assert "'tensorflow'" not in done.stdout
    assert "'apache_beam'" not in done.stdout


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("train.epochs=3", {"train": {"epochs": 3}}),
        ("schema=a=b", {"schema": "a=b"}),
        ("ingest.splits={train: 1}", {"ingest": {"splits": {"train": 1}}}),
    ],
)
def test_assignments_become_nested_settings(text, settings):
    assert gather(None, {}, [text], {}).values == settings


def test_the_version_names_the_stack(capsys):
    assert run(["--version"]) == 0
    own, of_stack = capsys.readouterr().out.splitlines()
    assert own == f"feedline, version {metadata.version('feedline')}"
    assert of_stack == stack.summary()

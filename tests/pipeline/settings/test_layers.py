from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from beam_jobs.errors import OptionError
from pipeline.cli import execute
from pipeline.config import build
from pipeline.settings.layers import Settings, gather, listing, listing_text
from tests.command import loads
from tests.make_images import class_folders

FILE = {"root": "work", "ingest": {"source": "photos", "splits": {"train": 8, "eval": 2}}, "train": {"epochs": 5}}


@pytest.fixture
def config(here: Path) -> str:
    """A file of settings in the working directory."""
    Path("pipeline.yaml").write_text(yaml.safe_dump(FILE, sort_keys=False))
    return "pipeline.yaml"


def test_each_layer_wins_over_the_one_before(config):
    variable, option = {"FEEDLINE_TRAIN__EPOCHS": "6"}, {"train": {"epochs": 7}}
    found = [
        gather(config, {}, (), {}),
        gather(config, {}, (), variable),
        gather(config, option, (), variable, {"train.epochs": "--epochs"}),
        gather(config, option, ["train.epochs=8"], variable),
    ]
    assert [(one.values["train"]["epochs"], one.origin["train.epochs"]) for one in found] == [
        (5, "file pipeline.yaml"),
        (6, "environment FEEDLINE_TRAIN__EPOCHS"),
        (7, "option --epochs"),
        (8, "option --set"),
    ]


def test_without_a_file_nothing_is_set():
    assert gather(None, {}, (), {}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "key", "read"),
    [
        ("FEEDLINE_TRAIN__LEARNING_RATE", "1e-3", ("train", "learning_rate"), 0.001),
        ("FEEDLINE_EVALUATE__MAX_DROP", "null", ("evaluate", "max_drop"), None),
        ("FEEDLINE_INGEST__SPLITS__TEST", "1", ("ingest", "splits"), {"train": 8, "eval": 2, "test": 1}),
    ],
)
def test_the_environment_is_read_as_yaml(config, name, value, key, read):
    built = gather(config, {}, (), {name: value}).build()
    for part in key:
        built = getattr(built, part)
    assert built == read


@pytest.mark.parametrize(("text", "read"), [("1.20", "1.20"), ("", ""), ("null", None)])
def test_a_number_for_a_setting_of_text_is_the_text_it_was_written_as(config, text, read):
    assert gather(config, {}, [f"name={text}"], {}).values["name"] == read
    assert gather(config, {}, [f"kubeflow.image={text}"], {}).values["kubeflow"]["image"] == read
    assert gather(config, {}, [f"engine.flink_version={text}"], {}).values["engine"]["flink_version"] == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FEEDLINE_BROWSER", "1"),
        ("FEEDLINE_SERVICE_HOST", "10.0.0.1"),
        ("FEEDLINE_TRAIN__EPOCHS", ""),
        ("feedline_train__epochs", "3"),
    ],
)
def test_switches_and_empty_variables_are_no_settings(config, name, value):
    assert gather(config, {}, (), {name: value}) == gather(config, {}, (), {})


def test_a_wrong_file_is_named(config):
    Path("wrong.yaml").write_text("image_side_px: 96\n")
    with pytest.raises(OptionError, match="file wrong.yaml: .* 'image_side_px'; did you mean input.im"):
        gather("wrong.yaml", {}, (), {})
    Path("twice.yaml").write_text("train: {epochs: 3}\nroot: w\ntrain: {seed: 4}\n")
    with pytest.raises(OptionError, match="twice.yaml is not YAML: the key 'train' is a duplicate.* line 3"):
        gather("twice.yaml", {}, (), {})


@pytest.mark.parametrize(
    ("environ", "assignments", "message"),
    [
        ({"FEEDLINE_EPOCHS": "3"}, [], "^environment FEEDLINE_EPOCHS: .*; did you mean FEEDLINE_TRAIN__EPOCHS\\?$"),
        ({"FEEDLINE_SEED": "3"}, [], "did you mean FEEDLINE_INGEST__SEED or FEEDLINE_INPUT__SEED\\?$"),
        ({"FEEDLINE_CHROMIUM": "1"}, [], "FEEDLINE_CHROMIUM: .* the nearest is FEEDLINE_\\w+ or .*; unset it"),
        ({"FEEDLINE_TRAIN": "{epoch: 3}"}, [], "FEEDLINE_TRAIN: .*'train.epoch'; did you mean epochs or step_epochs"),
        ({"FEEDLINE_": "1"}, [], "environment FEEDLINE_ names no setting; write it as FEEDLINE_TRAIN__EPOCHS"),
        ({"FEEDLINE_ROOT": "{"}, [], "environment FEEDLINE_ROOT is '{', which is not a YAML value"),
        ({}, ["epochs"], "--set is 'epochs'; write it as train.epochs=20"),
        ({}, ["train..epochs=3"], "write it as train.epochs=20"),
        ({}, ["train.epochs={"], "--set train.epochs is '{', which is not a YAML value"),
        ({}, ["train={epoch: 3}"], "option --set: there is no setting 'train.epoch'; did you mean epochs or step_"),
        ({}, ["input.balance=uniform", "input.balance.cat=1"], "input.balance is 'uniform' \\(option --set\\); to "),
        # Those of a target.
        ({}, ["engine.paralellism=3"], "--set: there is no setting 'engine.paralellism'; did you mean parallelism"),
        ({}, ["engine={runner: [flink]}"], "there is no engine.runner \"\\['flink'\\]\""),
        ({}, ["engine=flink"], "^engine is the text 'flink'; .* mapping of .* \\(engine from option --set\\)$"),
        ({}, ["engine.runner=flinc"], "there is no engine.runner 'flinc'; did you mean flink"),
        ({}, ["engine.runner=flink", "engine.project=p"], "'engine.project'; .*, because runner is flink"),
        # Two sections have a seed.
        ({"FEEDLINE_INPUT__SEED": "-1"}, ["ingest.seed=3"], "^input.seed is -1; .* \\(input.seed from environment "),
        # The message does not name the setting.
        ({}, ["ingest.splits.eval=x"], "^ingest.splits.eval .* \\(ingest.splits from file pipeline.yaml, option --set"),
        ({}, ["dataset=d"], "both images .* \\(ingest from file pipeline.yaml; dataset from option --set\\)$"),
        ({}, ["ingest.out=x"], "^ingest.out is not allowed in a pipeline, .* \\(ingest.out from option --set\\)$"),
    ],
)
def test_a_wrong_setting_is_named_with_its_key_and_layer_and_the_nearest(config, environ, assignments, message):
    with pytest.raises(OptionError, match=message):
        gather(config, {}, assignments, environ).build()


def test_what_no_layer_gave_is_of_no_layer():
    with pytest.raises(OptionError, match="^root is missing; it has no default$"):
        gather(None, {"ingest": {"source": "photos"}}, (), {"FEEDLINE_NAME": "x"}).build()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run -c pipeline.yaml --images none", "none does not exist; .* (ingest.source from option --images)"),
        (
            "ingest full --out o -c flink.yaml --runner-option workers=x",
            "the text 'x'; .* (engine.workers from option --runner-option)",
        ),
        (
            "compile --target airflow -c pipeline.yaml --out x.py --set airflow.retries=x",
            "must be a whole number of at least 0 (airflow.retries from option --set)",
        ),
    ],
)
def test_every_command_names_key_and_layer_of_what_it_refuses(config, refused, line, message):
    class_folders(Path("full"), per_class=1)
    Path("flink.yaml").write_text("engine: {runner: flink, workers: y}\n")
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), refused(*line.split()))


def test_one_entry_of_a_mapping_keeps_those_of_the_default(config):
    Path("plain.yaml").write_text("root: work\ningest: {source: photos}\n")
    variables = {"FEEDLINE_INGEST__SPLITS__TEST": "0.1", "FEEDLINE_INGEST__SPLITS__TRAIN": "0.8"}
    settings = gather("plain.yaml", {}, (), variables)
    assert settings.build().ingest.splits == {"train": 0.8, "eval": 0.1, "test": 0.1}
    assert settings.origin["ingest.splits"] == (
        "default, environment FEEDLINE_INGEST__SPLITS__TEST, environment FEEDLINE_INGEST__SPLITS__TRAIN"
    )
    assert list(settings.build().ingest.splits) == ["train", "eval", "test"]  # the second evaluates
    settings = gather("plain.yaml", {}, ["ingest.splits.eval=null", "ingest.splits.test=0.1"], {})
    assert settings.values["ingest"]["splits"] == {"train": 0.9, "test": 0.1}


@pytest.mark.parametrize(
    ("entry", "shares", "total", "mended"),
    [
        ("test=0.1", "{train: 0.9, eval: 0.1, test: 0.1}", "1.1", "{train: 0.8, eval: 0.1, test: 0.1}"),
        ("test=0.98", "{train: 0.9, eval: 0.1, test: 0.98}", "1.98", "{train: 0.455, eval: 0.051, test: 0.495}"),
    ],
)
def test_shares_that_no_longer_add_up_are_shown_with_their_sum(entry, shares, total, mended):
    given = {"root": "work", "ingest": {"source": "photos"}}
    with pytest.raises(OptionError) as error:
        gather(None, given, [f"ingest.splits.{entry}"], {})
    assert str(error.value) == (
        f"ingest.splits is {shares}, and the sum of these shares is {total}, not 1; set the other shares too, as in "
        f"--set ingest.splits='{mended}' (ingest.splits from default, option --set)"
    )
    assert gather(None, given, [f"ingest.splits={mended}"], {}).build().ingest.splits


def test_shares_that_were_written_whole_are_parts_of_their_sum(config):
    whole = gather(config, {}, ["ingest.splits.test=0.3", "ingest.splits={train: 0.9, eval: 0.9}"], {})
    assert whole.build().ingest.shares == {"train": 0.5, "eval": 0.5}


def test_a_section_of_comments_alone_is_no_section_and_null_takes_one_away(config):
    Path("empty.yaml").write_text("root: work\ntrain:\n  # epochs: 3\nengine:\ndataset: d\n")
    assert gather("empty.yaml", {}, (), {}).values == {"root": "work", "dataset": "d"}
    settings = gather(config, {"dataset": "d"}, ["ingest=null"], {})
    assert settings.values.keys() == {"root", "train", "dataset"}
    assert settings.origin.keys() == {"root", "train.epochs", "dataset"}


def test_sections_of_targets_are_carried_and_no_part_of_a_pipeline(config):
    settings = gather(
        config,
        {},
        ["kubeflow.cpus=2", "engine.runner=dataflow", "engine.labels={team: vision}", "engine.labels.cost=42"],
        {"FEEDLINE_AIRFLOW__SCHEDULE": "'@daily'"},
    )
    assert settings.values["kubeflow"] == {"cpus": 2}
    assert settings.values["airflow"] == {"schedule": "@daily"}
    assert settings.values["engine"] == {"runner": "dataflow", "labels": {"team": "vision", "cost": 42}}
    assert (settings.origin["engine.labels"], settings.layer("kubeflow")) == ("option --set", "option --set")
    assert settings.build() == gather(config, {}, (), {}).build()


def test_the_caller_keeps_its_values(config):
    given = {"ingest": {"splits": {"train": 1, "eval": 1}}}
    gather(config, given, ["ingest.splits.test=1"], {})
    assert given == {"ingest": {"splits": {"train": 1, "eval": 1}}}


# --- what is shown


def test_the_text_names_every_value_with_its_layer_and_is_the_same_configuration(config):
    settings = gather(
        config,
        {"ingest": {"near_duplicates": "off"}},
        [
            "gate.drift_limits.brightness=0.2",
            "kubeflow.image=feedline:1",
            "engine.labels={a: b}",
            'input.train_ops="decode|flip # 3"',
        ],
        {"FEEDLINE_TRAIN__LEARNING_RATE": "1e-3"},
        {"ingest.near_duplicates": "--near-duplicates"},
    )
    listed = listing(settings, settings.build())
    shown = listing_text(listed)
    assert build(yaml.safe_load(shown)) == settings.build()
    assert yaml.safe_load(shown)["kubeflow"] == {"image": "feedline:1"}
    assert "  labels: {a: b}  " in shown
    layers = dict(line.strip().split("  # ") for line in shown.splitlines() if "  # " in line)
    layers = {line.partition(":")[0] + line.partition(":")[2].rstrip(): layer for line, layer in layers.items()}
    assert layers["learning_rate 0.001"] == "environment FEEDLINE_TRAIN__LEARNING_RATE"
    assert layers["epochs 5"] == "file pipeline.yaml"
    assert layers["near_duplicates 'off'"] == "option --near-duplicates"
    assert layers["drift_limits {brightness: 0.2}"] == "option --set"
    assert layers["optimizer adamw"] == "default"
    assert f"root {os.path.abspath('work')}" in layers
    assert sum("  # " in line for line in shown.splitlines()) == len(listed["origin"])
    assert not {"out", "overwrite", "append"} & yaml.safe_load(shown)["ingest"].keys()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_secrets_are_not_shown(config, said, more):
    assignments = [
        "ingest.source=https://me:hunter2@host/a?token=hunter2",
        "beam_args=[--runner=FnApiRunner, --s3_secret_access_key=hunter2, --password, hunter2]",
        "engine.labels={api_key: hunter2, team: vision}",
    ]
    line = [word for assignment in assignments for word in ("--set", assignment)]
    shown = said("run", "--config", config, "--show-config", *line, *more)
    assert "hunter2" not in shown
    values = yaml.safe_load(shown)
    values = values.get("settings", values)
    assert values["ingest"]["source"] == "https://me:***@host/a?token=***"
    assert values["beam_args"] == ["--runner=FnApiRunner", "--s3_secret_access_key=***", "--password", "***"]
    assert values["engine"]["labels"] == {"api_key": "***", "team": "vision"}


def test_an_adopted_dataset_shows_no_ingest(config):
    settings = gather(None, {"root": "w", "dataset": "d"}, (), {})
    shown = yaml.safe_load(listing_text(listing(settings, settings.build())))
    assert "ingest" not in shown
    assert shown["dataset"] == os.path.abspath("d")


def test_a_run_says_that_it_leaves_the_engine_out(config, capsys):
    assert execute(["run", "--config", config, "--set", "engine.runner=flink"]) == 2
    said, error, *_ = capsys.readouterr().err.splitlines()
    assert said == "engine (option --set) is ignored: `run` uses only this process"
    assert "photos does not exist" in error


def test_show_config_imports_nothing_heavy(config):
    heavy = ("apache_beam", "tensorflow", "tfx", "keras")
    _, loaded, done = loads(heavy, "run", "--config", config, "--show-config")
    assert loaded == [], done.stderr
    assert "root: " in done.stdout

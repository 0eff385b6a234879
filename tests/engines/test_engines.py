"""What every engine has in common, from the command line on."""

from __future__ import annotations

import pytest

from beam_jobs import engines
from beam_jobs.errors import OptionError
from pipeline import cli
from pipeline.cli.engines import engine_of


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.execute([str(argument) for argument in arguments])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("name", engines.ENGINES)
def test_every_engine_has_options_that_open(name):
    assert callable(engines.options_of(name).open)


def test_an_unknown_engine_is_answered_with_the_nearest():
    with pytest.raises(OptionError, match="there is no runner 'flinc'; did you mean flink"):
        engines.options_of("flinc")


def test_the_local_engine_has_nothing_to_set():
    with pytest.raises(OptionError, match="there is no setting '--runner-option.parallelism'"):
        engine_of("local", ["parallelism=4"])


@pytest.mark.parametrize(
    ("assignment", "message"), [("parallelism", "write it as parallelism=4"), ("a=[", "which is not a YAML value")]
)
def test_a_setting_that_cannot_be_read_is_named(assignment, message):
    with pytest.raises(OptionError, match=message):
        engine_of("local", [assignment])


def test_the_command_line_names_what_is_wrong_and_writes_nothing(photos, tmp_path, capsys):
    out = tmp_path / "dataset"
    code, said = said_by(capsys, "ingest", photos, "--out", out, "--runner-option", "parallelism=4")
    assert (code, "--runner-option.parallelism" in said) == (2, True)
    assert not out.exists()


def test_the_local_engine_gives_the_dataset_of_no_engine(photos, dataset, tmp_path, capsys):
    out = tmp_path / "again"
    arguments = ["--splits", "train=0.7,eval=0.3", "--shards", "2", "--runner", "local"]
    assert said_by(capsys, "ingest", photos, "--out", out, *arguments)[0] == 0
    assert (out / "dataset.json").read_bytes() == (dataset / "dataset.json").read_bytes()


def test_a_number_stays_the_text_it_was_typed_as_where_text_is_wanted():
    with pytest.raises(OptionError, match="project is '12345678'; it must be the id of a project"):
        engine_of("dataflow", ["project=12345678", "region=us-central1", "temp_location=gs://bucket/temp"])

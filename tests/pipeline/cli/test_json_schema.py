"""What machines read: every result against its schema, and errors as one object."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from beam_jobs.common import strings
from beam_jobs.errors import FeedlineError
from pipeline.cli import cli, errors
from pipeline.cli import execute as run
from pipeline.cli.json_schema import ERROR, RESULTS, result_schema
from pipeline.cli.reference import commands_with_json
from tests.make_images import class_folders

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[3] / "docs" / "json.md"
COMMANDS = list(commands_with_json())


def check(command: str, values: Any) -> None:
    """Fails with every difference between a result and the schema of its command."""
    found = Draft202012Validator(result_schema(command)).iter_errors(values)
    assert [f"{error.json_path}: {error.message[:200]}" for error in found] == []


def result(capsys: pytest.CaptureFixture[str], command: str, *arguments: object, code: int = 0) -> Any:
    """Runs a command with `--json` and returns what it prints on standard output."""
    capsys.readouterr()
    assert run([*command.split(), *map(str, arguments), "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def error(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    """Runs a command that fails and returns the object that it prints on standard error."""
    capsys.readouterr()
    code = run(line.split())
    values = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert list(Draft202012Validator(ERROR).iter_errors(values)) == []
    assert values["error"]["code"] == code
    return values["error"]


@pytest.fixture
def place(here: Path) -> Path:
    """A working directory with images."""
    class_folders(here / "photos", per_class=6)
    return here


# --- schemas


def test_every_command_with_a_result_has_a_schema():
    assert set(COMMANDS) - RESULTS.keys() == set()
    without = {"feedline", "completion", "schema", "bench"}
    assert set(cli.list_commands(click.Context(cli))) - {command.split()[0] for command in COMMANDS} <= without


@pytest.mark.parametrize("command", ["ingest", "bench input"])
def test_the_schema_is_printed_without_any_other_argument(capsys, command):
    assert run([*command.split(), "--json-schema"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    printed = json.loads(captured.out)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert printed["title"] == f"feedline {command} --json"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_object_is_closed_and_every_key_has_a_meaning(command):
    Draft202012Validator.check_schema(result_schema(command))
    for where, schema in objects(result_schema(command), command):
        assert schema["additionalProperties"] is False, where
        always = [name for name, value in schema["properties"].items() if "absent" not in value["description"]]
        assert schema["required"] == always, where
        for name, value in schema["properties"].items():
            assert value["description"].endswith("."), f"{where}.{name}"


def objects(schema: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield where, schema
    inner = [*schema.get("anyOf", []), *schema.get("properties", {}).values()]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for value in inner:
        yield from objects(value, f"{where}.{value.get('description', '')}")


# --- results


def test_results_of_an_ingest_and_of_looking_at_it(place, capsys):
    line = ("photos", "--splits", "train=0.5,eval=0.5", "--shards", "1")
    check("ingest", result(capsys, "ingest", *line, "--out", "dataset", "--dry-run"))
    check("ingest", result(capsys, "ingest", *line, "--out", "dataset"))
    check("verify", result(capsys, "verify", "dataset"))
    check("inspect", result(capsys, "inspect", "dataset"))
    check("inspect", result(capsys, "inspect", "dataset", "--key", "china/000.jpg"))
    check("inspect", result(capsys, "inspect", "dataset/Split-train/data-00000-of-00001.tfrecord"))
    check("report", result(capsys, "report", "dataset"))
    check("diff", result(capsys, "diff", "dataset", "dataset"))
    check("export", result(capsys, "export", "dataset", "--to", "webdataset", "--out", "tar"))
    (place / "dataset" / "Split-train" / "data-00000-of-00001.tfrecord").write_bytes(b"")
    broken = result(capsys, "verify", "dataset", code=3)
    check("verify", broken)
    assert broken["problems"]


def test_results_about_schemas(dataset, tmp_path, capsys):
    schema = tmp_path / "schema.pbtxt"
    check("schema init", result(capsys, "schema init", dataset, "--out", schema))
    check("schema show", result(capsys, "schema show", schema))
    check("schema diff", result(capsys, "schema diff", schema, schema))
    text = schema.read_text().replace('name: "image/format"', 'name: "image/shape"')
    (tmp_path / "other.pbtxt").write_text(text)
    different = result(capsys, "schema diff", schema, tmp_path / "other.pbtxt", code=3)
    check("schema diff", different)
    assert different["added"]
    assert different["removed"]


def test_results_about_this_machine(place, capsys):
    check("init", result(capsys, "init", "project", "--images", "photos"))
    check("run", result(capsys, "run", "--config", "project/pipeline.yaml", "--show-config"))


def test_the_result_of_compile(photos, tmp_path, capsys):
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"root: {tmp_path / 'work'}\ningest: {{source: {photos}}}\n")
    out = tmp_path / "dag.py"
    values = result(capsys, "compile", "--target", "airflow", "--config", config, "--out", out)
    check("compile", values)
    assert values["file"] == str(out)
    assert "airflow" in out.read_text(encoding="utf-8")


def test_the_result_of_bench(dataset, capsys, monkeypatch):
    from trainer.bench import measure

    monkeypatch.setattr(measure, "measure", functools.partial(measure.measure, rounds=1))  # what is measured stays
    line = "--image-side 16 --batch-size 4 --threads 2 --seconds 0.05 --ablation --model small_cnn"
    values = result(capsys, "bench input", dataset, *line.split())
    check("bench input", values)
    assert values["trained"]
    assert values["ablation"]


# --- errors


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("ingest nowhere --out o --json", "source_error", "nowhere does not exist; give a folder"),
        ("ingest photos --out o --polciy raw --json", "usage_error", "did you mean --policy?"),
        ("ingest photos --out o --json", "too_many_rejects", "1 of 13 images are bad"),
    ],
)
def test_an_error_is_one_object(place, capsys, line, kind, said):
    (place / "photos" / "china" / "bad.jpg").write_bytes(b"no")
    found = error(capsys, line)
    assert (found["kind"], found["code"]) == (kind, 3 if kind == "too_many_rejects" else 2)
    assert said in found["message"]


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (ZeroDivisionError("oops\x1b\x7f"), "unforeseen", 1),
        (FeedlineError("line\nline"), "feedline_error", 1),
    ],
)
def test_any_end_is_one_line(place, capsys, monkeypatch, raised, kind, code):
    def broken(*_, **__):
        raise raised

    monkeypatch.setattr("beam_jobs.dataset.verify.verify", broken)
    assert run("verify photos --json".split()) == code
    captured = capsys.readouterr()
    assert captured.err.strip().count("\n") == 0  # click ends the line in which a terminal shows ^C
    assert not {"\x1b", "\x7f"} & set(captured.err)
    assert json.loads(captured.err)["error"]["kind"] == kind
    assert strings.line(raised) in json.loads(captured.err)["error"]["message"]


def test_only_the_option_asks_for_json(place, capsys):
    assert run(["verify", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("feedline: error: --json is not a dataset")


def test_every_kind_of_error_is_documented():
    kinds = [kind for kind, _, _ in errors.error_kinds()]
    assert len(kinds) == len(set(kinds))
    assert {"usage_error", "gate_failed", "interrupted", "unforeseen"} <= set(kinds)
    rows = PAGE.read_text(encoding="utf-8")
    assert [kind for kind, code, _ in errors.error_kinds() if f"| `{kind}` | {code} |" not in rows] == []

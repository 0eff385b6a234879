"""What a newcomer reads: the help of every command, on a terminal of 80 columns, and how soon it is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pipeline.cli import cli
from pipeline.cli.click_groups import summary
from pipeline.cli.reference import every_command, examples
from tests.command import on_a_terminal, python
from tests.doc_pages import check_feedline

ROOT = Path(__file__).parents[3]
HEAVY = ("tensorflow", "apache_beam", "tfx", "numpy", "pyarrow", "ml_metadata")
CONTEXTS = {context.command_path: context for _, context in every_command()}
COMMANDS = {path: context.command for path, context in CONTEXTS.items()}
# One thing, one name: option -> how every command that has it spells it, and what it takes.
SAME = {
    "--config": (["-c", "--config"], "FILE"),
    "--set": (["--set"], "KEY=VALUE"),
    "--root": (["--root"], "DIR"),
    "--images": (["--images"], None),
    "--threads": (["--threads"], "INTEGER"),
    "--json": (["--json"], "BOOLEAN"),
    "--json-schema": (["--json-schema"], "BOOLEAN"),
}


@pytest.fixture
def help_of(said, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("COLUMNS", "80")
    return lambda path: said(*path.split()[1:], "--help")


# --- every command


def options_of(path: str) -> list[click.Option]:
    return [option for option in COMMANDS[path].params if isinstance(option, click.Option)]


def names_its_default(option: click.Option, path: str) -> bool:
    _, said = option.get_help_record(CONTEXTS[path])
    return bool(re.search(r"\[default: .+\]|\[required\]|\[.*default: ", said)) or "instead of" in option.help


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_fits_on_80_columns_its_examples_parse_and_every_option_says_what_it_does(path, help_of):
    text = help_of(path)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "..." not in text.partition("Commands:")[2], "a summary is cut off"
    said = summary(COMMANDS[path])
    assert said.endswith(".")
    assert said == (COMMANDS[path].help or "").strip().partition("\n")[0].strip(), "the summary is no line of its own"
    lines = examples(COMMANDS[path])
    assert lines
    for line in lines:
        assert f"\n    {line}\n" in text
        assert f"{line} ".startswith(f"{path} ")
        check_feedline(shlex.split(line)[1:])
    assert [option for option in options_of(path) if not (option.help or "").endswith((".", "]"))] == []
    valued = [option for option in options_of(path) if option.type.name.split()[0] in ("integer", "float", "choice")]
    assert [option.opts[0] for option in valued if not names_its_default(option, path)] == []


@pytest.mark.parametrize("name", SAME)
def test_the_same_thing_has_the_same_name(name):
    names, kind = SAME[name]
    found = {
        (tuple(option.opts[: len(names)]), option.make_metavar(CONTEXTS[path]) if kind else None)
        for path in COMMANDS
        for option in options_of(path)
        if name in option.opts
    }
    assert found == {(tuple(names), kind)}


def test_the_table_of_commands_says_what_each_of_them_says(said):
    table = said("--help").partition("Commands:")[2].strip().splitlines()
    assert [line.split()[0] for line in table] == list(cli.list_commands(CONTEXTS["feedline"]))
    assert all(re.fullmatch(r" *[a-z]+ {2,}\S.+\.", line) for line in table)


def test_options_stand_under_headings(help_of):
    text = help_of("feedline ingest")
    headings = [line for line in text.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert headings == [
        *("Options:", "Columns of a table:", "Splits and shards:", "Duplicates:", "Pixels:"),
        *("Limits of an image:", "Images on web servers:", "About the dataset:"),
    ]
    assert "--quality" in text.partition("Pixels:")[2].partition("Limits of an image:")[0]
    assert "--dry-run" in text.partition("Options:")[2].partition("Columns of a table:")[0]


def test_exit_codes_are_in_the_help_and_on_the_page(said):
    listed = re.findall(r"^ {4}(\d+)  ", said("--help"), re.MULTILINE)
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert listed == documented == ["0", "1", "2", "3", "130", "143"]


# --- how soon


def test_help_loads_nothing_heavy_and_the_list_of_commands_no_command():
    done = python(f"""
import sys
from pipeline.cli import execute
execute(["--help"])
print([name for name in ("pipeline.cli.ingest", "pipeline.cli.run", "yaml") if name in sys.modules])
for path in {list(COMMANDS)}:
    execute([*path.split()[1:], "--help"])
execute(["--version"])
print([name for name in {HEAVY} if name in sys.modules])
""")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()
    assert next(line for line in loaded if line.startswith("[")) == "[]"
    assert loaded[-1] == "[]"


# --- colours


@pytest.mark.parametrize(("environment", "wanted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
@pytest.mark.parametrize(
    ("words", "shown", "colour"),
    [(["ingset"], "there is no command 'ingset'", "\x1b[31m"), (["doctor", "--target", "flink"], "flink:", "\x1b[")],
)
def test_errors_and_results_are_coloured_on_a_terminal_that_wants_it(words, shown, colour, environment, wanted):
    _, printed = on_a_terminal(*words, **environment)
    assert shown in printed
    assert (colour in printed) == wanted

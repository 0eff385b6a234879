"""Commands and options that are gone: each says what to do instead, and shows up nowhere else."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from click.shell_completion import ShellComplete

from pipeline import cli
from pipeline.cli import error_output
from pipeline.cli.command_reference import every_command
from pipeline.cli.removed import REMOVED

ARGUMENTS = {
    "inspect --html": ["d"],
    "ingest --detach": ["photos", "--out", "o"],
    "run --detach": ["--images", "photos", "--root", "o"],
}
KNOWN = {context.command_path.partition(" ")[2]: command for command, context in every_command()}


@pytest.mark.parametrize("more", [[], ["--json"], ["--help"], ["--unknown"]], ids=" ".join)
@pytest.mark.parametrize("typed", REMOVED)
def test_it_is_one_line_with_the_release_and_the_remedy(typed, more, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.execute([*typed.split(), *ARGUMENTS.get(typed, []), *more]) == 2
    out, err = capsys.readouterr()
    release, remedy = REMOVED[typed]
    message = json.loads(err)["error"] if more == ["--json"] else {"message": err}
    name = typed.split()[-1]
    kind = "option" if name.startswith("-") else "command"
    assert f"there is no {kind} '{name}' since {release}; {remedy}" in message["message"]
    assert message.get("kind", "usage_error") in {found for found, code, _ in error_output.kinds() if code == 2}
    assert (out, err.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])


@pytest.mark.parametrize("typed", REMOVED)
def test_it_is_neither_a_command_nor_an_option(typed):
    command, _, option = typed.rpartition(" ")
    assert typed not in KNOWN
    assert not option.startswith("-") or option not in {name for one in KNOWN[command].params for name in one.opts}


@pytest.mark.parametrize("typed", REMOVED)
def test_a_shell_offers_what_there_is_and_nothing_else(typed):
    *command, name = typed.split()
    offered = ShellComplete(cli.cli, {}, "feedline", "_FEEDLINE_COMPLETE").get_completions
    assert name not in {item.value for item in offered(command, name)}
    assert "--json" in {item.value for item in offered(["ingest", "--detach", "photos"], "--js")}


def test_an_answer_is_given_for_one_minor_release():
    def minor(version: str) -> tuple[int, int]:
        major, number = version.split(".")[:2]
        return int(major), int(number)

    installed = minor(metadata.version("feedline"))
    assert [typed for typed, (release, _) in REMOVED.items() if minor(release) < installed] == []

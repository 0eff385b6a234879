"""Commands and options that are gone: each says what to do instead, and shows up nowhere else."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from click.shell_completion import ShellComplete

from pipeline import cli
from pipeline.cli.click_groups import REMOVED

ARGUMENTS = {
    "inspect --html": ["d"],
    "ingest --detach": ["photos", "--out", "o"],
    "run --detach": ["--images", "photos", "--root", "o"],
}


@pytest.mark.parametrize(
    ("typed", "more"),
    [("inspect --html", []), ("ingest --detach", ["--json"]), ("run --detach", ["--help"]), ("status", ["--unknown"])],
)
def test_it_is_one_line_with_the_release_and_the_remedy(typed, more, capsys, here):
    assert cli.execute([*typed.split(), *ARGUMENTS.get(typed, []), *more]) == 2
    out, err = capsys.readouterr()
    release, remedy = REMOVED[typed]
    message = json.loads(err)["error"]["message"] if more == ["--json"] else err
    name = typed.split()[-1]
    kind = "option" if name.startswith("-") else "command"
    assert f"there is no {kind} '{name}' since {release}; {remedy}" in message
    assert (out, err.count("\n"), list(here.iterdir())) == ("", 1, [])


@pytest.mark.parametrize("typed", ["inspect --html", "status"])
def test_a_shell_does_not_offer_it(typed):
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

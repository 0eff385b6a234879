from __future__ import annotations

import json
import shutil

import pytest

from beam_jobs.dataset import manifest
from pipeline.cli import execute as run
from tests.beam_jobs.dataset.test_diff import BASE, publish, row


@pytest.fixture
def place(here):
    """A directory with dataset `a`, an equal one `same`, and `b`, of which everything is different."""
    publish(here / "a", BASE)
    shutil.copytree("a", "same")
    new = [row("a", label="dog"), row("b", "other"), row("z", "c", label="dog"), *(row(f"n{n:02d}") for n in range(14))]
    publish(here / "b", [*new, row("e", split="eval")], {"seed": 7})
    return here


def test_equal_datasets_are_said_to_be_equal(place, said):
    digest = manifest.load("a").digest[:16]
    assert said("diff", "a", "same") == f"A  {digest}  4 images  a\nB  {digest}  4 images  same\nequal\n"


def test_every_change_is_a_line(place, said):
    shown = said("diff", "a", "b")
    for line in (
        "added                     15",
        "removed                    1",
        "relabelled                 1",
        "other bytes                1",
        "\nadded\n  + e  eval  cat\n  + n00  train  cat\n",
        "  and 5 more; --limit 0 lists them all\n",
        "\nremoved\n  - d  eval  cat\n",
        "\nrenamed\n  ~ c -> z\n",
        "\nrelabelled\n  ~ a  cat -> dog\n",
        "\nother bytes\n  ~ b\n",
        "\noptions\n  seed  0 -> 7\n",
    ):
        assert line in shown
    assert "moved  " in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_all_are_listed_when_there_is_no_limit_and_names_without_controls(place, said):
    title = "\x1b]0;title\x07\nforged"
    publish(place / "c", [*BASE, *(row(f"n{number:02d}") for number in range(14)), row(title, label=title)])
    shown = said("diff", "a", "c", "--limit", "0")
    assert shown.count("  + ") == 15
    assert "more;" not in shown
    assert "+ \\x1b]0;title\\x07\\x0aforged" in shown
    assert "\x1b" not in shown


def test_only_other_options_are_no_other_records(place, capsys):
    publish(place / "c", BASE, {"seed": 1})
    assert run("diff a c --exit-code".split()) == 3
    shown = capsys.readouterr().out
    assert "the records are equal, byte for byte\n\noptions\n  seed  0 -> 1\n" in shown
    assert "added" not in shown


def test_json_holds_all_of_it(place, said):
    values = json.loads(said("diff", "a", "b", "--json", "--limit", "2"))
    assert values["equal"] is False
    assert values["added"]["count"] == 15
    assert [one["key"] for one in values["added"]["images"]] == ["e", "n00"]
    assert values["options"] == {"seed": [0, 7]}
    assert {one["name"] for one in values["facts"]["train"]} == {"height", "width", "bytes", "brightness"}


def test_a_wrong_request_is_one_line(place, refused):
    assert "nowhere is not a dataset" in refused("diff", "a", "nowhere")

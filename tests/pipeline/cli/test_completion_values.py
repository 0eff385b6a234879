"""Ops and settings in a shell: what is offered is what the program takes."""

from __future__ import annotations

import shutil
import subprocess

import click
import pytest
from click.shell_completion import BashComplete

from pipeline.cli.click_groups import SPLIT
from pipeline.cli.completion import _COMPLETION_CLASSES, ASSIGNMENT, OP_CHAIN, OPS
from pipeline.settings import known_settings


@click.command()
@click.option("--ops", type=OP_CHAIN)
@click.option("--set", "assignments", type=ASSIGNMENT, multiple=True)
def command(ops: str, assignments: tuple[str, ...]) -> None:
    click.echo(repr((ops, assignments)))


def offered(option: str, typed: str) -> list[str]:
    """What a shell is told for a value that was typed so far."""
    return [item.value for item in BashComplete(command, {}, "x", "_X").get_completions([option], typed)]


def test_the_ops_are_those_there_are():
    from trainer import ops

    assert tuple(ops.OPS) == OPS


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("decode", ["decode", "decode_random_crop"]),
        ("decode_random_crop(32, min_area=0.3)|flip|cutm", ["decode_random_crop(32, min_area=0.3)|flip|cutmix"]),
        ("decode(", []),
    ],
)
def test_the_last_op_of_a_chain_is_completed(typed, values):
    assert offered("--ops", typed) == values


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("train.ep", ["train.epochs="]),
        ("kubeflow.im", ["kubeflow.image="]),
        ("input.train_ops=decode|rot", ["input.train_ops=decode|rotate"]),
        ("train.epochs=2", []),
    ],
)
def test_a_setting_is_completed_up_to_its_value(typed, values):
    assert offered("--set", typed) == values


def test_every_setting_is_offered_once_and_taken():
    every = offered("--set", "")
    assert len(set(every)) == len(every) > 100
    for name in every:
        key = tuple(name.removesuffix("=").split("."))
        assert name.endswith("=")
        assert not known_settings.is_section(".".join(key))
        assert known_settings.setting_type(key) is not None, name


def test_values_are_taken_as_they_are_typed(capsys):
    command.main(["--ops", "no such|op", "--set", "no.such=1"], standalone_mode=False)
    assert capsys.readouterr().out == "('no such|op', ('no.such=1',))\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_scripts_put_no_blank_behind_what_wants_a_value(shell):
    classes = {"bash": "compopt -o nospace", "zsh": """compadd -U -S "$end" """}
    script = _COMPLETION_CLASSES[shell](command, {}, "x", "_X_COMPLETE")
    text = script.source_template % script.source_vars()
    assert classes[shell] in text
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", "/dev/stdin"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "names"),
    [('{"splits": {"train": {}, "a\\nb": {}, "eval; rm": {}}}', ["train"]), ("[" * 100_000, []), ("[]", [])],
)
def test_the_splits_of_a_dataset_of_strangers_are_names_alone(tmp_path, content, names):
    (tmp_path / "dataset.json").write_text(content)
    context = click.Context(command)
    context.params["dataset"] = str(tmp_path)
    assert [item.value for item in SPLIT.shell_complete(context, command.params[0], "")] == names

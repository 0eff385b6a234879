"""The page about the command line, generated: `python -m pipeline.cli.command_reference > docs/cli-reference.md`.

Everything on it is what `--help` says, so the page cannot say anything that the program does not.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator

import click

from pipeline.cli import cli
from pipeline.cli.click_groups import GENERAL, summary

_INTRODUCTION = """# Command reference

<!-- Made from the code by `python -m pipeline.cli.command_reference > docs/cli-reference.md`; change what it shows. -->

This is what `feedline COMMAND --help` says of every command. [Command line](command-line.md) tells how they work
together, and [JSON](json.md) what `--json` prints.
"""
_BLOCK = re.compile(r"\x08\n(?P<heading>[^\n]+):\n(?P<lines>(?: +[^\n]*(?:\n|$))+)")


def page() -> str:
    """Returns the page."""
    return "\n".join([_INTRODUCTION, *(_section(command, context) for command, context in every_command())])


def every_command() -> Iterator[tuple[click.Command, click.Context]]:
    """Yields the program, its commands and their sub-commands, each with a context that knows how it is called."""
    yield from _below(cli, click.Context(cli, info_name="feedline", **cli.context_settings))


def examples(command: click.Command) -> list[str]:
    """Returns the lines under `Example:` or `Examples:` in the help of a command."""
    return [
        line
        for block in _BLOCK.finditer(_help(command))
        if block["heading"].startswith("Example")
        for line in textwrap.dedent(block["lines"]).splitlines()
    ]


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _below(found, click.Context(found, info_name=name, parent=context))


def _section(command: click.Command, context: click.Context) -> str:
    parts = [f"## {context.command_path}", summary(command)]
    usage = " ".join(command.collect_usage_pieces(context))
    parts.append(f"```text\n{context.command_path} {usage}\n```")
    parts += _prose(command)
    if lines := examples(command):
        parts.append("\n".join(["```text", *lines, "```"]))
    if isinstance(command, click.Group):
        names = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        rows = [f"| `{name}` | {_cell(summary(found))} |" for name, found in names if found]
        parts.append("\n".join(["| command | what it does |", "|---|---|", *rows]))
    parts += _options(command, context)
    return "\n\n".join(parts) + "\n"


def _prose(command: click.Command) -> Iterator[str]:
    """Yields the paragraphs behind the summary; a block that is no example becomes a block of text."""
    rest = _help(command).partition("\n\n")[2]
    for paragraph in rest.split("\n\n"):
        block = _BLOCK.match(f"{paragraph}\n")
        if block is None:
            yield " ".join(paragraph.split())
        elif not block["heading"].startswith("Example"):
            yield f"{block['heading']}:\n\n```text\n{textwrap.dedent(block['lines']).rstrip()}\n```"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    headings: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record:
            row = f"| `{_cell(record[0])}` | {_text(' '.join(record[1].split()))} |"
            headings.setdefault(getattr(parameter, "heading", GENERAL), []).append(row)
    for heading, rows in headings.items():
        yield "\n".join([f"| {heading.lower()} | meaning |", "|---|---|", *rows])


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _text(text: str) -> str:
    """Returns a cell of prose; two brackets in a row would be a link of Markdown."""
    return _cell(text).replace("] [", "] \\[")


if __name__ == "__main__":
    sys.stdout.write(page())

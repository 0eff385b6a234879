"""Classes for commands: options under headings, ordered sub-commands, suggestions for wrong names, and value types.

The value types only define the shell completion. For one minor release after the removal of a command or an option, its
error message names the alternative.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from beam_jobs import storage
from beam_jobs.common.strings import unknown
from beam_jobs.errors import UsageError

_BACKGROUND_REMEDY = (
    "run the command under nohup, tmux or systemd-run; it prints progress on standard error; after an interruption, "
    "run it again to continue"
)
# Removed command, or command and option -> the first release without it, and the remedy.
REMOVED: Mapping[str, tuple[str, str]] = {
    "inspect --html": (
        "0.2",
        "`--draw` shows the images on a terminal, `--export DIR` writes them, `feedline report` makes a page",
    ),
    "ingest --detach": ("0.2", _BACKGROUND_REMEDY),
    "run --detach": ("0.2", _BACKGROUND_REMEDY),
    "status": ("0.2", _BACKGROUND_REMEDY),
}


def check_removed(path: str, name: str) -> None:
    """Checks that a command or an option was not removed.

    Args:
      path: the program and the command that `name` belongs to, such as `feedline schema`.
      name: name of the command or option.

    Raises:
      UsageError: the name was removed; the message has the release and the remedy.
    """
    full_name = f"{path} {name}".partition(" ")[2]
    if full_name in REMOVED:
        release, remedy = REMOVED[full_name]
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"there is no {kind} {name!r} since {release}; {remedy}")


class Location(click.ParamType):
    """A path or a URL, completed by the shell.

    Args:
      name: name of the value, which the help shows in capitals.
      kind: `dir` completes only directories, `file` completes files and directories.
    """

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the item that makes the shell complete files or directories."""
        return [CompletionItem(incomplete, type=self._kind)]


class SplitName(click.ParamType):
    """The name of a split of the dataset that the argument `dataset` names."""

    name = "split"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the splits of a local dataset; remote requests would be too slow."""
        # While the value of an option is missing, click does not assign the arguments.
        dataset = ctx.params.get("dataset") or "".join(ctx.args[:1])
        path = os.path.join(dataset, "dataset.json")
        try:
            with open(path, "rb") as file:
                split_names = list(storage.parse_json(file.read(storage.MAX_JSON_BYTES))["splits"])
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [CompletionItem(name) for name in split_names if name.isidentifier() and name.startswith(incomplete)]


FILE = Location("file", "file")
DIR = Location("dir", "dir")
PATH = Location("path", "file")
SPLIT = SplitName()


GENERAL = "Options"


class Option(click.Option):
    """An option with a heading in the help of a `Command`.

    Args:
      declarations: names of the option.
      heading: heading of its group in the help.
      settings: arguments of `click.Option`.
    """

    def __init__(self, declarations: Sequence[str] | None = None, heading: str = GENERAL, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.heading = heading


class Command(click.Command):
    """A command whose help shows options by heading, `Options` first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Returns the remaining arguments.

        Raises:
          UsageError: an option was removed in this release.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            check_removed(ctx.command_path, error.option_name)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options."""
        sections: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (help_record := parameter.get_help_record(ctx)):
                sections.setdefault(getattr(parameter, "heading", GENERAL), []).append(help_record)
        for heading, help_records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(help_records)


class Group(click.Group):
    """A command with sub-commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order in which the commands were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the name, the command and its arguments.

        Raises:
          UsageError: the command was removed in this release.
          click.UsageError: there is no such command; the message names the nearest one.
        """
        names = self.list_commands(ctx)
        if args and args[0] not in names and not ctx.resilient_parsing and not args[0].startswith("-"):
            check_removed(ctx.command_path, args[0])
            raise click.UsageError(unknown("command", args[0], names))
        return super().resolve_command(ctx, args)

    def summaries(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        """Yields the name and the summary of every command."""
        for name, command in self.commands.items():
            yield name, summary(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their complete summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx)))


def summary(command: click.Command) -> str:
    """Returns a one-line summary of a command: its `short_help`, else the first paragraph of its help."""
    return command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())

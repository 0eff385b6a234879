"""Commands as this program has them: options under headings, sub-commands in order, help with wrong names.

Kinds of values of options and arguments are taken as they are typed, and completed in a shell. A command or an option
that is gone is answered, for one minor release, with what to do instead.
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

_BACKGROUND = (
    "run the command under nohup, tmux or systemd-run; its progress is on standard error, and after a stop the same "
    "command continues"
)
# What is typed behind `feedline`, a command or a command and its option -> the first release without it, the remedy.
REMOVED: Mapping[str, tuple[str, str]] = {
    "inspect --html": (
        "0.2",
        "`--draw` shows the images on a terminal, `--export DIR` writes them, `feedline report` makes a page",
    ),
    "ingest --detach": ("0.2", _BACKGROUND),
    "run --detach": ("0.2", _BACKGROUND),
    "status": ("0.2", _BACKGROUND),
}


def check_removed(path: str, name: str) -> None:
    """Refuses a command or an option that is gone; one that never was is left to the caller.

    Args:
      path: of the command that it belongs to, with the name of the program, as `feedline schema`.
      name: of the command or option.

    Raises:
      UsageError: it is gone; the message has the release and the remedy.
    """
    typed = f"{path} {name}".partition(" ")[2]
    if typed in REMOVED:
        release, remedy = REMOVED[typed]
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"there is no {kind} {name!r} since {release}; {remedy}")


class Place(click.ParamType):
    """A path or a URL; the shell completes it from the files it sees.

    Args:
      name: in the help, in capitals there.
      kind: what the shell offers: `dir` for directories alone, or `file` for both.
    """

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leaves it to the shell."""
        return [CompletionItem(incomplete, type=self._kind)]


class SplitName(click.ParamType):
    """The name of a split of the dataset that the argument `dataset` names."""

    name = "split"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the splits of a dataset on this machine; a server is too slow for a TAB."""
        # An option that still lacks its value keeps click from telling arguments apart.
        dataset = ctx.params.get("dataset") or "".join(ctx.args[:1])
        path = os.path.join(dataset, "dataset.json")
        try:
            with open(path, "rb") as file:
                names = list(storage.parse_json(file.read(storage.MAX_JSON_BYTES))["splits"])
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [CompletionItem(name) for name in names if name.isidentifier() and name.startswith(incomplete)]


FILE = Place("file", "file")
DIR = Place("dir", "dir")
PATH = Place("path", "file")
SPLIT = SplitName()


GENERAL = "Options"


class Option(click.Option):
    """An option that stands under a heading in the help of a `Command`.

    Args:
      declarations: its names.
      heading: of its part of the help.
      settings: of `click.Option`.
    """

    def __init__(self, declarations: Sequence[str] | None = None, heading: str = GENERAL, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.heading = heading


class Command(click.Command):
    """A command whose help has its options under their headings, those of the command itself first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Returns the arguments that are left.

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
        parts: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                parts.setdefault(getattr(parameter, "heading", GENERAL), []).append(record)
        for heading, records in parts.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class Group(click.Group):
    """A command with sub-commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order in which they were added, which is that of their use."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns name, command and the arguments left for it.

        Raises:
          UsageError: the command was removed in this release.
          click.UsageError: there is no such command; the nearest is named.
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
        """Writes the commands with their whole summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx)))


def summary(command: click.Command) -> str:
    """Returns what a command does in one line: its `short_help`, else the first paragraph of its help."""
    return command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())

"""Commands as this program has them: options under headings, sub-commands in order, help with wrong names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from beam_jobs.common.strings import unknown
from pipeline.cli import removed

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
            removed.check(ctx.command_path, error.option_name)
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
            removed.check(ctx.command_path, args[0])
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

"""The options of an ingest on the command line, made from the fields of `IngestOptions`."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import beam_jobs.options
from beam_jobs.common.settings import Field, OptionField, fields, meanings
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions, parse_splits
from pipeline.cli.click_groups import GENERAL, Option

F = TypeVar("F", bound=Callable[..., Any])
_TOP = Field()
_MANY_CHOICES = 6  # more than that are listed in the help, not in front of it


def ingest_options(function: F) -> F:
    """Adds the options of the ingest to a command; `ingest_settings` turns what they hold into settings."""
    for setting in reversed(ingest_leaves()):
        function = setting.click_option()(function)
    return function


def ingest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings from the values of `ingest_options`; what was not given is left out.

    Raises:
      OptionError: --splits is not of the form train=0.9,eval=0.1.
    """
    settings: dict[str, Any] = {}
    for setting in ingest_leaves():
        value = values.get(setting.parameter)
        if value is None or value == ():
            continue
        node = settings
        for section in setting.path[:-1]:
            node = node.setdefault(section, {})
        node[setting.path[-1]] = parse_splits(value) if setting.path == ("splits",) else value
    return settings


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An option of the command line that is a setting of the ingest.

    Attributes:
      path: names of its section, if any, and of the setting.
      option: such as `--min-side-px`.
      heading: of its part of the help.
      metavar: stands for the value in the help; empty leaves it to click.
      meaning: sentence of the help.
      described: the field of the options that it is.
    """

    path: tuple[str, ...]
    option: str
    heading: str
    metavar: str
    meaning: str
    described: OptionField

    @property
    def parameter(self) -> str:
        """Name of its value."""
        return self.option.removeprefix("--").replace("-", "_")

    def click_option(self) -> Callable[[F], F]:
        """Returns what adds it to a command."""
        hint, choices = self.described.hint, self.described.choices
        many = typing.get_origin(hint) is tuple
        settings: dict[str, Any] = {"cls": Option, "heading": self.heading or GENERAL, "help": self._help()}
        if hint is bool:
            return click.option(self.option, is_flag=True, default=None, **settings)
        kind = click.Choice(choices) if choices else hint if hint in (int, float) else str
        metavar = self.metavar if kind is str or len(choices) > _MANY_CHOICES else None
        return click.option(self.option, type=kind, multiple=many, metavar=metavar or None, **settings)

    def _help(self) -> str:
        default = self.described.default
        if isinstance(default, Mapping):
            shown = ",".join(f"{name}={value:g}" for name, value in default.items())
        else:
            shown = f"{default:.12g}" if isinstance(default, float) else str(default)
        is_shown = shown and not isinstance(default, (bool, tuple))
        many = " Repeatable." if isinstance(default, tuple) else ""
        first = re.split(r"(?<=\.)\s", self.meaning)[0].rstrip(".")
        text = re.sub(r"`(\w+)`", _spelled_out, f"{first[:1].upper()}{first[1:]}.")
        return f"{text}{many}" + (f"  [default: {shown}]" if is_shown else "")


def _spelled_out(quoted: re.Match[str]) -> str:
    """Returns what the help has for a word in backticks: an option, the texts of a constant, or the word."""
    options = {leaf.path[-1]: leaf.option for leaf in ingest_leaves()} | {"out": "--out"}
    texts = getattr(beam_jobs.options, quoted[1], None)
    return ", ".join(texts) if texts else options.get(quoted[1], quoted[1])


@functools.cache
def ingest_leaves() -> tuple[Leaf, ...]:
    """Returns the settings of an ingest that are options of the command line, by heading."""
    leaves = list(leaves_of(IngestOptions))
    headings = list(dict.fromkeys(leaf.heading for leaf in leaves))
    return tuple(sorted(leaves, key=lambda leaf: headings.index(leaf.heading)))


def leaves_of(cls: type, path: tuple[str, ...] = (), within: Field = _TOP) -> Iterator[Leaf]:
    """Yields the fields of a class of options, and of its sections, that are options of the command line.

    Args:
      cls: the class.
      path: names of the section that it is of.
      within: annotation of that section.
    """
    for name, described in fields(cls).items():
        if described.section:
            yield from leaves_of(described.section, (*path, name), described.field)
        elif described.field.option is not None:
            own = described.field
            parameter = f"{within.prefix}{name}{within.suffix}"
            yield Leaf(
                path=(*path, name),
                option=own.option or f"--{parameter.replace('_', '-')}",
                heading=own.heading or within.heading,
                metavar=own.metavar or within.metavar,
                meaning=meanings(cls)[name],
                described=described,
            )


def check_useful(values: Mapping[str, Any], options: IngestOptions) -> None:
    """Refuses what was typed and would change nothing.

    Args:
      values: of `ingest_options`, as they were given.
      options: what they and all other layers come to.

    Raises:
      OptionError: an option belongs to another one that is not set so.
    """
    for leaf in ingest_leaves():
        if not leaf.described.field.needs or values.get(leaf.parameter) is None:
            continue
        other, wanted = leaf.described.field.needs
        chosen = functools.reduce(getattr, (*leaf.path[:-1], other), options)
        if chosen not in wanted:
            # What is added to a dataset is treated like the rest of it: there the other option has no choice.
            adds = options.append or options.retry_rejects
            remedy = "leave it out" if adds else f"give {_flag(other)} {' or '.join(wanted)} too, or leave it out"
            raise OptionError(f"{leaf.option} is of no use to {_flag(other)} {chosen}; {remedy}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

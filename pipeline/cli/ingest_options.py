"""Command-line options of an ingest, generated from the fields of `IngestOptions`."""

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
_TOP = Field()  # without heading, prefix and suffix
_MAX_CHOICES = 6  # in a metavar; more choices are listed in the help text


def ingest_options(function: F) -> F:
    """Adds the options of the ingest to a command; `ingest_settings` converts their values to settings."""
    for setting in reversed(ingest_option_settings()):
        function = setting.click_option()(function)
    return function


def about_options(function: F) -> F:
    """Adds the options of `About` to a command; `ingest_settings` converts their values to settings."""
    for setting in reversed(ingest_option_settings()):
        if setting.path[0] == "about":
            function = setting.click_option()(function)
    return function


def ingest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings from the values of `ingest_options`, without options that were not given.

    Raises:
      OptionError: --splits is not of the form train=0.9,eval=0.1.
    """
    settings: dict[str, Any] = {}
    for setting in ingest_option_settings():
        value = values.get(setting.parameter)
        if value is None or value == ():
            continue
        node = settings
        for section in setting.path[:-1]:
            node = node.setdefault(section, {})
        node[setting.path[-1]] = parse_splits(value) if setting.path == ("splits",) else value
    return settings


@dataclass(frozen=True, kw_only=True)
class OptionSetting:
    """A setting of the ingest that is a command-line option.

    Attributes:
      path: names of its sections, if any, and name of the setting.
      option: option name, such as `--min-side-px`.
      heading: heading of the option in the help.
      metavar: placeholder of the value in the help; empty selects the one of click.
      meaning: text of the help.
      option_field: field of `IngestOptions`.
    """

    path: tuple[str, ...]
    option: str
    heading: str
    metavar: str
    meaning: str
    option_field: OptionField

    @property
    def parameter(self) -> str:
        """Name of the parameter of the command."""
        return self.option.removeprefix("--").replace("-", "_")

    def click_option(self) -> Callable[[F], F]:
        """Returns the decorator that adds the option to a command."""
        hint, choices = self.option_field.hint, self.option_field.choices
        is_repeatable = typing.get_origin(hint) is tuple
        settings: dict[str, Any] = {"cls": Option, "heading": self.heading or GENERAL, "help": self._help()}
        if hint is bool:
            return click.option(self.option, is_flag=True, default=None, **settings)
        value_type = click.Choice(choices) if choices else hint if hint in (int, float) else str
        metavar = self.metavar if value_type is str or len(choices) > _MAX_CHOICES else None
        return click.option(self.option, type=value_type, multiple=is_repeatable, metavar=metavar or None, **settings)

    def _help(self) -> str:
        """Returns the first sentence of the meaning, and the default, for the help."""
        default = self.option_field.default
        if isinstance(default, Mapping):
            default_text = ",".join(f"{name}={value:g}" for name, value in default.items())
        else:
            default_text = f"{default:.12g}" if isinstance(default, float) else str(default)
        has_default_text = default_text and not isinstance(default, (bool, tuple))
        repeatable = " Repeatable." if isinstance(default, tuple) else ""
        first_sentence = re.split(r"(?<=\.)\s", self.meaning)[0].rstrip(".")
        text = re.sub(r"`(\w+)`", _expand_name, f"{first_sentence[:1].upper()}{first_sentence[1:]}.")
        return f"{text}{repeatable}" + (f"  [default: {default_text}]" if has_default_text else "")


def _expand_name(quoted: re.Match[str]) -> str:
    """Returns the help text for a name in backticks: an option, the values of a constant, or the name."""
    options = {setting.path[-1]: setting.option for setting in ingest_option_settings()} | {"out": "--out"}
    constant_values = getattr(beam_jobs.options, quoted[1], None)
    return ", ".join(constant_values) if constant_values else options.get(quoted[1], quoted[1])


@functools.cache
def ingest_option_settings() -> tuple[OptionSetting, ...]:
    """Returns the settings of an ingest that are command-line options, grouped by heading."""
    option_settings = list(collect_option_settings(IngestOptions))
    headings = list(dict.fromkeys(setting.heading for setting in option_settings))
    return tuple(sorted(option_settings, key=lambda setting: headings.index(setting.heading)))


def collect_option_settings(cls: type, path: tuple[str, ...] = (), section: Field = _TOP) -> Iterator[OptionSetting]:
    """Yields the fields of a class of options, and of its sections, that are command-line options.

    Args:
      cls: class of options.
      path: names of the sections that contain it.
      section: annotation of that section.
    """
    for name, option_field in fields(cls).items():
        if option_field.section:
            yield from collect_option_settings(option_field.section, (*path, name), option_field.field)
        elif option_field.field.option is not None:
            annotation = option_field.field
            parameter = f"{section.prefix}{name}{section.suffix}"
            yield OptionSetting(
                path=(*path, name),
                option=annotation.option or f"--{parameter.replace('_', '-')}",
                heading=annotation.heading or section.heading,
                metavar=annotation.metavar or section.metavar,
                meaning=meanings(cls)[name],
                option_field=option_field,
            )


def check_options_have_effect(values: Mapping[str, Any], options: IngestOptions) -> None:
    """Checks that every option of the command line has an effect.

    Args:
      values: values of `ingest_options`.
      options: options from all layers.

    Raises:
      OptionError: an option only has an effect with another value of another option.
    """
    for setting in ingest_option_settings():
        if not setting.option_field.field.needs or values.get(setting.parameter) is None:
            continue
        needed, values_with_effect = setting.option_field.field.needs
        value = functools.reduce(getattr, (*setting.path[:-1], needed), options.resolve(0))  # replaces `auto`
        if value not in values_with_effect:
            remedy = "leave it out"
            if not (options.append or options.retry_rejects):  # these use the dataset's value of the other option
                remedy = f"give {_option_name(needed)} {' or '.join(values_with_effect)} too, or {remedy}"
            raise OptionError(f"{setting.option} has no effect with {_option_name(needed)} {value}; {remedy}")


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_SETTING_PATHS = {
    "images": ("ingest", "source"),
    "root": ("root",),
    "dataset": ("dataset",),
    "span": ("span",),
    "span_version": ("version",),
    "schema": ("schema",),
    "gate": ("gate", "mode"),
    "image_side": ("input", "image_side_px"),
    "batch_size": ("input", "batch_size"),
    "epochs": ("train", "epochs"),
    "min_accuracy": ("evaluate", "min_accuracy"),
}


def option_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings from the values of options of `feedline run`."""
    ingest = ingest_settings(values)
    settings: dict[str, Any] = {"ingest": ingest} if ingest else {}
    for option, (*sections, name) in _SETTING_PATHS.items():
        if values.get(option) is not None:
            node = settings
            for section in sections:
                node = node.setdefault(section, {})
            node[name] = values[option]
    return settings


def option_names(command: click.Command, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns dotted key -> option, such as `train.epochs` -> `--epochs`, for all options that set a setting."""
    from pipeline.settings.layers import leaves

    names = {parameter.name: parameter.opts[0] for parameter in command.params}
    paths = (
        (option, path) for option, value in values.items() for path, _ in leaves((), option_settings({option: value}))
    )
    return {".".join(path): names[option] for option, path in paths}

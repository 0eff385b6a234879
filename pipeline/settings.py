"""Settings in layers: what a file says, then the environment, then the command line. The last one to name a key wins.

The defaults below all layers are those of the dataclasses; `configuration.build` fills them in.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown
from pipeline import config as configuration
from pipeline import target_settings, yaml_text
from pipeline.config import NOT_IN_A_PIPELINE, TARGET_SECTIONS, PipelineConfig

PREFIX = "FEEDLINE_"
# Switches of the tests, and what Kubernetes sets in every container of a cluster with a service called feedline.
_NO_SETTING = re.compile(rf"{PREFIX}(BROWSER$|TEST_|SERVICE_|PORT$|PORT_)")

Place = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all layers, merged.

    Attributes:
      values: nested, as `configuration.build` takes them; defaults are not among them.
      origin: dotted key -> the layer its value came from: `file NAME`, `environment NAME` or `option NAME`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def layer(self, key: str) -> str:
        """Returns the layer of a setting, or the layers of all settings in a section; `default` when none names it."""
        found = [layer for known, layer in self.origin.items() if f"{known}.".startswith(f"{key}.")]
        return ", ".join(dict.fromkeys(found)) or "default"

    def build(self) -> PipelineConfig:
        """Returns the checked configuration.

        Raises:
          OptionError: a value is missing or not allowed; the message says which layer it came from.
        """
        try:
            return configuration.build(self.values)
        except OptionError as error:
            named = re.match(r"[\w.]+(?= is )", str(error))
            layers = {layer for key, layer in self.origin.items() if named and f".{key}".endswith(f".{named.group()}")}
            if len(layers) != 1:  # two sections have a setting of that name
                raise
            raise OptionError(f"{error} ({layers.pop()})") from error


def gather(
    config_path: str | None,
    values: Mapping[str, Any],
    assignments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Settings:
    """Merges the layers.

    Args:
      config_path: YAML file of settings; None for none.
      values: nested settings from named options of the command line.
      assignments: of `--set`, each `train.epochs=20`.
      environ: the environment; that of this process when None.
      options: dotted key -> name of the option that `values` has it from, such as `--epochs`.

    Raises:
      OptionError: a layer cannot be read or names a setting that does not exist; the message says which.
    """
    settings = Settings()
    if config_path:
        for path, value in _leaves((), configuration.load(config_path)):
            _put(settings, path, value, f"file {config_path}")
    for name, path, given in _of_environment(os.environ if environ is None else environ):
        for place, value in _leaves(path, given):
            _put(settings, place, value, f"environment {name}")
    for path, value in _leaves((), values):
        option = (options or {}).get(".".join(path))
        _put(settings, path, value, f"option {option}" if option else "command line")
    for path, given in map(_assignment, assignments):
        for place, value in _leaves(path, given):
            _put(settings, place, value, "option --set")
    target_settings.check(settings.values)
    return settings


@functools.cache
def sections() -> dict[str, type]:
    """Returns the dotted name of every section -> its dataclass, in the order of the page; `""` is the top level."""
    return {"": PipelineConfig, **_below(PipelineConfig, "")}


def names(section: str) -> list[str]:
    """Returns what may stand in a section of `sections`, or of a target."""
    if section in TARGET_SECTIONS:
        return list(target_settings.target_hints(section))
    found = [item.name for item in dataclasses.fields(sections()[section])]
    if section == "ingest":
        return [name for name in found if name not in NOT_IN_A_PIPELINE]
    return found if section else [*found, *TARGET_SECTIONS]


def _is_section(key: str) -> bool:
    return key in sections() or key in TARGET_SECTIONS


def _below(cls: type, where: str) -> dict[str, type]:
    found: dict[str, type] = {}
    for name, hint in typing.get_type_hints(cls).items():
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for member in members:
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                dotted = f"{where}{name}"
                found |= {dotted: member, **_below(member, f"{dotted}.")}
    return found


def _leaves(path: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields every setting in a value. A mapping that is itself the value of a setting, such as splits, stays whole."""
    if not _is_section(".".join(path)) or not isinstance(value, Mapping):
        yield path, value
        return
    for name, below in value.items():
        yield from _leaves((*path, str(name)), below)


def _put(settings: Settings, path: Place, value: Any, layer: str) -> None:
    key = _setting_of(path, layer)
    node = settings.values
    for depth, name in enumerate(path[:-1], 1):
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            where = ".".join(path[:depth])
            raise OptionError(f"{where} is {node!r}; to name {'.'.join(path)} it must be a mapping of settings")
    if value is None and _is_section(key):  # a header whose lines are all comments
        _forget(settings, key)
        node.pop(path[-1], None)
        return
    node[path[-1]] = copy.deepcopy(value)
    before = settings.origin.get(key, layer)
    if len(path) <= key.count(".") + 1:  # the whole setting, not an entry of the mapping that it holds
        _forget(settings, key)
        before = layer
    settings.origin[key] = layer if before == layer else f"{before}, {layer}"


def _forget(settings: Settings, key: str) -> None:
    """Removes the layers of a setting or of all settings in a section."""
    for known in [known for known in settings.origin if f"{known}.".startswith(f"{key}.")]:
        del settings.origin[known]


def _setting_of(path: Place, layer: str) -> str:
    """Returns the dotted key of the setting that a path leads to, or into.

    Raises:
      OptionError: there is no such setting.
    """
    for depth, name in enumerate(path):
        section = ".".join(path[:depth])
        if not _is_section(section):
            return section
        if name not in names(section) and not (section == "ingest" and name in NOT_IN_A_PIPELINE):
            raise OptionError(f"{layer}: {_unknown(section, name)}")
    return ".".join(path)


def _unknown(section: str, name: str) -> str:
    within = f"{section}." if section else ""
    homes: dict[str, list[str]] = {}
    for other in sections():
        for known in names(other):
            homes.setdefault(known, []).append(f"{other}.{known}" if other else known)
    near = difflib.get_close_matches(name, homes, 1)
    if difflib.get_close_matches(name, names(section), 1) or not near:
        return unknown("setting", name, names(section), within)
    return f"there is no setting {f'{within}{name}'!r}; did you mean {' or '.join(homes[near[0]])}?"


def _of_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Place, Any]]:
    """Yields name, place and value of every variable that is a setting; an empty one counts as not set."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) or _NO_SETTING.match(name) or not environ[name].strip():
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if not all(path):
            raise OptionError(f"environment {name} names no setting; write it as {PREFIX}TRAIN__EPOCHS")
        yield name, path, _value(path, environ[name], f"environment {name}")


def _assignment(text: str) -> tuple[Place, Any]:
    key, separator, value = text.partition("=")
    if not separator or not all(key.split(".")):
        raise OptionError(f"--set is {text!r}; write it as train.epochs=20")
    path = tuple(key.split("."))
    return path, _value(path, value, f"--set {key}")


def _value(path: Place, text: str, where: str) -> Any:
    section = ".".join(path[:-1])
    if section in TARGET_SECTIONS:
        hints = target_settings.target_hints(section)
    else:
        hints = typing.get_type_hints(sections()[section]) if section in sections() else {}
    wants_text = hints.get(path[-1]) is str
    try:
        return yaml_text.parse_value(text, wants_text)
    except yaml.YAMLError as error:
        raise OptionError(f"{where} is {text!r}, which is not a YAML value") from error

"""Settings in layers: the file, the environment and the command line; later layers override earlier ones.

The defaults are those of the dataclasses, which `configuration.build` fills in. `listing` shows all settings, with the
layer of each value.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from beam_jobs.common import strings, yaml_text
from beam_jobs.common.settings import as_yaml
from beam_jobs.common.strings import hide_secrets
from beam_jobs.common.yaml_text import one_line
from beam_jobs.errors import OptionError, UsageError
from pipeline import config as configuration
from pipeline.config import TARGET_SECTIONS, PipelineConfig
from pipeline.settings import known_settings
from pipeline.settings.known_settings import (
    PREFIX,
    KeyPath,
    check_variable,
    default_entries,
    is_section,
    names,
    resolve_setting,
    setting_type,
)

# Switches of the tests, and variables that Kubernetes sets in a cluster with a service called feedline.
_IGNORED_VARIABLES = re.compile(rf"{PREFIX}(BROWSER$|FAULTS$|TEST_|SERVICE_|PORT$|PORT_)")
_SPLITS = "ingest.splits"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all layers, merged.

    Attributes:
      values: nested settings for `configuration.build`, without defaults.
      origin: dotted key -> layer of the value: `file NAME`, `environment NAME` or `option NAME`; for a mapping whose
        entries have several layers, all of them, separated by commas, perhaps with `default` as the first.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def layer(self, key: str) -> str:
        """Returns the layer of a setting, or all layers of a section; `default` when no layer sets it."""
        layers = [layer for set_key, layer in self.origin.items() if f"{set_key}.".startswith(f"{key}.")]
        return ", ".join(dict.fromkeys(layers)) or "default"

    def build(self) -> PipelineConfig:
        """Returns the checked configuration.

        Raises:
          OptionError: a value is missing or not allowed; the message names its layer.
        """
        with self.annotate_errors():
            return configuration.build(self.values)

    @contextlib.contextmanager
    def annotate_errors(self) -> Iterator[None]:
        """Adds the layer of the value to every `UsageError` about a setting."""
        try:
            yield
        except UsageError as error:
            keys = [key for key in self._faulty_keys(error) if self.layer(key) != "default"]
            if keys:
                origins = "; ".join(f"{key} from {self.layer(key)}" for key in keys)
                error.args = (f"{error} ({origins})",)
            raise

    def _faulty_keys(self, error: UsageError) -> Sequence[str]:
        """Returns the keys of an error, or the key whose name or value its message begins with."""
        if isinstance(error, OptionError) and error.keys:
            return error.keys
        message = str(error)
        name_match = re.match(r"[\w.]+(?= is )|\w+(\.\w+)+(?=[ :])", message)
        keys = [key for key in self.origin if name_match and f".{key}".endswith(f".{name_match.group()}")]
        keys = keys or [key for key in self.origin if _starts_with_value(message, key, self._get_value(key))]
        return keys if len(keys) == 1 else ()  # several keys fit: sections may have settings with the same name

    def _get_value(self, key: str) -> Any:
        node: Any = self.values
        for name in key.split("."):
            node = node.get(name) if isinstance(node, Mapping) else None
        return node


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
      assignments: values of `--set`, such as `train.epochs=20`.
      environ: environment variables; None is the environment of this process.
      options: dotted key of `values` -> option name, such as `--epochs`.

    Raises:
      OptionError: a layer cannot be read or sets an unknown setting; the message names the layer.
    """
    settings = Settings()
    if config_path:
        for path, value in leaves((), configuration.load(config_path)):
            _set_value(settings, path, value, f"file {config_path}")
    sets_single_share = False
    environ = os.environ if environ is None else environ
    for path, value, layer in _overrides(values, assignments, environ, options or {}):
        _set_value(settings, path, value, layer)
        if ".".join(path[:2]) == _SPLITS:
            sets_single_share = len(path) > 2  # of the last layer that sets shares
    with settings.annotate_errors():
        known_settings.check_targets(settings.values)
        if sets_single_share:
            _check_shares(settings._get_value(_SPLITS))
    return settings


def _overrides(
    values: Mapping[str, Any], assignments: Sequence[str], environ: Mapping[str, str], options: Mapping[str, str]
) -> Iterator[tuple[KeyPath, Any, str]]:
    """Yields path, value and layer of the settings of the environment and the command line, lowest priority first."""
    for name, setting_path, setting_value in _environment_settings(environ):
        for path, value in leaves(setting_path, setting_value):
            yield path, value, f"environment {name}"
    for path, value in leaves((), values):
        option = options.get(".".join(path))
        yield path, value, f"option {option}" if option else "command line"
    for setting_path, setting_value in map(_parse_assignment, assignments):
        for path, value in leaves(setting_path, setting_value):
            yield path, value, "option --set"


def leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yields path and value of every setting; a mapping such as splits is the value of a single setting."""
    if not is_section(".".join(path)) or not isinstance(value, Mapping):
        yield path, value
        return
    for name, member in value.items():
        yield from leaves((*path, str(name)), member)


def _set_value(settings: Settings, path: KeyPath, value: Any, layer: str) -> None:
    """Sets a setting, or one entry of a setting that is a mapping, and adds its layer; None removes an entry."""
    key = resolve_setting(path, layer)
    is_entry = len(path) > key.count(".") + 1  # an entry of a setting that is a mapping
    entries = default_entries(key) if is_entry else {}
    if is_entry and entries and key not in settings.origin:
        settings.origin[key] = "default"
    node = settings.values
    for depth, name in enumerate(path[:-1], 1):
        parent = ".".join(path[:depth])
        node = node.setdefault(name, entries if parent == key else {})
        if not isinstance(node, dict):
            fault = f"{parent} is {as_yaml(node)} ({settings.layer(parent)})"
            raise OptionError(f"{layer}: {fault}; to set {'.'.join(path)}, it must be a mapping of settings")
    if value is None and is_section(key):  # an empty section: all its lines are comments
        _remove_origins(settings, key)
        node.pop(path[-1], None)
        return
    if value is None and is_entry:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = copy.deepcopy(value)
    if not is_entry:
        _remove_origins(settings, key)
    layers = settings.origin.get(key, layer)
    settings.origin[key] = layers if layer in layers.split(", ") else f"{layers}, {layer}"


def _remove_origins(settings: Settings, key: str) -> None:
    """Removes the origin of a setting, or of all settings in a section."""
    for set_key in [set_key for set_key in settings.origin if f"{set_key}.".startswith(f"{key}.")]:
        del settings.origin[set_key]


def _check_shares(splits: Any) -> None:
    """Checks that fractional shares add up to 1 after only one of them was set.

    Shares are normalised, so that an additional one would change all others.
    """
    shares = list(splits.values()) if isinstance(splits, Mapping) else []
    if not shares or not all(isinstance(share, float) and 0 < share < 1 for share in shares):
        return
    deviation = round(sum(shares) - 1, 6)
    if not deviation:
        return
    largest = max(splits, key=splits.__getitem__)
    corrected = {**splits, largest: round(splits[largest] - deviation, 6)}
    if not 0 < corrected[largest] < 1:
        corrected = {name: round(share / sum(shares), 3) for name, share in splits.items()}
    raise OptionError(
        f"{_SPLITS} is {as_yaml(splits)}, and the sum of these shares is {1 + deviation:g}, not 1; set the other "
        f"shares too, as in --set {_SPLITS}='{as_yaml(corrected)}'",
        [_SPLITS],
    )


def _starts_with_value(message: str, key: str, value: Any) -> bool:
    """Whether a message begins with the value of a setting, with or without its name."""
    if not isinstance(value, str) or not value:
        return False
    text = message.removeprefix(f"{key.rpartition('.')[2]} ")
    return any(text.startswith((f"{value_text} ", f"{value_text}: ")) for value_text in (value, os.path.abspath(value)))


def _environment_settings(environ: Mapping[str, str]) -> Iterator[tuple[str, KeyPath, Any]]:
    """Yields name, path and value of every variable that is a setting, except empty ones."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) or _IGNORED_VARIABLES.match(name) or not environ[name].strip():
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if not all(path):
            raise OptionError(f"environment {name} names no setting; write it as {PREFIX}TRAIN__EPOCHS")
        check_variable(name, path)
        yield name, path, _parse_value(path, environ[name], f"environment {name}")


def _parse_assignment(text: str) -> tuple[KeyPath, Any]:
    key, separator, value = text.partition("=")
    if not separator or not all(key.split(".")):
        raise OptionError(f"--set is {text!r}; write it as train.epochs=20")
    path = tuple(key.split("."))
    return path, _parse_value(path, value, f"--set {key}")


def _parse_value(path: KeyPath, text: str, origin: str) -> Any:
    try:
        return yaml_text.parse_value(text, setting_type(path) is str)
    except yaml.YAMLError as error:
        raise OptionError(f"{origin} is {text!r}, which is not a YAML value") from error


def listing(settings: Settings, config: PipelineConfig) -> dict[str, Any]:
    """Returns the configuration as plain JSON values: nested `settings`, and `origin`, dotted key -> layer.

    Secrets are hidden; see `strings.hide_secrets`.

    Args:
      settings: settings of all layers.
      config: the configuration that `settings` builds.
    """
    values = config.to_json()
    if config.ingest:
        values["ingest"] = {name: values["ingest"][name] for name in names("ingest")}
    else:
        del values["ingest"]
    values |= {name: settings.values[name] for name in TARGET_SECTIONS if name in settings.values}
    keys = [".".join(path) for path, _ in leaves((), values)]
    return {"settings": hide_secrets(values), "origin": {key: settings.origin.get(key, "default") for key in keys}}


def listing_text(values: Mapping[str, Any]) -> str:
    """Returns a `listing` as YAML with the origin of each value as a comment."""
    return strings.lines(_listing_lines(values["settings"], values["origin"], ""))


_COMMENT_COLUMN = 48


def _listing_lines(values: Mapping[str, Any], origin: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yields the lines of a section of `values`; `prefix` is its dotted name with a dot at the end."""
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        if f"{prefix}{name}" in origin:
            line = f"{indent}{name}: {one_line(value)}"
            yield f"{line:<{_COMMENT_COLUMN}}  # {origin[f'{prefix}{name}']}"
        else:
            yield f"{indent}{name}:"
            yield from _listing_lines(value, origin, f"{prefix}{name}.")

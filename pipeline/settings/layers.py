"""Settings in layers: what a file says, then the environment, then the command line. The last one to name a key wins.

The defaults below all layers are those of the dataclasses; `configuration.build` fills them in. The whole is listed for
people and machines, every value with the layer it came from.
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
from beam_jobs.common.settings import shown
from beam_jobs.common.strings import hide_secrets
from beam_jobs.common.yaml_text import one_line
from beam_jobs.errors import OptionError, UsageError
from pipeline import config as configuration
from pipeline.config import TARGET_SECTIONS, PipelineConfig
from pipeline.settings import catalog
from pipeline.settings.catalog import (
    PREFIX,
    Place,
    check_variable,
    default_entries,
    hint,
    is_section,
    names,
    setting_of,
)

# Switches of the tests, and what Kubernetes sets in every container of a cluster with a service called feedline.
_NO_SETTING = re.compile(rf"{PREFIX}(BROWSER$|FAULTS$|TEST_|SERVICE_|PORT$|PORT_)")
_SPLITS = "ingest.splits"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all layers, merged.

    Attributes:
      values: nested, as `configuration.build` takes them; defaults are not among them.
      origin: dotted key -> the layer its value came from: `file NAME`, `environment NAME` or `option NAME`; several,
        parted by commas, for a mapping whose entries came from several, and `default` may be the first of them.
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
        with self.explained():
            return configuration.build(self.values)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Adds to every `UsageError` about a setting which layer its value came from."""
        try:
            yield
        except UsageError as error:
            named = [key for key in self._blamed(error) if self.layer(key) != "default"]
            if named:
                origins = "; ".join(f"{key} from {self.layer(key)}" for key in named)
                error.args = (f"{error} ({origins})",)
            raise

    def _blamed(self, error: UsageError) -> Sequence[str]:
        """Returns the keys that an error is about: those it knows, or the one whose name or value it begins with."""
        if isinstance(error, OptionError) and error.keys:
            return error.keys
        message = str(error)
        named = re.match(r"[\w.]+(?= is )|\w+(\.\w+)+(?=[ :])", message)
        found = [key for key in self.origin if named and f".{key}".endswith(f".{named.group()}")]
        found = found or [key for key in self.origin if _begins_with(message, key, self._value(key))]
        return found if len(found) == 1 else ()  # two sections have a setting of that name

    def _value(self, key: str) -> Any:
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
      assignments: of `--set`, each `train.epochs=20`.
      environ: the environment; that of this process when None.
      options: dotted key -> name of the option that `values` has it from, such as `--epochs`.

    Raises:
      OptionError: a layer cannot be read or names a setting that does not exist; the message says which.
    """
    settings = Settings()
    if config_path:
        for path, value in leaves((), configuration.load(config_path)):
            _put(settings, path, value, f"file {config_path}")
    completed = False
    for path, value, layer in _overrides(
        values, assignments, os.environ if environ is None else environ, options or {}
    ):
        _put(settings, path, value, layer)
        if ".".join(path[:2]) == _SPLITS:
            completed = len(path) > 2
    with settings.explained():
        catalog.check_targets(settings.values)
        if completed:
            _check_shares(settings._value(_SPLITS))
    return settings


def _overrides(
    values: Mapping[str, Any], assignments: Sequence[str], environ: Mapping[str, str], options: Mapping[str, str]
) -> Iterator[tuple[Place, Any, str]]:
    """Yields place, value and layer of every setting above the file, in the order in which they win."""
    for name, path, given in _of_environment(environ):
        for place, value in leaves(path, given):
            yield place, value, f"environment {name}"
    for path, value in leaves((), values):
        option = options.get(".".join(path))
        yield path, value, f"option {option}" if option else "command line"
    for path, given in map(_assignment, assignments):
        for place, value in leaves(path, given):
            yield place, value, "option --set"


def leaves(path: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    """Yields every setting in a value. A mapping that is itself the value of a setting, such as splits, stays whole."""
    if not is_section(".".join(path)) or not isinstance(value, Mapping):
        yield path, value
        return
    for name, below in value.items():
        yield from leaves((*path, str(name)), below)


def _put(settings: Settings, path: Place, value: Any, layer: str) -> None:
    key = setting_of(path, layer)
    is_entry = len(path) > key.count(".") + 1  # of the mapping that a setting holds
    entries = default_entries(key) if is_entry else {}
    if is_entry and entries and key not in settings.origin:
        settings.origin[key] = "default"
    node = settings.values
    for depth, name in enumerate(path[:-1], 1):
        where = ".".join(path[:depth])
        node = node.setdefault(name, entries if where == key else {})
        if not isinstance(node, dict):
            fault = f"{where} is {shown(node)} ({settings.layer(where)})"
            raise OptionError(f"{layer}: {fault}; to name {'.'.join(path)} it must be a mapping of settings")
    if value is None and is_section(key):  # a header whose lines are all comments
        _forget(settings, key)
        node.pop(path[-1], None)
        return
    if value is None and is_entry:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = copy.deepcopy(value)
    if not is_entry:
        _forget(settings, key)
    before = settings.origin.get(key, layer)
    settings.origin[key] = before if layer in before.split(", ") else f"{before}, {layer}"


def _forget(settings: Settings, key: str) -> None:
    """Removes the layers of a setting or of all settings in a section."""
    for known in [known for known in settings.origin if f"{known}.".startswith(f"{key}.")]:
        del settings.origin[known]


def _check_shares(splits: Any) -> None:
    """Checks that shares below 1 still add up to 1 after one of them was set without the others.

    Shares are normalised, so that one more would make all others smaller than they were written.
    """
    shares = list(splits.values()) if isinstance(splits, Mapping) else []
    if not shares or not all(isinstance(share, float) and 0 < share < 1 for share in shares):
        return
    over = round(sum(shares) - 1, 6)
    if not over:
        return
    largest = max(splits, key=splits.__getitem__)
    mended = {**splits, largest: round(splits[largest] - over, 6)}
    if not 0 < mended[largest] < 1:
        mended = {name: round(share / sum(shares), 3) for name, share in splits.items()}
    raise OptionError(
        f"{_SPLITS} is {shown(splits)}, and the sum of these shares is {1 + over:g}, not 1; set the others too, or "
        f"all, as in --set {_SPLITS}='{shown(mended)}'",
        [_SPLITS],
    )


def _begins_with(message: str, key: str, value: Any) -> bool:
    """Whether an error begins with the value of a setting, with or without its name."""
    if not isinstance(value, str) or not value:
        return False
    rest = message.removeprefix(f"{key.rpartition('.')[2]} ")
    return any(rest.startswith((f"{form} ", f"{form}: ")) for form in (value, os.path.abspath(value)))


def _of_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Place, Any]]:
    """Yields name, place and value of every variable that is a setting; an empty one counts as not set."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) or _NO_SETTING.match(name) or not environ[name].strip():
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if not all(path):
            raise OptionError(f"environment {name} names no setting; write it as {PREFIX}TRAIN__EPOCHS")
        check_variable(name, path)
        yield name, path, _value(path, environ[name], f"environment {name}")


def _assignment(text: str) -> tuple[Place, Any]:
    key, separator, value = text.partition("=")
    if not separator or not all(key.split(".")):
        raise OptionError(f"--set is {text!r}; write it as train.epochs=20")
    path = tuple(key.split("."))
    return path, _value(path, value, f"--set {key}")


def _value(path: Place, text: str, where: str) -> Any:
    try:
        return yaml_text.parse_value(text, hint(path) is str)
    except yaml.YAMLError as error:
        raise OptionError(f"{where} is {text!r}, which is not a YAML value") from error


def listing(settings: Settings, config: PipelineConfig) -> dict[str, Any]:
    """Returns the whole configuration as plain JSON values: nested `settings`, and their `origin` by dotted key.

    Secrets are left out, see `strings.hide_secrets`.

    Args:
      settings: of all layers.
      config: what they come to.
    """
    values = config.to_json()
    if config.ingest:
        values["ingest"] = {name: values["ingest"][name] for name in names("ingest")}
    else:
        del values["ingest"]
    values |= {name: settings.values[name] for name in TARGET_SECTIONS if name in settings.values}
    keys = [".".join(path) for path, _ in leaves((), values)]
    return {"settings": hide_secrets(values), "origin": {key: settings.origin.get(key, "default") for key in keys}}


def listing_text(listed: Mapping[str, Any]) -> str:
    """Returns a `listing` as YAML with a comment behind each value, which is its origin."""
    return strings.lines(_listing_lines(listed["settings"], listed["origin"], ""))


_COMMENT_COLUMN = 48


def _listing_lines(values: Mapping[str, Any], origin: Mapping[str, str], where: str) -> Iterator[str]:
    indent = "  " * where.count(".")
    for name, value in values.items():
        if f"{where}{name}" in origin:
            line = f"{indent}{name}: {one_line(value)}"
            yield f"{line:<{_COMMENT_COLUMN}}  # {origin[f'{where}{name}']}"
        else:
            yield f"{indent}{name}:"
            yield from _listing_lines(value, origin, f"{where}{name}.")

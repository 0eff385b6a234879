"""The sections, names, types and defaults of all settings, those of the targets included, and checks of names."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from beam_jobs.common.settings import fields, not_a_section
from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from beam_jobs.runners import ENGINES, engine_settings
from pipeline.config import NOT_IN_A_PIPELINE, TARGET_SECTIONS, PipelineConfig

_ENGINE, _RUNNER = "engine", "runner"


def target_options() -> dict[str, tuple[str, type]]:
    """Returns target -> the location of its settings in `pipeline.yaml`, and their dataclass."""
    from beam_jobs.runners import dataflow, flink
    from pipeline.runners.airflow import AirflowOptions
    from pipeline.runners.kubeflow import KubeflowOptions

    return {
        "flink": ("engine, runner: flink", flink.Options),
        "dataflow": ("engine, runner: dataflow", dataflow.Options),
        "kubeflow": ("kubeflow", KubeflowOptions),
        "airflow": ("airflow", AirflowOptions),
    }


def target_types(section: str) -> dict[str, Any]:
    """Returns setting -> type for one of `TARGET_SECTIONS`; `engine` has the settings of all engines."""
    types: dict[str, Any] = {_RUNNER: str} if section == _ENGINE else {}
    for location, cls in target_options().values():
        if location.partition(",")[0] == section:
            types |= {name: item.hint for name, item in fields(cls).items()}
    return types


def check_targets(values: Mapping[str, Any]) -> None:
    """Checks that the sections of targets are mappings, and the names in `engine`; targets check the values.

    Args:
      values: nested settings.

    Raises:
      OptionError: a section is not a mapping, or `engine` has an unknown runner or a setting of another engine.
    """
    for section in TARGET_SECTIONS:
        content = values.get(section, {})
        if not isinstance(content, Mapping):
            raise not_a_section(section, content)
    engine = values.get(_ENGINE, {})
    if _RUNNER not in engine:
        return
    if engine[_RUNNER] not in ENGINES:
        raise OptionError(unknown(f"{_ENGINE}.{_RUNNER}", engine[_RUNNER], ENGINES), [f"{_ENGINE}.{_RUNNER}"])
    allowed = (_RUNNER, *fields(engine_settings(engine[_RUNNER])))
    for name in engine:
        if name not in allowed:
            message = unknown("setting", name, allowed, f"{_ENGINE}.")
            raise OptionError(f"{message}, because {_RUNNER} is {engine[_RUNNER]}", [f"{_ENGINE}.{name}"])


PREFIX = "FEEDLINE_"

KeyPath = tuple[str, ...]


@functools.cache
def sections() -> dict[str, type]:
    """Returns dotted name -> dataclass of every section; `""` is the top level."""
    return {"": PipelineConfig, **_subsections(PipelineConfig, "")}


def names(section: str) -> list[str]:
    """Returns the allowed names in a section of `sections`, or of a target."""
    if section in TARGET_SECTIONS:
        return list(target_types(section))
    section_fields = fields(sections()[section])
    if section == "ingest":
        return [name for name, item in section_fields.items() if item.field.in_pipeline]
    return [*section_fields, *(() if section else TARGET_SECTIONS)]


def is_section(key: str) -> bool:
    """Whether a dotted key, or `""`, names a section and not a setting."""
    return key in sections() or key in TARGET_SECTIONS


def setting_type(path: KeyPath) -> Any:
    """Returns the type of the setting at a path; None if no setting is there."""
    section = ".".join(path[:-1])
    if section in TARGET_SECTIONS:
        return target_types(section).get(path[-1])
    section_fields = fields(sections()[section]) if section in sections() else {}
    return section_fields[path[-1]].hint if path[-1] in section_fields else None


def default_entries(key: str) -> dict[str, Any]:
    """Returns the default of a setting that is a mapping, such as `ingest.splits`; empty for other settings."""
    section, _, name = key.rpartition(".")
    section_fields = fields(sections()[section]) if section in sections() else {}
    default = section_fields[name].default if name in section_fields else None
    return dict(default) if isinstance(default, Mapping) else {}


def resolve_setting(path: KeyPath, layer: str) -> str:
    """Returns the dotted key of the setting at a path, or of the setting with an entry at the path.

    Args:
      path: names, outermost first.
      layer: layer that sets it, for the error message.

    Raises:
      OptionError: the setting does not exist.
    """
    for depth, name in enumerate(path):
        section = ".".join(path[:depth])
        if not is_section(section):
            return section
        if name not in names(section) and not (section == "ingest" and name in NOT_IN_A_PIPELINE):
            raise OptionError(f"{layer}: {_unknown_message(section, name)}")
    return ".".join(path)


def check_variable(name: str, path: KeyPath) -> None:
    """Checks that an environment variable names a setting.

    Raises:
      OptionError: the setting does not exist; the message gives the nearest variable.
    """
    try:
        resolve_setting(path, name)
    except OptionError:
        variable, is_near = _nearest_variables(name)
        remedy = (
            f"did you mean {variable}?" if is_near else f"the nearest is {variable}; unset it if it is not for Feedline"
        )
        raise OptionError(f"environment {name}: there is no such setting; {remedy}") from None


def _nearest_variables(name: str) -> tuple[str, bool]:
    """Returns the variables most similar to a name, and whether they are similar enough for a suggestion."""
    joined_name = _remove_underscores(name.removeprefix(PREFIX))
    variables = [variable for section in (*sections(), *TARGET_SECTIONS) for variable in _section_variables(section)]
    candidates: dict[str, list[str]] = {}
    for variable in variables:
        candidates.setdefault(_remove_underscores(variable), []).append(f"{PREFIX}{variable}")
    for variable in variables:  # complete names have priority over the last parts of names
        joined_ending = _remove_underscores(variable.rpartition("__")[2])
        if joined_ending not in map(_remove_underscores, variables):
            candidates.setdefault(joined_ending, []).append(f"{PREFIX}{variable}")
    close_matches = difflib.get_close_matches(joined_name, candidates, 1)
    nearest = close_matches or difflib.get_close_matches(joined_name, candidates, 1, cutoff=0.0)
    return " or ".join(candidates[nearest[0]]), bool(close_matches)


def _section_variables(section: str) -> Iterable[str]:
    """Yields the environment variables of the settings in a section, without `PREFIX`."""
    for name in names(section):
        yield (f"{section}.{name}" if section else name).upper().replace(".", "__")


def _remove_underscores(name: str) -> str:
    return name.replace("_", "")


def _subsections(cls: type, prefix: str) -> dict[str, type]:
    """Returns dotted name -> dataclass of the sections in a dataclass, nested ones included."""
    subsections: dict[str, type] = {}
    for name, item in fields(cls).items():
        if item.section:
            dotted_name = f"{prefix}{name}"
            subsections |= {dotted_name: item.section, **_subsections(item.section, f"{dotted_name}.")}
    return subsections


def _unknown_message(section: str, name: str) -> str:
    """Returns the message about an unknown setting of a section, with the nearest names of any section."""
    prefix = f"{section}." if section else ""
    keys_by_name: dict[str, list[str]] = {}
    for other_section in sections():
        for other_name in names(other_section):
            keys_by_name.setdefault(other_name, []).append(f"{other_section}.{other_name}".lstrip("."))
    close_names = difflib.get_close_matches(name, keys_by_name, 1)
    if difflib.get_close_matches(name, names(section), 1) or not close_names:
        return unknown("setting", name, names(section), prefix)
    return f"there is no setting {f'{prefix}{name}'!r}; did you mean {' or '.join(keys_by_name[close_names[0]])}?"

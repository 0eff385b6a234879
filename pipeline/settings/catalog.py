"""Which settings there are: their sections, names and defaults, and help with names that are nearly right.

Also what may stand in the sections that say where the work is done.
"""

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
    """Returns target -> where its settings stand, and their dataclass."""
    from beam_jobs.runners import dataflow, flink
    from pipeline.runners.airflow import AirflowOptions
    from pipeline.runners.kubeflow import KubeflowOptions

    return {
        "flink": ("engine, runner: flink", flink.Options),
        "dataflow": ("engine, runner: dataflow", dataflow.Options),
        "kubeflow": ("kubeflow", KubeflowOptions),
        "airflow": ("airflow", AirflowOptions),
    }


def target_hints(section: str) -> dict[str, Any]:
    """Returns setting -> its type, for one of `TARGET_SECTIONS`; for `engine` those of every engine."""
    found: dict[str, Any] = {_RUNNER: str} if section == _ENGINE else {}
    for where, cls in target_options().values():
        if where.partition(",")[0] == section:
            found |= {name: item.hint for name, item in fields(cls).items()}
    return found


def check_targets(values: Mapping[str, Any]) -> None:
    """Checks sections of targets as wholes; their names are known already, and each target checks its own values.

    Args:
      values: nested settings.

    Raises:
      OptionError: a section is no mapping, or `engine` names no engine, or a setting that its engine does not have.
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
    known = list(fields(engine_settings(engine[_RUNNER])))
    for name in engine:
        if name not in (_RUNNER, *known):
            message = unknown("setting", name, (_RUNNER, *known), f"{_ENGINE}.")
            raise OptionError(f"{message}, for {_RUNNER} is {engine[_RUNNER]}", [f"{_ENGINE}.{name}"])


PREFIX = "FEEDLINE_"

Place = tuple[str, ...]


@functools.cache
def sections() -> dict[str, type]:
    """Returns the dotted name of every section -> its dataclass, in the order of the page; `""` is the top level."""
    return {"": PipelineConfig, **_below(PipelineConfig, "")}


def names(section: str) -> list[str]:
    """Returns what may stand in a section of `sections`, or of a target."""
    if section in TARGET_SECTIONS:
        return list(target_hints(section))
    known = fields(sections()[section])
    if section == "ingest":
        return [name for name, item in known.items() if item.field.in_pipeline]
    found = list(known)
    return found if section else [*found, *TARGET_SECTIONS]


def is_section(key: str) -> bool:
    """Whether a dotted key, or `""`, names a section and not a setting."""
    return key in sections() or key in TARGET_SECTIONS


def hint(path: Place) -> Any:
    """Returns the type of a setting; None when the path does not lead to one."""
    section = ".".join(path[:-1])
    if section in TARGET_SECTIONS:
        return target_hints(section).get(path[-1])
    known = fields(sections()[section]) if section in sections() else {}
    return known[path[-1]].hint if path[-1] in known else None


def default_entries(key: str) -> dict[str, Any]:
    """Returns the default of a setting that is a mapping, such as `ingest.splits`; an empty one for every other."""
    section, _, name = key.rpartition(".")
    known = fields(sections()[section]) if section in sections() else {}
    default = known[name].default if name in known else None
    return dict(default) if isinstance(default, Mapping) else {}


def setting_of(path: Place, layer: str) -> str:
    """Returns the dotted key of the setting that a path leads to, or into.

    Args:
      path: names, outermost first.
      layer: who names it, for errors.

    Raises:
      OptionError: there is no such setting.
    """
    for depth, name in enumerate(path):
        section = ".".join(path[:depth])
        if not is_section(section):
            return section
        if name not in names(section) and not (section == "ingest" and name in NOT_IN_A_PIPELINE):
            raise OptionError(f"{layer}: {_unknown(section, name)}")
    return ".".join(path)


def check_variable(name: str, path: Place) -> None:
    """Checks that an environment variable leads to a setting.

    Raises:
      OptionError: it does not; the message names the nearest variable that does.
    """
    try:
        setting_of(path, name)
    except OptionError:
        variable, is_near = _nearest(name)
        remedy = (
            f"did you mean {variable}?"
            if is_near
            else f"the nearest is {variable}; unset it when it is not meant for this"
        )
        raise OptionError(f"environment {name}: there is no setting of that name; {remedy}") from None


def _nearest(name: str) -> tuple[str, bool]:
    """Returns the variables that are nearest to a name, and whether they are near."""
    wanted = _squeezed(name.removeprefix(PREFIX))
    known = [variable for section in (*sections(), *TARGET_SECTIONS) for variable in _variables(section)]
    homes: dict[str, list[str]] = {}
    for variable in known:
        homes.setdefault(_squeezed(variable), []).append(f"{PREFIX}{variable}")
    for variable in known:  # a whole name goes before the end of another one
        end = _squeezed(variable.rpartition("__")[2])
        if end not in map(_squeezed, known):
            homes.setdefault(end, []).append(f"{PREFIX}{variable}")
    near = difflib.get_close_matches(wanted, homes, 1)
    best = near or difflib.get_close_matches(wanted, homes, 1, cutoff=0.0)
    return " or ".join(homes[best[0]]), bool(near)


def _variables(section: str) -> Iterable[str]:
    for name in names(section):
        yield (f"{section}.{name}" if section else name).upper().replace(".", "__")


def _squeezed(name: str) -> str:
    """Returns the name as it is when one underscore is as good as two."""
    return name.replace("_", "")


def _below(cls: type, where: str) -> dict[str, type]:
    sections_below: dict[str, type] = {}
    for name, item in fields(cls).items():
        if item.section:
            dotted = f"{where}{name}"
            sections_below |= {dotted: item.section, **_below(item.section, f"{dotted}.")}
    return sections_below


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

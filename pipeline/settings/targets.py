"""What may stand in the sections of the configuration that say where the work is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beam_jobs.common.settings import fields, not_a_section
from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from beam_jobs.runners import ENGINES, options_of
from pipeline.config import TARGET_SECTIONS

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


def check(values: Mapping[str, Any]) -> None:
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
    known = list(fields(options_of(engine[_RUNNER])))
    for name in engine:
        if name not in (_RUNNER, *known):
            message = unknown("setting", name, (_RUNNER, *known), f"{_ENGINE}.")
            raise OptionError(f"{message}, for {_RUNNER} is {engine[_RUNNER]}", [f"{_ENGINE}.{name}"])

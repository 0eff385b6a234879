"""What a target needs of this machine, and the command that brings what is missing.

Every target has a module here with `checks(settings) -> Iterator[Check]`. It takes the nested settings of
`pipeline.yaml`, all layers merged and not yet validated, and yields a `Check` for each thing that was looked at, in the
order in which a person would repair them. It imports what is heavy inside its functions, changes nothing, and asks the
network only where the target cannot be judged without, for at most `NETWORK_TIMEOUT_S` a question.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.common import validate

NETWORK_TIMEOUT_S = 5.0
TARGETS = {
    "local": "pipeline.doctor.local",
    "flink": "pipeline.doctor.flink",
    "dataflow": "pipeline.doctor.dataflow",
    "kubeflow": "pipeline.doctor.kubeflow",
    "airflow": "pipeline.doctor.airflow",
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
      name: what was looked at, two or three words.
      ok: whether it is as it should be.
      detail: the value that was found, and what is wrong with it where it is not ok; one line.
      remedy: the command that repairs it, or what to write where; empty when it is ok.
      needed: whether the target cannot work without; what is not ok and not needed is a warning.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    def __post_init__(self) -> None:
        if not self.ok and not self.remedy:
            raise ValueError(f"check {self.name!r} found {self.detail!r} and does not say what repairs it")

    @property
    def mark(self) -> str:
        """One of `ok`, `warn` and `missing`."""
        return "ok" if self.ok else "missing" if self.needed else "warn"


def run(target: str, settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields the checks of a target as they are made.

    Args:
      target: one of `TARGETS`.
      settings: nested settings of the pipeline; empty when there is no configuration yet.

    Raises:
      OptionError: there is no such target.
    """
    validate.choice("target", target, tuple(TARGETS))
    module: types.ModuleType = importlib.import_module(TARGETS[target])
    yield from module.checks(settings)

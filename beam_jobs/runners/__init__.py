"""Engines: what runs the Beam jobs of an ingest. The jobs and the bytes are the same; where they run differs.

Each engine is a module with a frozen dataclass of settings, `Options`, whose `open` makes it ready.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline

ENGINES = ("local", "flink", "dataflow")


class Engine(Protocol):
    """Somewhere to run Beam jobs."""

    def open(self) -> AbstractContextManager[MakePipeline]:
        """Makes the engine ready, and gives back on exit what that took.

        Returns:
          context of a function that makes the pipelines of an ingest, for `ingest.run(make_pipeline=...)`.

        Raises:
          OptionError: the settings do not fit, or what they name cannot be reached.
        """


def options_of(name: str) -> type[Engine]:
    """Returns the dataclass of settings of an engine.

    Raises:
      OptionError: there is no such engine.
    """
    if name not in ENGINES:
        raise OptionError(unknown("runner", name, ENGINES))
    options: type[Engine] = importlib.import_module(f"beam_jobs.runners.{name}").Options
    return options

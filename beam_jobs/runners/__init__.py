"""Engines: they run the Beam jobs of an ingest. The jobs and the written bytes are the same on every engine.

Each engine is a module with a frozen dataclass of settings, `Options`, whose `open` starts the engine.
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
    """Settings of an engine that runs Beam jobs."""

    def open(self) -> AbstractContextManager[MakePipeline]:
        """Starts the engine, and releases its resources on exit.

        Returns:
          context manager of a function that creates the pipelines of an ingest, for `ingest.run(make_pipeline=...)`.

        Raises:
          OptionError: the settings do not fit together, or a service or file in them is not reachable.
        """


def engine_settings(name: str) -> type[Engine]:
    """Returns the dataclass of the settings of an engine.

    Raises:
      OptionError: the name is not in `ENGINES`.
    """
    if name not in ENGINES:
        raise OptionError(unknown("runner", name, ENGINES))
    options: type[Engine] = importlib.import_module(f"beam_jobs.runners.{name}").Options
    return options

"""Engines, which run the Beam jobs of an ingest. The jobs and the written bytes are the same on every engine.

Each engine except `local` is a module with a frozen dataclass of settings, `Options`, whose `open` starts the engine.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic.dataclasses import dataclass

from beam_jobs.common import settings
from beam_jobs.common.settings import STRICT
from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline

ENGINES = ("local", "flink", "dataflow")


class Engine(Protocol):
    """Settings of an engine that runs Beam jobs.

    Attributes:
      name: one of `ENGINES`.
    """

    name: ClassVar[str]

    def open(self) -> AbstractContextManager[MakePipeline]:
        """Starts the engine, and releases its resources on exit.

        Returns:
          context manager that yields a function that creates pipelines, for `ingest.run(make_pipeline=...)`.

        Raises:
          OptionError: settings contradict each other, or a service or file that they name is not reachable.
        """


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LocalEngine(settings.Options):
    """Beam in this process, without workers. Has no settings: the number of threads is an option of the ingest."""

    name: ClassVar[str] = "local"

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine.open`."""
        from beam_jobs.runners.beam_job import local_pipeline

        yield local_pipeline


def engine_settings(name: str) -> type[Engine]:
    """Returns the dataclass with the settings of the engine with this name.

    Raises:
      OptionError: the name is not in `ENGINES`.
    """
    if name not in ENGINES:
        raise OptionError(unknown("runner", name, ENGINES))
    if name == "local":
        return LocalEngine
    engine_class: type[Engine] = importlib.import_module(f"beam_jobs.runners.{name}").Options
    return engine_class

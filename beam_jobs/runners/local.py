"""Beam in this process, without workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from beam_jobs.common import settings
from beam_jobs.common.settings import STRICT

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(settings.Options):
    """Has no settings: threads are an option of the ingest."""

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine`."""
        from beam_jobs.runners.beam_job import local_pipeline

        yield local_pipeline

"""Verification on a Beam runner: workers check the shards and the image table, this process reads their reports."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

from beam_jobs import storage
from beam_jobs.common.system import Progress, Watch, map_ordered, no_watch
from beam_jobs.dataset import verify
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.dataset.verify import Unit, UnitReport, Verification
from beam_jobs.errors import FeedlineError
from beam_jobs.runners.beam_job import MakePipeline, run_job
from beam_jobs.stages import resume
from beam_jobs.stages.transforms import VerifyUnits


def verify_on_runner(
    directory: str, make_pipeline: MakePipeline, work: str, threads: int = 0, watch: Watch = no_watch
) -> Verification:
    """Returns the result of `verify_dataset`; a Beam job checks the shards and the image table.

    Args:
      directory: directory of a published dataset, which the workers can reach.
      make_pipeline: creates the pipeline.
      work: directory that the workers can reach; reports are written to a new directory in it, removed at the end.
      threads: threads per worker process; 0 lets the worker choose the number.
      watch: shows the progress.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` cannot be used.
      DatasetChanged: the dataset was replaced during the job.
      FeedlineError: the runner failed.
    """

    def check_units(dataset: Manifest, units: Sequence[Unit]) -> Iterator[UnitReport]:
        transform = VerifyUnits(directory=directory, work=work, digest=dataset.digest, threads=threads, units=units)
        total = Progress(sum(info.records for info in dataset.splits.values()))
        run_job("verifying", total, transform, make_pipeline, watch)
        yield from map_ordered(partial(_read_report, work), units, resume.seal_threads(work))

    # Workers have other current directories than this process.
    directory, work = (path if storage.is_remote(path) else os.path.abspath(path) for path in (directory, work))
    work = storage.join(work, f"verify-{uuid.uuid4().hex[:16]}")
    storage.make_dirs(work)
    try:
        return verify.verify(directory, check_units=check_units)
    finally:
        storage.remove_tree(work)


def _read_report(work: str, unit: Unit) -> UnitReport:
    path = storage.join(work, unit.name)
    try:
        return UnitReport(**resume.read_checked(path))
    except (OSError, ValueError) as error:
        raise FeedlineError(
            f"the report {path} of a worker cannot be read ({error}); name a --work that all these machines can reach"
        ) from error

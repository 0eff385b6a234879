"""Verify on a Beam runner: workers read the shards and the image table, this process the reports."""

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
    """Checks a dataset as `verify_dataset` does, its shards and its image table by a Beam job.

    Args:
      directory: directory of a published dataset, which the workers can reach.
      make_pipeline: creates the pipeline.
      work: directory that the workers can reach; their reports are in a new one in it, which is removed at the end.
      threads: threads per worker process; 0 lets it decide.
      watch: shows the progress.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` cannot be used.
      DatasetChanged: the dataset was replaced during the job.
      FeedlineError: the runner failed.
    """

    def check(dataset: Manifest, units: Sequence[Unit]) -> Iterator[UnitReport]:
        transform = VerifyUnits(directory=directory, work=work, digest=dataset.digest, threads=threads, units=units)
        total = Progress(sum(info.records for info in dataset.splits.values()))
        run_job("verifying", total, transform, make_pipeline, watch)
        yield from map_ordered(partial(_read_report, work), units, resume.seal_threads(work))

    # Workers have other current directories.
    directory, work = (path if storage.is_remote(path) else os.path.abspath(path) for path in (directory, work))
    work = storage.join(work, f"verify-{uuid.uuid4().hex[:16]}")
    storage.make_dirs(work)
    try:
        return verify.verify(directory, check_units=check)
    finally:
        storage.remove_tree(work)


def _read_report(work: str, unit: Unit) -> UnitReport:
    path = storage.join(work, unit.name)
    try:
        return UnitReport(**resume.read_checked(path))
    except (OSError, ValueError) as error:
        raise FeedlineError(
            f"the report {path} of a worker cannot be read ({error}); name a --work that it and this machine can reach"
        ) from error

"""Beam transforms: one PTransform per stage, with counters; `examine`, `write` and `verify` contain the logic.

Workers list the units of work, from a file or the manifest, so the graph of a job does not grow with their number.

Expected failures are written to notes, because runners convert exceptions to text in different forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs import storage
from beam_jobs.common.system import Progress, is_worker, local_progress, map_ordered, worker_threads
from beam_jobs.dataset import manifest, verify
from beam_jobs.dataset.verify import Unit, UnitChecker
from beam_jobs.errors import DatasetChanged, Unreadable
from beam_jobs.runners.beam_job import Tally
from beam_jobs.stages import examine, resume, write, writers
from beam_jobs.stages.examine import Examined, ExamineTask, examine_bucket, write_unread_note
from beam_jobs.stages.scan import Bucket
from beam_jobs.stages.write import ShardTask, WriteTask

T = TypeVar("T")


@dataclass
class ExamineBuckets(beam.PTransform):
    """Examines buckets of references; the results are files, the elements are the outcomes.

    Attributes:
      units: path of the list of the buckets; see `resume.write_units`.
      task: parameters of the work.
      buckets: the same buckets, for `tally`.
    """

    units: str
    task: ExamineTask
    buckets: Sequence[Bucket] = ()

    @property
    def unit_count(self) -> int:
        """Number of units of work."""
        return len(self.buckets)

    def expand(self, root: beam.Pipeline) -> beam.PCollection[Examined]:
        """Builds the stage."""
        buckets = _spread(root, "Buckets", _read_buckets, self.units)
        return buckets | "Examine" >> beam.ParDo(_Examine(self.task))

    def tally(self) -> Tally:
        """Returns the tally of the progress of the stage, which reads only the files of finished work."""
        return _tally_buckets(self.task.reader.work, self.buckets)


@dataclass
class WriteShards(beam.PTransform):
    """Writes planned shards; the results are files, the elements are the names of the written shards.

    Attributes:
      units: path of the list of the shards; see `resume.write_units`.
      task: parameters of the work.
      shards: the same shards, for `tally`.
    """

    units: str
    task: WriteTask
    shards: Sequence[ShardTask] = ()

    @property
    def unit_count(self) -> int:
        """Number of units of work."""
        return len(self.shards)

    def expand(self, root: beam.Pipeline) -> beam.PCollection[str]:
        """Builds the stage."""
        shards = _spread(root, "Shards", _read_shards, self.units)
        return shards | "Write" >> beam.ParDo(_Write(self.task))  # names of the shards

    def tally(self) -> Tally:
        """Returns the tally of the progress of the stage, which reads only the files of finished work."""
        return _tally_shards(self.task.work, self.shards)


@dataclass
class VerifyUnits(beam.PTransform):
    """Checks the shards and the image table of a dataset; the results are files, the elements are their names.

    Attributes:
      directory: directory of the dataset.
      work: directory of the reports.
      digest: digest of the dataset.
      threads: threads per worker process; 0 lets the worker choose the number.
      units: shards and files to check, for `tally`.
    """

    directory: str
    work: str
    digest: str
    threads: int
    units: Sequence[Unit] = ()

    @property
    def unit_count(self) -> int:
        """Number of units of work."""
        return len(self.units)

    def expand(self, root: beam.Pipeline) -> beam.PCollection[str]:
        """Builds the stage."""
        units = _spread(root, "Units", _list_units, self.directory)
        check = _Check(self.directory, self.work, self.digest, self.threads)
        return units | "Check" >> beam.ParDo(check)  # names of the files

    def tally(self) -> Tally:
        """Returns the tally of the progress of the stage, which reads only the files of finished work."""

        def parse(_: str, report: bytes) -> Progress:
            values = resume.parse_checked(report)
            return Progress(values["records"], values["bytes"])

        return Tally(self.work, (unit.name for unit in self.units), parse)


def tally_running_job(work: str, stage: str, units: str) -> Tally:
    """Returns the tally of a job that an earlier command left running.

    Args:
      work: work directory of the ingest.
      stage: name of the stage.
      units: path of the list of its units.

    Raises:
      OSError: the list cannot be read.
    """
    if stage == "examining":
        return _tally_buckets(work, _read_buckets(b"", units))
    return _tally_shards(work, _read_shards(b"", units))


def _spread(
    root: beam.Pipeline, unit_noun: str, read_units: Callable[[bytes, str], Iterable[T]], location: str
) -> beam.PCollection[T]:
    """Lists units of work in a worker; without the reshuffle, fusion would keep all of them on that worker."""
    units = root | "Start" >> beam.Impulse() | f"List{unit_noun}" >> beam.FlatMap(read_units, location)
    return units | f"Spread{unit_noun}" >> beam.Reshuffle()


def _tally_buckets(work: str, buckets: Iterable[Bucket]) -> Tally:
    names = map(examine.marker_name, buckets)
    return Tally(storage.join(work, examine.DIRECTORY), names, lambda _, data: examine.parse_progress(data))


def _tally_shards(work: str, shards: Iterable[ShardTask]) -> Tally:
    def parse(_: str, sidecar: bytes) -> Progress | None:
        try:
            values = resume.parse_checked(sidecar)
        except ValueError:  # a damaged sidecar of an earlier run: its shard is written again
            return None
        return Progress(values["records"], values["shard"]["bytes"])

    return Tally(storage.join(work, write.DIRECTORY), map(write.sidecar_name, shards), parse)


def _read_buckets(_: bytes, path: str) -> Iterator[Bucket]:
    return (Bucket(**values) for values in resume.read_units(path))


def _read_shards(_: bytes, path: str) -> Iterator[ShardTask]:
    return map(ShardTask.from_json, resume.read_units(path))


def _list_units(_: bytes, directory: str) -> list[Unit]:
    return verify.list_units(manifest.load(directory))


class _Examine(beam.DoFn):
    def __init__(self, task: ExamineTask) -> None:
        self._task = task

    def setup(self) -> None:
        self._task = replace(self._task, threads=worker_threads(self._task.threads))

    def process(self, bucket: Bucket) -> Iterator[Examined]:
        try:
            outcome = examine_bucket(bucket, self._task)
        except (Unreadable, OSError) as error:
            if isinstance(error, OSError) and not storage.is_remote(self._task.reader.work):
                raise  # `disk.explain_errors` adds the cause
            write_unread_note(bucket, self._task, error)
            _add_to_counters("ExamineBuckets", unread_buckets=1)
            return
        _add_to_counters("ExamineBuckets", images=outcome.good, rejects=outcome.rejected, bytes=outcome.bytes)
        _add_to_counters("ExamineBuckets", resumed_buckets=int(outcome.resumed))
        yield outcome


class _Write(beam.DoFn):
    def __init__(self, task: WriteTask) -> None:
        self._task = task

    def setup(self) -> None:
        processes = 0 if is_worker() else self._task.processes
        self._task = replace(self._task, threads=worker_threads(self._task.threads), processes=processes)

    def start_bundle(self) -> None:
        self._shards: list[ShardTask] = []

    def process(self, shard: ShardTask) -> Iterable[str]:
        if self._task.processes:
            self._shards.append(shard)  # `finish_bundle` writes several at a time
            return
        yield from self._finish(shard, writers.write_or_note(shard, self._task))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        write_shards = partial(writers.write_or_note, task=self._task)
        # One thread of this process waits for each writing process.
        outcomes = map_ordered(write_shards, self._shards, max(1, self._task.processes))
        try:
            for shard, counts in zip(self._shards, outcomes, strict=True):
                for name in self._finish(shard, counts):
                    yield GlobalWindows.windowed_value(name)
        except KeyboardInterrupt:
            writers.close()  # the processes must not write when another ingest uses the output
            raise

    def _finish(self, shard: ShardTask, counts: dict[str, int]) -> Iterator[str]:
        _add_to_counters("WriteShards", **counts)
        if "failed_shards" not in counts:
            yield shard.name


class _Check(beam.DoFn):
    def __init__(self, directory: str, work: str, digest: str, threads: int) -> None:
        self._directory, self._work, self._digest, self._threads = directory, work, digest, threads

    def setup(self) -> None:
        dataset = manifest.load(self._directory)
        if dataset.digest != self._digest:
            raise DatasetChanged(f"{self._directory} was replaced while it was verified; run the command again")
        self._checker = UnitChecker(self._directory, dataset, worker_threads(self._threads))

    def process(self, unit: Unit) -> Iterator[str]:
        report = self._checker.check(Unit(*unit))
        resume.write_checked(storage.join(self._work, unit.name), asdict(report))
        local_progress.add(Progress(report.records, report.bytes))
        _add_to_counters("VerifyUnits", images=report.records, bytes=report.bytes, problems=len(report.problems))
        yield unit.name


def _add_to_counters(transform: str, **numbers: int) -> None:
    for name, number in numbers.items():
        Metrics.counter(transform, name).inc(number)

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_jobs.common import system
from beam_jobs.common.system import Progress, no_watch
from beam_jobs.errors import FeedlineError, OptionError, SourceError
from beam_jobs.runners.beam_job import JobFile, local_pipeline, run_job
from beam_jobs.stages.resume import write_units
from beam_jobs.stages.transforms import ExamineBuckets, WriteShards, tally_running_job
from tests.beam_jobs.runs import Recorder

TOTAL = Progress(3, 300)


class Stage(beam.PTransform):
    """Three elements through one function."""

    def __init__(self, work) -> None:
        super().__init__()
        self._work = work

    def expand(self, root):
        return root | beam.Create([1, 2, 3]) | beam.Reshuffle() | "Work" >> beam.Map(self._work)


class Watched:
    """A watch that keeps what it is told, and what is done when its block begins and ends."""

    def __init__(self) -> None:
        self.told: list = []
        self.begun = self.ended = None

    @contextlib.contextmanager
    def __call__(self, stage, total, read):
        self.told.append((stage, total))
        self.begun = read()
        try:
            yield
        finally:
            self.ended = read()


def nothing(number):
    return number


def count_here(number):
    system.local_progress.add(Progress(1, 100, int(number == 2)))


def count_in_metrics(number):
    Metrics.counter("Stage", "images").inc(int(number != 2))
    Metrics.counter("Stage", "rejects").inc(int(number == 2))
    Metrics.counter("Stage", "bytes").inc(100)


def run(work, watch=no_watch, make_pipeline=local_pipeline):
    run_job("examining", TOTAL, Stage(work), make_pipeline, watch, JobFile(path="no service"))


def test_a_job_is_watched_from_beginning_to_end():
    system.local_progress.add(Progress(7, 7, 7))  # of the job before
    watch = Watched()
    run(count_here, watch)
    assert watch.told == [("examining", TOTAL)]
    assert (watch.begun, watch.ended) == (Progress(), Progress(3, 300, 1))
    assert isinstance(local_pipeline().runner, FnApiRunner)


def test_what_was_not_counted_in_this_process_is_told_by_the_metrics():
    watch = Watched()
    run(count_in_metrics, watch)
    assert system.local_progress.read() == Progress()
    assert (watch.begun, watch.ended) == (Progress(), Progress(3, 300, 1))


class ReadTwice(Watched):
    """Reads what is done at the end of the job, and once more as if it had been counted in other processes."""

    @contextlib.contextmanager
    def __call__(self, stage, total, read):
        yield
        self.begun = read()
        system.local_progress.reset()
        self.ended = read()


def test_examining_counts_the_same_here_and_in_its_metrics(stages, tmp_path):
    task = replace(stages.examine_task, reader=replace(stages.examine_task.reader, work=str(tmp_path / "fresh")))
    watch = ReadTwice()
    buckets = stages.scanned.buckets
    transform = ExamineBuckets(write_units(str(tmp_path), buckets), task, buckets)
    run_job("examining", TOTAL, transform, local_pipeline, watch)
    assert watch.begun == watch.ended == Progress(24, stages.scanned.bytes, 0)


def test_writing_counts_the_same_here_and_in_its_metrics(stages, tmp_path):
    watch = ReadTwice()
    for taken_up in (False, True):
        transform = WriteShards(write_units(str(tmp_path), stages.shards), stages.task, stages.shards)
        run_job("writing", TOTAL, transform, local_pipeline, watch)
        assert watch.begun == watch.ended
        assert (watch.ended.images, watch.ended.bytes == 0) == (24, taken_up)


def disk_is_full(number):
    raise OSError(28, "No space left on device", "/data/x")


def many_lines(number):
    raise ValueError("a long story\n\n  no more workers  \n")


def no_word(number):
    raise LookupError


def missing_key(number):
    raise KeyError("k")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (disk_is_full, "OSError: [Errno 28] No space left on device: '/data/x'"),
        (many_lines, "no more workers"),
        (no_word, "LookupError"),
        (missing_key, '"k"'),
    ],
)
def test_an_error_of_a_worker_is_one_line_without_the_words_of_the_runner(work, said):
    with pytest.raises(FeedlineError, match="^examining failed: ") as caught:
        run(work)
    kept = "; finished work is kept, run the same command again"
    assert str(caught.value) == f"examining failed: {said}{kept}"
    assert caught.value.__cause__ is not None  # the runner's own story, for --debug
    assert type(caught.value) is FeedlineError


def test_an_error_without_words_is_named_by_its_kind():
    def fail():
        raise RuntimeError("\n \n")

    with pytest.raises(FeedlineError, match="^examining failed: RuntimeError; finished work"):
        run(nothing, make_pipeline=fail)


def explained(number=0):
    raise SourceError("the whole explanation")


def test_an_error_for_people_is_passed_on_as_it_is():
    with pytest.raises(SourceError, match="^the whole explanation$"):
        run(nothing, make_pipeline=explained)
    with pytest.raises(SourceError, match="^the whole explanation$"):
        run(explained)


def interrupted(number):
    raise KeyboardInterrupt


def interrupted_and_wrapped(number):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise RuntimeError("the bundle failed") from error


@pytest.mark.parametrize("work", [interrupted, interrupted_and_wrapped])
def test_an_interruption_is_one_even_when_the_runner_wraps_it(work):
    with pytest.raises(KeyboardInterrupt):
        run(work)


@pytest.mark.parametrize("work", [disk_is_full, interrupted])
def test_the_watch_ends_when_the_job_fails(work):
    watch = Watched()
    with pytest.raises((FeedlineError, KeyboardInterrupt)):
        run(work, watch)
    assert watch.ended == Progress()


class Cancelled(PipelineRunner):
    """What a service says of a job that somebody cancelled on its page; no local runner ends like that."""

    def run_pipeline(self, pipeline, options):
        return _CancelledResult(PipelineState.RUNNING)


class _CancelledResult(PipelineResult):
    def wait_until_finish(self, duration=None):
        return PipelineState.CANCELLED

    def metrics(self):
        raise ConnectionError("the service has a hiccup")


def test_a_job_that_ends_otherwise_than_done_has_failed():
    watch = Watched()
    with pytest.raises(FeedlineError, match="^examining failed: the job ended in the state CANCELLED; finished work"):
        run(nothing, watch, lambda: beam.Pipeline(runner=Cancelled()))
    assert watch.ended == Progress()  # metrics that cannot be had break nothing


class OnService(PipelineRunner):
    """A service whose job runs until it is cancelled; the first wait is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False

    def run_pipeline(self, pipeline, options):
        return _Interrupted(self)


class _Interrupted(PipelineResult):
    address, text = {"engine": "far"}, "the job far away"

    def __init__(self, runner: OnService) -> None:
        super().__init__(PipelineState.RUNNING)
        self._runner = runner

    def wait_until_finish(self, duration=None):
        raise KeyboardInterrupt

    def cancel(self):
        self._runner.cancelled = True


def on_service(file: JobFile) -> OnService:
    """Runs a job there until it is interrupted, or the file of its address cannot be written."""
    runner = OnService()
    with pytest.raises((KeyboardInterrupt, FeedlineError)):
        run_job("examining", TOTAL, Stage(nothing), lambda: beam.Pipeline(runner=runner), no_watch, file)
    return runner


def fail(_: str) -> bool:
    raise OSError("the terminal is gone")


def test_a_job_that_nobody_left_is_cancelled_and_one_that_was_left_has_its_address_in_a_file(tmp_path):
    for name, leave in (("gone", fail), ("asked", lambda _: False)):
        assert on_service(JobFile(path=str(tmp_path / name), leave=leave)).cancelled, name
    other = JobFile(path=str(tmp_path / "other"), leave=lambda _: False, is_starter_running=True)
    assert not on_service(other).cancelled, "the command that began it still runs"
    other.remove(_Interrupted.address)
    os.remove(other.path)
    (tmp_path / "file").touch()
    assert on_service(JobFile(path=str(tmp_path / "file" / "no directory"))).cancelled, "nobody would find it"
    assert os.listdir(tmp_path) == ["file"]
    left = JobFile(path=str(tmp_path / "left"), leave=lambda _: True)
    assert not on_service(left).cancelled
    with pytest.raises(
        OptionError, match="^the job far away of an earlier command may still run; use that command's runner"
    ):
        left.follow(local_pipeline, no_watch, print)
    left.remove({"engine": "another job"})
    assert (tmp_path / "left").exists()
    left.remove(_Interrupted.address)
    left.follow(local_pipeline, no_watch, print)


class LeftBehind:
    """The pipelines of a service on which a job runs that an earlier command left."""

    engine = "far"
    processes = 1

    def __call__(self):
        raise AssertionError("the job is followed, and no other one begins")

    def attach(self, address):
        return _Ended(PipelineState.RUNNING)


class _Ended(PipelineResult):
    address, text = {"engine": "far"}, "the job far away"

    def wait_until_finish(self, duration=None):
        return PipelineState.DONE


def followed(file: JobFile, stage: str, units: str) -> Progress:
    """Returns what is shown at the end of a job that was left with a list of units."""
    watch = Watched()
    file.write(stage, TOTAL, units, _Ended(PipelineState.RUNNING))
    file.follow(LeftBehind(), watch, print)
    assert watch.told == [(stage, TOTAL)]
    assert not os.path.exists(file.path)
    return watch.ended


def test_a_followed_job_is_counted_by_the_units_that_it_finished(stages, tmp_path):
    file = JobFile(path=str(tmp_path / "job"), tally=partial(tally_running_job, stages.task.work))
    buckets, shards = (write_units(str(tmp_path), units) for units in (stages.scanned.buckets, stages.shards))
    assert followed(file, "examining", buckets) == Progress(24, stages.scanned.bytes, 0)
    run_job("writing", TOTAL, WriteShards(shards, stages.task, stages.shards), local_pipeline, no_watch)
    assert followed(file, "writing", shards).images == 24
    assert followed(file, "writing", str(tmp_path / "none")) == Progress()  # its counts alone are lost


def test_a_file_that_cannot_be_read_begins_no_second_job(tmp_path):
    (tmp_path / "job").mkdir()
    with pytest.raises(FeedlineError, match="job cannot be read: .*; run the same command again"):
        JobFile(path=str(tmp_path / "job")).follow(local_pipeline, no_watch, print)


def test_a_job_that_cannot_be_built_leaves_no_temporary_directory():
    def refuse(_):
        raise ValueError("the graph cannot be built")

    recorder = Recorder()
    with pytest.raises(FeedlineError, match="cannot be built"):
        run_job("working", Progress(), beam.ptransform_fn(refuse)(), recorder, no_watch)
    assert not os.path.exists(recorder.pipelines[0].local_tempdir)

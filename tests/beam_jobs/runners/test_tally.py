from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_jobs.common.system import Progress
from beam_jobs.errors import FeedlineError
from beam_jobs.runners import beam_job
from beam_jobs.runners.beam_job import Tally, run_job
from tests.beam_jobs.runners.test_beam_job import Watched


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(beam_job, "_POLL_S", 0.0)


def read(name: str, data: bytes) -> Progress | None:
    return None if data == b"of another run" else Progress(len(data), 10, 0)


def test_files_of_finished_work_are_added_up_once(tmp_path):
    tally = Tally(str(tmp_path / "done"), ["a", "b", "c"], read)
    assert tally() == Progress()  # not even a folder
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "a").write_bytes(b"12")
    (tmp_path / "done" / "other").write_bytes(b"12345")
    assert tally() == tally() == Progress(2, 10)
    (tmp_path / "done" / "b").write_bytes(b"of another run")
    assert tally() == Progress(2, 10)
    (tmp_path / "done" / "b").write_bytes(b"123")
    assert tally() == Progress(5, 20)


def test_a_store_is_asked_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(beam_job, "_POLL_S", 60.0)
    tally = Tally(str(tmp_path), ["a"], read)
    assert tally() == Progress()
    (tmp_path / "a").write_bytes(b"12")
    assert tally() == Progress()


def test_a_file_is_added_once_when_two_threads_ask_at_once(tmp_path):
    both = threading.Barrier(2)

    def slowly(name, data):
        with contextlib.suppress(threading.BrokenBarrierError):  # the other does not come, as it should be
            both.wait(0.5)
        return read(name, data)

    (tmp_path / "a").write_bytes(b"12")
    tally = Tally(str(tmp_path), ["a"], slowly)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: tally(), range(2))) == [Progress(2, 10), Progress(2, 10)]


class Elsewhere(PipelineRunner):
    """A runner that works in other processes, and tells its metrics when all is done; as Flink does."""

    def __init__(self, work) -> None:
        super().__init__()
        self._work = work

    def run_pipeline(self, pipeline, options):
        return _Result(self._work)


class _Result(PipelineResult):
    def __init__(self, work) -> None:
        super().__init__(PipelineState.RUNNING)
        self._work = work
        self.cancelled = False

    def wait_until_finish(self, duration=None):
        self._work()
        return PipelineState.DONE

    def metrics(self):
        raise ConnectionError("not yet")


class Stage(beam.PTransform):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def expand(self, root):
        return root | beam.Create([1])

    def tally(self):
        return Tally(str(self._folder), ["a", "b"], read)


def appear(path: Path, content: bytes) -> None:
    """A file of a worker is never seen before it is whole."""
    written = path.parent.with_suffix(".written")
    written.write_bytes(content)
    written.replace(path)


def test_a_job_elsewhere_is_followed_by_the_files_it_leaves(tmp_path):
    half, seen = threading.Event(), []

    def work():
        appear(tmp_path / "a", b"12")
        assert half.wait(30)
        appear(tmp_path / "b", b"123")

    class Half(Watched):
        def __call__(self, stage, total, ask):
            threading.Thread(target=self.look, args=(ask,), daemon=True).start()
            return super().__call__(stage, total, ask)

        def look(self, ask):
            deadline = time.monotonic() + 30
            while not seen and time.monotonic() < deadline:
                seen.extend(found for found in [ask()] if found.images)
                time.sleep(0.01)
            half.set()

    watch = Half()
    run_job("examining", Progress(5), Stage(tmp_path), lambda: beam.Pipeline(runner=Elsewhere(work)), watch)
    assert (seen, watch.ended) == ([Progress(2, 10)], Progress(5, 20))


class Cancellable(Elsewhere):
    """A runner whose jobs end with an error of whoever waits for them."""

    def __init__(self, error: BaseException, cancel) -> None:
        super().__init__(self.end)
        self._error, self._cancel = error, cancel

    def end(self):
        raise self._error

    def run_pipeline(self, pipeline, options):
        result = super().run_pipeline(pipeline, options)
        result.cancel = self._cancel
        return result


def follow(runner: PipelineRunner, folder: Path) -> None:
    run_job("examining", Progress(5), Stage(folder), lambda: beam.Pipeline(runner=runner), Watched())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectionError("the service is away"), FeedlineError("no")])
def test_a_job_that_nobody_waits_for_any_more_is_cancelled(error, tmp_path):
    cancelled = []
    with pytest.raises((KeyboardInterrupt, FeedlineError)) as caught:
        follow(Cancellable(error, lambda: cancelled.append(True)), tmp_path)
    assert cancelled == [True]
    assert "may still run" not in str(caught.value)


def refuse():
    raise ConnectionError("and nobody answers")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FeedlineError("refused")])
def test_a_job_that_cannot_be_cancelled_is_said_to_run_on(error, tmp_path):
    with pytest.raises((KeyboardInterrupt, FeedlineError)) as caught:
        follow(Cancellable(error, refuse), tmp_path)
    assert str(caught.value).endswith("could not be cancelled and may still run; cancel it in Flink or Dataflow")
    assert str(error) in str(caught.value)

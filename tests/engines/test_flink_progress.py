from __future__ import annotations

import threading
import time
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_jobs import jobs
from beam_jobs.jobs import Tally, run_job
from beam_jobs.progress import Progress
from tests.beam_jobs.test_jobs import Watched


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(jobs, "_LOOK_S", 0.0)


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
    monkeypatch.setattr(jobs, "_LOOK_S", 60.0)
    tally = Tally(str(tmp_path), ["a"], read)
    assert tally() == Progress()
    (tmp_path / "a").write_bytes(b"12")
    assert tally() == Progress()


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


def test_a_job_elsewhere_is_followed_by_the_files_it_leaves(tmp_path):
    half, seen = threading.Event(), []

    def work():
        (tmp_path / "a").write_bytes(b"12")
        assert half.wait(30)
        (tmp_path / "b").write_bytes(b"123")

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


def test_a_job_that_nobody_waits_for_any_more_is_cancelled(tmp_path):
    cancelled = []

    def interrupted():
        raise KeyboardInterrupt

    class Cancellable(Elsewhere):
        def run_pipeline(self, pipeline, options):
            result = super().run_pipeline(pipeline, options)
            result.cancel = lambda: cancelled.append(True)
            return result

    with pytest.raises(KeyboardInterrupt):
        run_job(
            "examining", Progress(5), Stage(tmp_path), lambda: beam.Pipeline(runner=Cancellable(interrupted)), Watched()
        )
    assert cancelled == [True]

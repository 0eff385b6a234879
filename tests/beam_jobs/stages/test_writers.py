"""Tests of the processes that write shards: what they leave is what one process would, whatever happens to them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from beam_jobs import IngestOptions, run
from beam_jobs.common import process_pool
from beam_jobs.common.process_pool import Child, ChildDied, PoolClosed
from beam_jobs.common.system import Progress, local_progress
from beam_jobs.errors import DiskError, FeedlineError
from beam_jobs.stages import transforms, writers
from beam_jobs.stages.write import read_failures, shard_path
from tests.beam_jobs.make_archives import make_tar
from tests.beam_jobs.runs import Recorder, files_under
from tests.engines.flink_processes import wait_until
from tests.make_images import class_folders, jpeg
from tests.small_disk import small_disk

IMAGES = 48


@pytest.fixture(autouse=True)
def used(monkeypatch):
    """Processes also for few images; they end with the test, as those that decode do not."""
    monkeypatch.setattr(writers, "MIN_IMAGES", 2)
    yield
    writers._own.close()


@pytest.fixture
def source(tmp_path) -> Path:
    return class_folders(tmp_path / "source", IMAGES // 2)


@pytest.fixture
def options(source, tmp_path) -> IngestOptions:
    return IngestOptions(source=str(source), out=str(tmp_path / "out"), shards=3, threads=2)


@pytest.fixture
def task(stages):
    return replace(stages.task, processes=2)


def ask_all(shards, task) -> list[dict[str, int]]:
    return [writers.write_or_note(shard, task) for shard in shards]


def on_request(monkeypatch, act) -> None:
    """Has a function of a child called before each request to it."""
    ask = Child.ask

    def asks(child, *request):
        act(child)
        ask(child, *request)

    monkeypatch.setattr(Child, "ask", asks)


def test_several_processes_leave_the_bytes_and_the_counts_of_one(options, tmp_path, monkeypatch):
    asked = []
    on_request(monkeypatch, lambda child: asked.append(child.pid))
    many, one = Recorder(), Recorder()
    run(options, many)
    written = [pid for pid in asked if pid in {child.pid for child in writers._own.pool._idle}]
    assert (len(written), len(set(written))) == (many.counters()["written_shards"], 2)
    asked.clear()
    run(replace(options, out=str(tmp_path / "one"), threads=1), one)
    assert many.counters() == one.counters()
    assert many.counters()["images"] == IMAGES
    assert files_under(tmp_path / "out") == files_under(tmp_path / "one")
    assert not {child.pid for child in writers._own.pool._idle} & set(asked)


@pytest.mark.parametrize(("images", "threads", "starts"), [(2, 2, True), (1, 2, False), (2, 1, False), (2, 0, False)])
def test_what_is_likely_to_be_used_starts_beside_the_plan(images, threads, starts):
    writers.start(images, threads)
    assert bool(writers._own.pool._fork_server) == starts


def test_a_shard_that_is_written_is_found(stages, task):
    counts = ask_all(stages.shards, task)
    assert [(one["written_shards"], one["resumed_shards"]) for one in counts] == [(1, 0)] * len(counts)
    assert sum(one["images"] for one in counts) == 24
    again = ask_all(stages.shards, task)
    assert [(one["resumed_shards"], one["bytes"]) for one in again] == [(1, 0)] * len(counts)


def test_the_display_counts_every_record_once_also_of_a_writer_that_died(stages, task, monkeypatch):
    answers = iter([{"done": [3, 30]}, ChildDied("SIGKILL"), {"done": [2, 20]}, {"done": [8, 80]}, {"outcome": {}}])

    def answer(*_, **__):
        if isinstance(one := next(answers), ChildDied):
            raise one
        return one, []

    monkeypatch.setattr(Child, "answer", answer)
    local_progress.reset()
    writers.write_or_note(stages.shards[0], task)
    assert local_progress.read() == Progress(8, 80)


def test_the_display_counts_what_each_writer_has_written(stages, task):
    local_progress.reset()
    counts = ask_all(stages.shards, task)
    assert local_progress.read() == Progress(24, sum(one["bytes"] for one in counts))


def test_a_writer_that_dies_is_replaced(options, tmp_path, monkeypatch):
    run(replace(options, out=str(tmp_path / "one"), threads=1))
    killed, numbers = [], iter((1, 1))  # one time less than what ends the ingest, should it be the same shard

    def kill_once(child):
        if child in writers._own.pool._busy and next(numbers, 0):
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    on_request(monkeypatch, kill_once)
    run(options)
    assert len(killed) == 2
    assert files_under(tmp_path / "out") == files_under(tmp_path / "one")


def test_writers_that_die_again_and_again_end_the_ingest_which_can_be_continued(options, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        on_request(patch, lambda child: child in writers._own.pool._busy and os.kill(child.pid, signal.SIGKILL))
        with pytest.raises(FeedlineError) as died:
            run(options)
    assert re.search(r"writes (train|eval)/data-\S+ ended 3 times \(SIGKILL\); make sure that memory", str(died.value))
    assert "Traceback" not in str(died.value)
    counted = Recorder()
    run(options, counted)
    assert counted.counters()["images"] == IMAGES
    run(replace(options, out=str(tmp_path / "one"), threads=1))
    assert files_under(tmp_path / "out") == files_under(tmp_path / "one")


def test_writers_that_do_not_start_are_named(stages, task, monkeypatch):
    monkeypatch.setattr(process_pool, "_MAIN", "raise SystemExit('no %s')")
    with pytest.raises(
        FeedlineError, match="the processes that write shards do not start: no beam_jobs.stages.writers"
    ):
        writers.write_or_note(stages.shards[0], task)


def test_a_changed_image_is_noted_as_in_one_process(stages, task, tmp_path):
    shard = stages.shards[0]
    copies = shutil.copytree(task.reader.base, tmp_path / "copies")
    uri = shard.rows.read()["uri"][0].as_py()
    (copies / uri).write_bytes(jpeg(99))
    task = replace(task, reader=replace(task.reader, base=str(copies)))
    assert writers.write_or_note(shard, task) == {"failed_shards": 1}
    (failure,) = read_failures(task.work)
    assert (failure.key, failure.passing) == (uri, False)
    assert "changed while it was being ingested" in failure.text


def test_a_process_that_has_left_for_another_directory_is_followed(options, tmp_path, monkeypatch):
    for name in ("here", "there"):
        monkeypatch.chdir((tmp_path / name).mkdir() or tmp_path / name)
        counted = Recorder()
        run(replace(options, out="out"), counted, work="work")
        assert counted.counters()["written_shards"] == len(list((tmp_path / name).rglob("*.tfrecord")))
    assert files_under(tmp_path / "here") == files_under(tmp_path / "there")


def test_a_full_disk_is_an_error_of_the_disk(source, options, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.storage.disk.check_room", lambda *_: None)  # it would not begin to write
    with small_disk(tmp_path / "disk") as make:
        out = make(1 << 20) / "out"
        filler = out.parent / "filler"

        def fill():
            free = os.statvfs(out.parent).f_bavail * os.statvfs(out.parent).f_frsize
            filler.write_bytes(bytes(free - (16 << 10)))

        with pytest.raises(DiskError, match="No space left on device"):
            run(replace(options, out=str(out)), Recorder(fill))
        filler.unlink()
        counted = Recorder()
        run(replace(options, out=str(out)), counted)
        assert counted.counters()["images"] == IMAGES


def test_an_error_of_the_disk_is_raised_as_in_one_process(stages, task, tmp_path):
    shard = replace(stages.shards[0], rows=replace(stages.shards[0].rows, path=str(tmp_path / "none.parquet")))
    raised = []
    for here in (task, replace(task, processes=0)):
        with pytest.raises(FileNotFoundError) as error:
            writers.write_or_note(shard, here)
        raised.append((error.value.errno, error.value.strerror, error.value.filename))
    assert raised[0] == raised[1]


def test_a_bug_is_raised_here_with_its_trace(stages, task):
    task = replace(task, reader=replace(task.reader, max_bytes="a bug"))
    with pytest.raises(RuntimeError, match="(?s)Traceback.*image_reader.*TypeError"):
        writers.write_or_note(stages.shards[0], task)


def test_a_stop_ends_writers_at_work(stages, task, monkeypatch):
    stopped = threading.Event()

    def pause(child):
        os.kill(child.pid, signal.SIGSTOP)
        stopped.set()

    on_request(monkeypatch, pause)
    stopping = threading.Timer(0.5, lambda: stopped.wait(60) and writers._own.stop())
    stopping.start()
    pid = []
    on_request(monkeypatch, lambda child: pid.append(child.pid))
    with pytest.raises(PoolClosed):
        writers.write_or_note(stages.shards[0], task)
    stopping.join()
    wait_until(lambda: not psutil.pid_exists(pid[0]) or psutil.Process(pid[0]).status() == psutil.STATUS_ZOMBIE, 10)
    assert not Path(shard_path(task.out, stages.shards[0])).exists()


@pytest.mark.parametrize(
    ("images", "shards", "threads", "expected"),
    [(4096, 4, 2, 2), (4096, 3, 8, 3), (4095, 4, 2, 0), (4096, 1, 2, 0), (4096, 4, 1, 0)],
    ids=["two threads", "three shards", "few images", "one shard", "one thread"],
)
def test_as_many_processes_as_threads_and_shards(stages, monkeypatch, images, shards, threads, expected):
    monkeypatch.setattr(writers, "MIN_IMAGES", 4096)
    assert writers.process_count(stages.task, images, stages.shards[:shards], threads) == expected


def test_a_writer_that_stands_still_is_replaced(stages, task, monkeypatch):
    monkeypatch.setattr(writers, "_CPU_LIMIT_S", 0.1)
    stopped = []

    def stop_once(child):
        if not stopped:
            stopped.append(child.pid)
            os.kill(child.pid, signal.SIGSTOP)

    on_request(monkeypatch, stop_once)
    assert writers.write_or_note(stages.shards[0], task)["written_shards"] == 1
    assert stopped


def test_after_an_interruption_no_process_writes(options, monkeypatch):
    pids = []
    on_request(monkeypatch, lambda child: child in writers._own.pool._busy and pids.append(child.pid))

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(transforms._Write, "_finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(options)
    ended = [not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids]
    assert ended == [True] * len(pids) != []


def test_no_process_for_images_that_each_would_unpack(options, source, tmp_path):
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.*")}
    archive = make_tar(tmp_path / "x.tar.gz", files, "w:gz")
    run(replace(options, source=str(archive)))
    assert not writers._own.pool._idle


def test_a_worker_of_a_cluster_writes_itself(options, monkeypatch):
    monkeypatch.setattr(transforms, "is_worker", lambda: True)
    counted = Recorder()
    run(options, counted)
    assert counted.counters()["images"] == IMAGES
    assert not writers._own.pool._idle


def test_no_process_for_images_of_a_store(stages):
    task = replace(stages.task, reader=replace(stages.task.reader, base="gs://bucket/images"))
    assert writers.process_count(task, IMAGES, stages.shards, 2) == 0

"""Two ingests into one output: real command lines, the first of which stops, as `SIGSTOP` does it, once it works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import DatasetChanged, OptionError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from beam_jobs.stages import work_dir
from beam_jobs.stages.replace import dataset_path
from tests.beam_jobs import s3_server
from tests.beam_jobs.runs import Recorder, files_under
from tests.faults.process import FEEDLINE, feedline, finish, start, wait_for
from tests.locked import locked_directory
from tests.make_images import class_folders, jpeg

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def source(tmp_path) -> Path:
    return class_folders(tmp_path / "photos", per_class=4)


@pytest.fixture
def options(source, tmp_path) -> IngestOptions:
    return IngestOptions(source=str(source), out=str(tmp_path / "out"), splits={"train": 0.7, "eval": 0.3})


@pytest.fixture
def other(options, tmp_path) -> Path:
    """Another dataset, whose files have the same names."""
    run(replace(options, out=str(tmp_path / "other"), seed=3))
    assert files_under(tmp_path / "other").keys() >= {"Split-train/data-00000-of-00001.tfrecord"}
    return tmp_path / "other"


@pytest.fixture
def stopped() -> Iterator[Start]:
    """Starts the command line, and stops it where it has begun to examine images."""
    processes = []

    def begin(*arguments: object, work: str) -> subprocess.Popen:
        process = start([FEEDLINE, "ingest", *arguments])
        processes.append(process)
        assert wait_for(lambda: bool(storage.list_files(storage.join(work, "refs"))), process), process.stderr.read()
        process.send_signal(signal.SIGSTOP)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
            finish(process)


def problems(out: object) -> list[str]:
    return verify(str(out)).problems


def beside(out: Path) -> list[str]:
    """Returns what lies beside an output by a name of Feedline's own."""
    return [path.name for path in out.parent.iterdir() if "feedline" in path.name]


def test_the_second_ingest_is_refused_and_after_a_kill_of_the_first_the_same_command_goes_on(source, tmp_path, stopped):
    out = tmp_path / "out"
    first = stopped(source, "--out", out, work=f"{out}/_work")
    second = feedline("ingest", source, "--out", out)
    assert second.code == 2
    assert f"{out} is in use by another ingest: process {first.pid} on host " in second.err
    assert second.err.rstrip().endswith("UTC; wait for its end")
    first.kill()
    finish(first)
    assert beside(out) == [".out.feedline-lock"]
    again = feedline("ingest", source, "--out", out)
    assert again.code == 0, again.err
    assert (problems(out), beside(out)) == ([], [])


def test_the_second_of_two_appends_is_refused_and_the_first_ends_well(options, source, tmp_path, stopped):
    run(options)
    (source / "china" / "new.jpg").write_bytes(jpeg(99))
    before = files_under(tmp_path / "out")
    first = stopped(source, "--out", options.out, "--append", work=f"{tmp_path}/.out.feedline-next/_work")
    with pytest.raises(OptionError, match=f"out is in use by another ingest: process {first.pid} on host "):
        run(replace(options, append=True))
    assert files_under(tmp_path / "out") == before
    first.send_signal(signal.SIGCONT)
    assert finish(first).code == 0
    assert (problems(options.out), beside(tmp_path / "out")) == ([], [])
    assert manifest.load(options.out).counts.written == 9


def test_in_a_store_the_second_ingest_is_refused_and_after_a_kill_the_same_command_goes_on(
    source, stopped, monkeypatch
):
    out = f"{s3_server.new_bucket(monkeypatch)}/out"
    first = stopped(str(source), "--out", out, work=f"{out}/_work")
    second = feedline("ingest", source, "--out", out)
    assert second.code == 2
    named = f"{out} is in use by another ingest: process {first.pid} on host "
    assert named in second.err
    assert second.err.endswith("; wait for its end\n")
    first.kill()
    finish(first)
    again = feedline("ingest", source, "--out", out)
    assert again.code == 0, again.err
    assert problems(out) == []
    assert [name for name, *_ in storage.list_objects(out) if name.startswith((".", "_"))] == []


@pytest.mark.parametrize("job", [1, 2], ids=["before the shards", "after the shards"])
def test_nothing_is_written_over_a_dataset_that_appeared_meanwhile(options, other, tmp_path, job):
    out = tmp_path / "out"

    def appear() -> None:
        shutil.copytree(other, out, dirs_exist_ok=True)

    with pytest.raises(DatasetChanged, match="out holds a dataset that was published since this run began; choose"):
        run(options, Recorder(after={job: appear}))
    assert {name: files_under(out)[name] for name in files_under(other)} == files_under(other)


def test_a_dataset_that_appeared_meanwhile_is_not_replaced(options, other, tmp_path):
    out = tmp_path / "out"
    run(options)

    def appear() -> None:
        shutil.rmtree(out)
        shutil.copytree(other, out)

    with pytest.raises(DatasetChanged, match="out was replaced by another dataset during this run; run the"):
        run(replace(options, overwrite=True), Recorder(appear))
    assert files_under(out) == files_under(other)


def test_after_a_kill_behind_the_publication_the_next_run_removes_the_lock(options, tmp_path):
    run(options)
    (tmp_path / ".out.feedline-lock").touch()
    with pytest.raises(OptionError, match="out already holds a dataset"):
        run(options)
    assert beside(tmp_path / "out") == []


@pytest.mark.parametrize("mode", ["", "append"])
def test_after_a_kill_between_the_two_renames_the_old_dataset_is_not_lost(options, source, tmp_path, mode):
    run(options)
    os.rename(options.out, tmp_path / ".out.feedline-old")
    assert dataset_path(options.out) == str(tmp_path / ".out.feedline-old")
    (source / "china" / "new.jpg").write_bytes(jpeg(99))
    if mode:
        assert run(replace(options, **{mode: True})).counts.written == 9
    else:
        with pytest.raises(OptionError, match="out already holds a dataset"):
            run(options)
    assert manifest.load(options.out).counts.written == 8 + bool(mode)
    assert (problems(options.out), beside(tmp_path / "out")) == ([], [])


def test_where_the_parent_takes_no_files_the_lock_lies_in_the_output(source):
    with locked_directory("out") as locked:
        out = os.path.join(locked.path, "out")
        before = os.geteuid()
        os.seteuid(os.getuid())
        os.mkdir(out)
        os.chown(out, before, -1)
        os.chmod(out, 0o777)
        os.seteuid(before)
        with work_dir.exclusive(out):
            assert os.listdir(out) == [".feedline-lock"]
            work_dir.check_out(str(source), out)
            with pytest.raises(OptionError, match="out is in use by another ingest"), work_dir.exclusive(out):
                pass
        assert os.listdir(out) == []

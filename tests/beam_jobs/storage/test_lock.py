"""Locks in a directory and in stores, taken and left by processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from beam_jobs import storage
from beam_jobs.storage import lock
from beam_jobs.storage.lock import Locked, Owner, locked
from tests.beam_jobs import gcs_server, kill, s3_server
from tests.beam_jobs.object_store import SCHEME

STORES = ("objects", "s3", "gs")


@pytest.fixture(params=["local", *STORES])
def path(request, tmp_path, monkeypatch) -> Iterator[str]:
    if request.param == "gs":
        pytest.importorskip("google.cloud.storage")
        with gcs_server.serving(monkeypatch, tmp_path):
            yield "gs://bucket/lock"
    else:
        bucket = s3_server.new_bucket(monkeypatch) if request.param == "s3" else f"{SCHEME}://{tmp_path}"
        yield f"{tmp_path if request.param == 'local' else bucket}/lock"


@contextlib.contextmanager
def owned_elsewhere(path: str, machine: str = "") -> Iterator[int]:
    """Has another process own a lock, on another machine where one is named; yields its number, and kills it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        if machine:
            lock.system.identity = lambda: machine
        with locked(path):
            os.write(writing, b".")
            signal.pause()
    try:
        os.read(reading, 1)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_has_one_owner_whom_the_refusal_names(path):
    with locked(path):
        owner = rf"^process {os.getpid()} on host \S+ since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        with pytest.raises(Locked, match=owner), locked(path):
            pass
    assert not storage.exists(path), "nothing stays of it"
    with locked(path):
        pass


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
    path = str(tmp_path / "lock")
    with owned_elsewhere(path) as process, pytest.raises(Locked, match=f"process {process} on host "), locked(path):
        pass
    assert storage.exists(path), "it could not remove it"
    with locked(path):
        pass
    assert os.listdir(tmp_path) == []


def test_an_owner_of_which_only_a_child_is_left_is_waited_for(tmp_path):
    path = str(tmp_path / "lock")
    reading, writing = os.pipe()
    owner = os.fork()
    if not owner:
        with locked(path):
            if not os.fork():  # has the same open file, as the last threads of a killed process have
                os.close(reading)
                time.sleep(0.5)
                os._exit(0)
            os.write(writing, b".")
            os.kill(os.getpid(), signal.SIGKILL)
    os.read(reading, 1)
    os.waitpid(owner, 0)
    with locked(path):
        pass


def test_an_owner_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        owner = Owner(process=os.getppid(), since=time.time())
        threading.Timer(0.3, lambda: path.write_bytes(owner.to_bytes())).start()
        with pytest.raises(Locked, match=f"^process {owner.process} on host "), locked(str(path)):
            pass


def test_of_many_processes_one_owns_the_lock_at_a_time(tmp_path):
    path, inside = str(tmp_path / "lock"), str(tmp_path / "inside")

    def enter() -> int:
        entered = 0
        while entered < 20:
            with contextlib.suppress(Locked), locked(path):
                os.mkdir(inside)  # fails where another process is
                os.rmdir(inside)
                entered += 1
        return entered

    children = [kill.forked(enter) for _ in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert os.listdir(tmp_path) == []


def ended_owner() -> Owner:
    """Returns an owner that has ended: the number of its process is no longer given to any."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return Owner(process=child)


@pytest.mark.parametrize("path", ["gs"], indirect=True)
def test_the_lock_of_an_ended_process_of_this_machine_is_replaced(path):
    ended = ended_owner()
    assert storage.create_exclusive(path, ended.to_bytes())
    with locked(path), pytest.raises(Locked, match=f"process {os.getpid()} on "), locked(path):
        pass
    assert not storage.exists(path)
    assert not storage.exists(f"{path}-{ended.token}")


@pytest.mark.parametrize("path", ["objects"], indirect=True)
def test_a_process_with_the_number_of_the_ended_one_is_not_taken_for_it(path):
    assert storage.create_exclusive(path, Owner(since=psutil.Process().create_time() - 60).to_bytes())
    with locked(path):
        pass


@pytest.mark.parametrize(("path", "content"), [("gs", "another machine"), ("s3", "no owner")], indirect=["path"])
def test_what_cannot_be_known_to_have_ended_is_named_with_the_object_to_delete(path, content):
    owner = dataclasses.replace(ended_owner(), host="far", machine="another")
    assert storage.create_exclusive(path, owner.to_bytes() if content == "another machine" else b"[]")
    named = f"process {owner.process} on host far since .*" if content == "another machine" else "an unknown process"
    with pytest.raises(Locked, match=f"^{named}; if that process has ended, delete {path}$"), locked(path):
        pass
    assert storage.exists(path)


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr(lock, "LEASE_S", 1.0)
    monkeypatch.setattr(lock, "_RENEW_S", 0.1)


@pytest.mark.parametrize("path", ["objects"], indirect=True)
def test_the_lock_of_another_machine_is_taken_over_when_its_lease_is_not_renewed(path, tmp_path, short_lease):
    lines: list[str] = []
    with owned_elsewhere(path, machine="far") as process:
        with pytest.raises(Locked, match=f"^process {process} on host [^;]*$"), locked(path, lines.append):
            pass
        os.kill(process, signal.SIGSTOP)
        os.waitpid(process, os.WUNTRACED)  # a renewal under way ends before
        with locked(path):
            assert len(os.listdir(tmp_path)) == 2, "the lock and the lease of its new owner alone"
    assert len(lines) == 1
    assert f"to see whether process {process} on host" in lines[0]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["gs"], indirect=True)
def test_an_owner_that_stood_still_learns_that_another_one_has_its_lock(path, short_lease, monkeypatch):
    with locked(path) as check:
        check()
        content = storage.read_bytes(path)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(lock.system, "identity", lambda: "far")
            elsewhere.setattr(lock, "_read_lease", lambda _: b"")  # as if this process were stopped
            with locked(path), pytest.raises(Locked, match=f"^process {os.getpid()} on host "):
                check()
        with pytest.raises(Locked, match="another process, which has removed the lock"):
            check()
        assert storage.create_exclusive(path, content)
        check()


@pytest.mark.parametrize("path", ["s3"], indirect=True)
def test_an_ended_owner_is_removed_by_one_process_alone(path):
    """Another process is removing it: it must not be removed a second time, when it may be the lock of that process."""
    ended = ended_owner()
    assert storage.create_exclusive(path, ended.to_bytes())
    removing = dataclasses.replace(ended, machine="another")
    assert storage.create_exclusive(f"{path}-{ended.token}", removing.to_bytes())
    with pytest.raises(Locked, match=f"delete {path}-{ended.token}$"), locked(path):
        pass
    assert storage.read_bytes(path) == ended.to_bytes()


@pytest.mark.parametrize("path", ["objects"], indirect=True)
def test_a_slow_process_leaves_the_lock_of_a_fast_one(path):
    """Both saw the same ended owner, and the fast one is through with the removal."""
    ended, fast = ended_owner().to_bytes(), Owner(machine="another").to_bytes()
    assert storage.create_exclusive(path, fast)
    lock._remove_ended(path, ended)
    assert storage.read_bytes(path) == fast


@pytest.mark.parametrize("path", ["gs"], indirect=True)
def test_a_lock_that_could_not_be_removed_does_not_stop_its_own_process(path):
    with locked(path):
        content = storage.read_bytes(path)
    assert storage.create_exclusive(path, content)  # as if the right to delete it were missing
    with locked(path):
        pass
    assert not storage.exists(path)


@pytest.mark.parametrize("path", ["s3"], indirect=True)
def test_a_lock_that_was_deleted_and_taken_by_another_process_stays_its_own(path):
    other = Owner(machine="another").to_bytes()
    with locked(path):
        storage.remove(path)
        assert storage.create_exclusive(path, other)
    assert storage.read_bytes(path) == other

"""Tests of the decoder processes: each fault costs one image, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_jobs.common import messages
from beam_jobs.common import process_pool as pool
from beam_jobs.common.process_pool import Child, ChildDied, PoolClosed
from beam_jobs.dataset import schemas
from beam_jobs.errors import BadImage, FeedlineError, Unreadable
from beam_jobs.images import annotations, sandbox
from beam_jobs.images import process as images
from beam_jobs.images.normalise import geometry
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.sources.image_reader import Reader
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.beam_jobs.make_rows import examined, make_facts, make_ref
from tests.command import python
from tests.engines.flink_processes import wait_until
from tests.make_images import crop, encode, jpeg, png

ROW = st.binary(min_size=sandbox.FACTS.itemsize, max_size=sandbox.FACTS.itemsize)
LIMITS = ImageLimits()
COPY = PixelOptions()
GOOD = [jpeg(1), png(2), jpeg(3)]


@pytest.fixture(scope="module", autouse=True)
def broken(tmp_path_factory):
    """Decoders that act on markers such as `<abort>`, see `broken_decoder`; other bytes are as ever to them."""
    with broken_decoders(tmp_path_factory.mktemp("broken")):
        yield


def looked_at(files, limits=LIMITS, processes=1, pixels=COPY, facts="all"):
    """Returns what `process.examine` returns, or the error."""
    answers = sandbox.examine(files, limits, pixels, facts, processes)
    return [
        answer if isinstance(answer, BadImage) else (answer.stored or data, sandbox.unpack_facts(answer.facts))
        for data, answer in zip(files, answers, strict=True)
    ]


def expected(files):
    return [images.examine(data, LIMITS) for data in files]


def test_a_decoder_collects_the_garbage_that_its_imports_did_not():
    assert looked_at(files := [GOOD[0] + b"<garbage>"]) == expected(files)


@pytest.mark.parametrize(
    ("pixels", "facts"),
    [
        (COPY, "all"),
        (PixelOptions(policy="resize", side_px=20), "basic"),
        (PixelOptions(policy="raw", side_px=16), "all"),
    ],
    ids=["copy", "resize", "raw"],
)
def test_a_decoder_answers_what_a_call_would(pixels, facts):
    files = [*GOOD, encode(crop(4), "WEBP"), jpeg(5)[:500], b"no image"]
    answers = looked_at(files, LIMITS, 2, pixels, facts)
    assert answers[:4] == [images.examine(data, LIMITS, pixels, facts) for data in files[:4]]
    for data, answer in zip(files[4:], answers[4:], strict=True):
        with pytest.raises(BadImage) as wanted:
            images.examine(data, LIMITS, pixels, facts)
        assert (answer.reason, answer.detail) == (wanted.value.reason, wanted.value.detail)


def test_a_decoder_reads_files_itself_and_has_all_the_time_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "_CLOCK_FACTOR", 1)
    webp = encode(crop(4), "WEBP")
    for name, data in {"<late>": GOOD[0], "<stopped>": GOOD[1], "b": webp, "c": b"no image"}.items():
        (tmp_path / name).write_bytes(data)
    reader = Reader(base=str(tmp_path), max_bytes=1 << 20)
    places = [(name, "") for name in ("<late>", "<stopped>", "b", "c", "none", "/proc/self/mem")]
    limits = ImageLimits(max_seconds=1)
    *good, text, missing, unreadable = sandbox.examine(places, limits, COPY, "all", 1, reader)
    assert [sandbox.unpack_facts(one.facts) for one in good] == [known for _, known in expected([*GOOD[:2], webp])]
    assert [one.stored is None for one in good] == [True, True, False]
    assert [(bad.reason.value, bad.size) for bad in (text, missing)] == [("not_an_image", 8), ("unreadable", 0)]
    assert (type(unreadable), str(unreadable)) == (Unreadable, "Input/output error")


def test_files_that_are_larger_than_their_source_says_take_no_memory_from_the_others(tmp_path):
    (tmp_path / "good").write_bytes(GOOD[0])
    for number in range(40):  # more than a decoder may have
        with (tmp_path / str(number)).open("wb") as stream:
            stream.truncate(64 << 20)
    reader = Reader(base=str(tmp_path), max_bytes=64 << 20)
    places = [*((str(number), "") for number in range(40)), ("good", "")]
    *zeros, good = sandbox.examine(places, LIMITS, COPY, "all", 1, reader)
    assert {bad.reason.value for bad in zeros} == {"too_many_bytes"}
    assert sandbox.unpack_facts(good.facts) == expected(GOOD[:1])[0][1]


@given(st.lists(st.binary(max_size=400) | ROW, max_size=3))
@example([bytes(sandbox.FACTS.itemsize), b"stored"])
def test_whatever_a_decoder_sends_is_refused_or_is_a_row_of_the_table(bodies):
    accepted = []
    with contextlib.suppress(ValueError):  # what `Request` takes for an invalid answer
        accepted.append(sandbox._read_examination(None, {}, bodies))
    for answer in accepted:
        table = examined((make_ref(), sandbox.unpack_facts(answer.facts)))
        table.validate(full=True)
        assert (len(table), table.schema) == (1, schemas.EXAMINED)


def test_the_facts_of_an_image_with_every_reason_to_be_converted_fit_a_row():
    reasons = "format+exif_orientation+colour_space+sixteen_bit+animated+alpha+resized"
    known = make_facts(normalised=reasons, dhash=-(2**63), crc32c=2**32 - 1, mean_rgb=(0.1, 255.0, 1e-9))
    assert sandbox.unpack_facts(sandbox.pack_facts(known)) == known


def test_what_was_started_early_is_used():
    sandbox.close()
    before = set(psutil.Process().children())
    sandbox.start()
    (server,) = set(psutil.Process().children()) - before
    sandbox.start()
    assert looked_at(GOOD) == expected(GOOD)
    assert set(psutil.Process().children()) - before == {server}


def test_a_mask_is_what_a_call_makes_of_it():
    indices = np.ascontiguousarray(crop(1)[..., 0])
    mask = encode(indices, "PNG")
    plan = geometry(PixelOptions(policy="resize", side_px=20), *indices.shape)
    assert sandbox.normalise_mask(mask, plan, LIMITS, 1) == annotations.normalise_mask(mask, plan, LIMITS)
    with pytest.raises(BadImage, match="bad_mask"):
        sandbox.normalise_mask(jpeg(1), plan, LIMITS, 1)


@pytest.mark.parametrize(
    ("marker", "detail"),
    [
        (b"<abort>", "the decoder failed: SIGABRT, 3 times"),
        (b"<exit>", "the decoder failed: exit code 3, 3 times"),
        (b"<exit 0>", "the decoder failed: exit code 0, 20 times"),
        (b"<bug>", "the decoder failed: KeyError: 'a bug'"),
        (b"<eat>", "the decoder failed: it took more than 2,048 MiB of memory"),
    ],
)
def test_an_image_that_breaks_its_decoder_is_the_only_one_lost(marker, detail):
    answers = looked_at([*GOOD, GOOD[0] + marker, *GOOD])
    bad = answers.pop(3)
    assert (bad.reason.value, bad.detail) == ("decoder_crashed", detail)
    assert answers == expected([*GOOD, *GOOD])


def test_an_image_that_takes_too_long_is_rejected_and_its_decoder_ended():
    limits = ImageLimits(max_seconds=1)
    answers = looked_at([GOOD[0], GOOD[1] + b"<spin>", GOOD[2]], limits)
    assert (answers[1].reason.value, answers[1].detail) == ("too_slow", "it took more than 1 s; max_seconds is 1")
    assert [answers[0], answers[2]] == expected([GOOD[0], GOOD[2]])


def test_an_image_whose_decoder_waits_without_computing_is_rejected_by_the_clock(monkeypatch):
    monkeypatch.setattr(pool, "_CLOCK_FACTOR", 2)
    answers = looked_at([GOOD[0], GOOD[1] + b"<stop>", GOOD[2]], ImageLimits(max_seconds=1))
    told = "it did not answer within 2 s of elapsed time; max_seconds is 1 s of computing time"
    assert (answers[1].reason.value, answers[1].detail) == ("too_slow", told)
    assert [answers[0], answers[2]] == expected([GOOD[0], GOOD[2]])


@dataclass
class Stand:
    """A decoder that is another process in truth: the test speaks for it, through `theirs` and `status`."""

    decoder: Child
    theirs: socket.socket
    status: int
    process: subprocess.Popen


@pytest.fixture
def stand():
    ours, theirs = pool._socket_pair()
    status, write_end = os.pipe()
    with subprocess.Popen(["sleep", "100"]) as process:
        yield Stand(Child(ours, status, process.pid), theirs, write_end, process)
        process.kill()
    theirs.close()
    os.close(write_end)


def test_time_in_which_a_decoder_does_not_compute_is_none_of_its_seconds(stand):
    """A second of waiting, for a busy machine say, is not the second that an image has."""
    late = threading.Timer(2.5, messages.send, (stand.theirs, {"answers": []}))
    late.start()
    assert stand.decoder.answer(1) == ({"answers": []}, [])
    late.join()
    stand.decoder.end()


def test_a_decoder_that_is_stopped_while_it_has_no_work_costs_nothing(monkeypatch):
    """More than its socket holds, so that sending would never end."""
    monkeypatch.setattr(messages, "_MAX_PAUSES", 2)
    monkeypatch.setattr(pool, "_ENDING_S", 0.1)
    looked_at(GOOD)
    (idle,) = own_decoders()
    idle.suspend()
    large = [data + bytes(4 << 20) for data in GOOD]
    assert looked_at(large) == expected(large)
    assert not idle.is_running()


def test_a_decoder_that_is_stopped_in_the_middle_of_an_answer_is_taken_for_ended(stand, monkeypatch):
    monkeypatch.setattr(messages, "_MAX_PAUSES", 1)
    monkeypatch.setattr(pool, "_ENDING_S", 0.1)
    stand.theirs.sendall(messages._FRAME_SIZE.pack(16) + b'{"bodies"')
    with pytest.raises(ChildDied, match="it was ended") as died:
        stand.decoder.answer(60)
    assert died.value.interrupted
    stand.decoder.end()
    assert stand.process.wait(60) == -signal.SIGKILL


def test_a_decoder_that_sends_invalid_frames_and_stays_is_to_blame(stand):
    stand.theirs.sendall(messages._FRAME_SIZE.pack(2) + b"[]")
    with pytest.raises(ChildDied, match="it sent an invalid answer") as died:
        stand.decoder.answer(60)
    assert not died.value.interrupted
    stand.decoder.end()


def test_a_decoder_that_is_ended_from_outside_costs_nothing():
    answers = looked_at([GOOD[0], GOOD[1] + b"<once>", GOOD[2]])
    assert answers == expected([GOOD[0], GOOD[1] + b"<once>", GOOD[2]])


@pytest.mark.parametrize("noticed", [True, False])
def test_decoders_that_ended_because_they_had_no_work_cost_nothing(monkeypatch, noticed):
    sandbox.close()
    together = threading.Barrier(5)

    def take(_):
        with sandbox._own.pool.child(5):
            together.wait(200)

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(take, range(5)))
    idle = list(sandbox._own.pool._idle)
    assert len(idle) == 5
    for one in idle:
        one._connection.shutdown(socket.SHUT_WR)  # to the decoder, that is the end of its work
        while one.is_running:
            time.sleep(0.05)
    if not noticed:  # they end in the very moment in which they are taken
        monkeypatch.setattr(Child, "is_running", True)
    assert looked_at(GOOD) == expected(GOOD)


def test_a_decoder_that_has_ended_is_not_killed_again(stand):
    """Its number may be that of another process by then; here it is, and that process goes on."""
    os.write(stand.status, bytes(4))
    stand.theirs.close()
    stand.decoder.end()
    with pytest.raises(subprocess.TimeoutExpired):
        stand.process.wait(0.5)


def test_a_limit_of_time_on_all_sockets_of_the_process_is_none_for_those_of_the_decoders():
    """Beam sets one as soon as it has signed in to Google Cloud."""
    sandbox.close()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)
    try:
        for _ in range(10):
            assert looked_at(GOOD) == expected(GOOD)
            time.sleep(0.01)
        assert len(sandbox._own.pool._idle) == 1
        assert sandbox._own.pool._idle[0].is_running
    finally:
        socket.setdefaulttimeout(before)


def test_several_images_in_a_row_may_break_their_decoders():
    answers = looked_at([GOOD[0] + b"<abort>", GOOD[1] + b"<abort>", GOOD[2], GOOD[2] + b"<segv>"])
    assert [isinstance(answer, BadImage) for answer in answers] == [True, True, False, True]


def test_threads_share_so_many_decoders():
    sandbox.close()
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: looked_at(GOOD * 5, LIMITS, 2), range(6)))
    assert len(own_decoders()) == 2


def test_a_stopped_ingest_waits_for_no_decoder():
    failed = []

    def wait():
        try:
            looked_at([GOOD[0] + b"<spin>"])
        except PoolClosed:
            failed.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    while not own_decoders():
        time.sleep(0.05)
    sandbox.close()
    thread.join(60)
    assert failed == ["closed"]
    assert looked_at(GOOD) == expected(GOOD)  # the next one starts anew


def test_after_a_stop_nobody_is_served_until_all_is_closed():
    looked_at(GOOD)
    sandbox._own.stop()
    with pytest.raises(PoolClosed):
        looked_at(GOOD)
    sandbox.close()
    assert looked_at(GOOD) == expected(GOOD)


def test_the_process_that_decoders_come_from_may_end():
    looked_at(GOOD)
    for process in psutil.Process().children():
        if is_fork_server(process):
            process.kill()
    assert looked_at(GOOD) == expected(GOOD)


def test_a_decoder_holds_tensorflow_and_nothing_of_keras():
    sandbox.close()  # those of the test before end with the process that they came from
    looked_at(GOOD)
    mapped = {
        entry.path for entry in psutil.Process(sandbox._own.pool._idle[-1].pid).memory_maps()
    }  # of the one that was used last
    assert any("/tensorflow/" in path for path in mapped)
    assert not [path for path in mapped if "/jaxlib/" in path or "/sklearn/" in path or "/matplotlib/" in path]


def test_a_decoder_keeps_the_memory_of_an_image_for_the_next():
    photograph = encode(np.tile(crop(1, 375, 500), (4, 4, 1)), "JPEG")  # 2,197 pages of 4 KiB when it is decoded
    faults = []
    for _ in range(2):
        looked_at([photograph] * 4)
        stat = Path(f"/proc/{sandbox._own.pool._idle[-1].pid}/stat").read_text(encoding="ascii")
        faults.append(int(stat.rpartition(")")[2].split()[7]))  # minor ones, see proc(5)
    assert faults[1] - faults[0] < 4 * 200


def test_no_decoder_outlives_the_process_it_works_for(tmp_path):
    code = (
        "import os, signal; from beam_jobs.images import sandbox; from beam_jobs.options import *; "
        "from tests.make_images import jpeg; "
        "sandbox.examine([jpeg(1)], ImageLimits(), PixelOptions(), 'all', 1); "
        "print(*[one.pid for one in sandbox._own.pool._idle], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = python(code)
    (pid,) = map(int, done.stdout.split())
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 60)


def test_a_forked_process_has_decoders_of_its_own():
    looked_at(GOOD)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if not sandbox._own.pool._idle and looked_at(GOOD) == expected(GOOD) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert looked_at(GOOD) == expected(GOOD)


def test_decoders_that_cannot_start_are_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wanted = "the processes that decode images do not start: .*no such library"
    with pytest.raises(FeedlineError, match=wanted), sandbox._own._make_pool().child(1):
        pass


def test_a_frame_is_taken_whole_or_not_at_all():
    ours, theirs = pool._socket_pair()
    messages.set_timeout(ours, 0.05)
    with pytest.raises(messages.ReceiveTimeout):
        messages.receive(ours)
    body = bytes(range(256)) * 2000
    sender = threading.Thread(target=messages.send, args=(theirs, {"a": [1, "ü"]}, body, b"", b"more"))
    sender.start()
    assert messages.receive(ours) == ({"a": [1, "ü"]}, [body, b"", b"more"])
    sender.join()
    theirs.sendall(messages._FRAME_SIZE.pack(16) + b'{"bodies": [99]}' + b"half")
    theirs.close()
    with pytest.raises(messages.PeerClosed, match="truncated"):
        messages.receive(ours)
    with pytest.raises(messages.PeerClosed):
        messages.receive(ours)
    ours.close()


@pytest.mark.parametrize(
    "frame",
    [
        {"answers": [{"bad": ["no_such_reason", "", 0], "bodies": 0}]},
        {"answers": [{"bodies": 1}]},
        {"answers": [{"bodies": 0}]},
        {"answers": []},
        {"answers": 3},
        {},
    ],
    ids=str,
)
def test_a_decoder_that_sends_invalid_answers_is_taken_for_dead(frame, monkeypatch):
    taken = []

    def answer(self, seconds):
        taken.append(real(self, seconds))
        return (frame, []) if len(taken) <= 4 else taken[-1]

    real = Child.answer
    monkeypatch.setattr(Child, "answer", answer)
    bad, good = looked_at(GOOD[:2])  # once together, three times alone
    assert (bad.reason.value, bad.detail) == (
        "decoder_crashed",
        "the decoder failed: it sent an invalid answer, 3 times",
    )
    assert [good] == expected(GOOD[1:2])


@pytest.mark.parametrize("text", [b"[]", b"{}", b"no json", b'{"bodies": [1e18]}'])
def test_a_frame_of_nonsense_is_the_end(text):
    ours, theirs = pool._socket_pair()
    with ours, theirs:
        theirs.sendall(messages._FRAME_SIZE.pack(len(text)) + text)
        with pytest.raises(messages.PeerClosed, match="invalid"):
            messages.receive(ours)


def is_fork_server(process: psutil.Process) -> bool:
    return any("beam_jobs.images.sandbox.worker" in part for part in process.cmdline())


def own_decoders() -> list[psutil.Process]:
    fork_servers = [process for process in psutil.Process().children() if is_fork_server(process)]
    return [child for fork_server in fork_servers for child in fork_server.children()]


def test_a_fork_server_whose_parent_is_gone_ends_before_it_has_imported_tensorflow():
    code = "import os, psutil; from beam_jobs.images import sandbox; sandbox.start(); "
    code += "print(psutil.Process().children()[0].pid, flush=True); os._exit(0)"
    maps = Path("/proc", python(code, check=True).stdout.strip(), "maps")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while text := maps.read_text():  # empty once it has ended
            assert "libtensorflow" not in text
            time.sleep(0.01)

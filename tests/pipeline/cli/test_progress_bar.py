from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time

import pytest

from beam_jobs.common.system import Progress
from pipeline.cli import common
from pipeline.cli import execute as run
from tests.make_images import class_folders

TOTAL = Progress(1500, 90_000_000)


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (Progress(), TOTAL, 3.0, "0 of 1,500 images, 0:03"),
        (Progress(note="starting decoders"), TOTAL, 7.0, "starting decoders, 0:07"),
        (Progress(), Progress(), 62.0, "1:02"),
        (
            Progress(500, 50_000_000, 3),
            TOTAL,
            10.0,
            "500 of 1,500 images, 0:20 left, 50 images/s, 5.0 MB/s, 3 rejected",
        ),
        (Progress(7, 7_000_000), Progress(), 7.0, "7 images, 1.0 images/s, 1.0 MB/s"),  # of an unknown number
    ],
)
def test_a_line_says_how_far_a_stage_is(done, total, seconds, line):
    assert common.describe_progress(done, total, seconds) == line


def test_the_line_of_a_long_stage_has_the_time_of_its_end(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_770_000_000.0)
    line = common.describe_progress(Progress(10), Progress(100_010), 1.0)
    expected = time.strftime("%Y-%m-%d %H:%M", time.localtime(1_770_010_000))
    assert line == f"10 of 100,010 images, 2:46:40 left, until {expected}, 10 images/s"


class Asked:
    """Answers what is done, and lets a test wait until it was asked so many times."""

    def __init__(self, done: Progress) -> None:
        self._done = done
        self._asked = threading.Semaphore(0)

    def __call__(self) -> Progress:
        self._asked.release()
        return self._done

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self._asked.acquire(timeout=30)


def drawing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(common, "_LINE_SECONDS", 0.02)
    monkeypatch.setattr(common, "_BAR_SECONDS", 0.02)


def test_without_a_terminal_a_plain_line_comes_now_and_then(quick, capsys):
    read = Asked(Progress(500, 50_000_000, 2))
    with common.watch_progress("examining", TOTAL, read):
        read.wait(3)
    captured = capsys.readouterr()
    assert captured.out == ""  # standard output is for the result
    lines = captured.err.splitlines()
    assert len(lines) >= 2
    pattern = r"examining: 500 of 1,500 images, \d:\d\d left, [\d,]+ images/s, [\d.,]+ MB/s, 2 rejected"
    assert all(re.fullmatch(pattern, line) for line in lines), lines


def test_of_stages_within_stages_the_innermost_is_shown(quick, capsys):
    component, training = Asked(Progress()), Asked(Progress(64, note="epoch 1/2, step 2/9, loss 0.700"))
    with common.watch_progress("Trainer", Progress(), component):
        component.wait(2)
        with common.watch_progress("training", Progress(576), training):
            training.wait(3)
        component.wait(2)
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"Trainer", "training"}
    inner = [line for line in lines if line.startswith("training")]
    assert inner[0].startswith("training: epoch 1/2, step 2/9, loss 0.700, ")
    assert lines[0].startswith("Trainer")
    assert lines[-1].startswith("Trainer")  # again


def test_the_rate_is_measured_from_the_first_images(capsys):
    line = common.describe_progress(Progress(300, 6_000_000), Progress(500, 9), 2.0, Progress(100, 2_000_000))
    assert line == "300 of 500 images, 0:02 left, 100 images/s, 2.0 MB/s"


def test_nothing_is_drawn_once_the_stage_has_ended_or_failed(quick, capsys):
    for error in (None, ValueError, KeyboardInterrupt):
        read = Asked(Progress())
        try:
            with common.watch_progress("examining", TOTAL, read):
                read.wait(1)
                assert drawing_threads()
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass
        assert drawing_threads() == []


class Terminal:
    """A terminal in the place of standard error, for a block; `shown` is all that was sent to it so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 120) -> None:
        self._monkeypatch = monkeypatch
        self._columns = columns
        self._shown = b""

    def __enter__(self) -> Terminal:
        self._outside, inside = os.openpty()
        self._stream = os.fdopen(inside, "w", encoding="utf-8")
        self._monkeypatch.setattr(sys, "stderr", self._stream)
        self._monkeypatch.setenv("TERM", "xterm")
        self._monkeypatch.setenv("COLUMNS", str(self._columns))
        for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
            self._monkeypatch.delenv(name, raising=False)
        # A terminal takes a few kilobytes; whoever writes more waits until somebody looks.
        self._looking = threading.Thread(target=self._look)
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
        self._stream.close()
        self._looking.join()
        os.close(self._outside)

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # how it says that nobody writes any more
            while data := os.read(self._outside, 1 << 16):
                self._shown += data

    def shown(self) -> str:
        return self._shown.decode("utf-8", "replace")


def test_a_terminal_shows_a_bar_that_moves(quick, monkeypatch):
    read = Asked(Progress(750, 50_000_000, 2))
    pattern = r"examining .*━.*750 of 1,500 images, \d:\d\d left, [\d,]+ images/s, [\d.,]+ MB/s, 2 rejected"
    with Terminal(monkeypatch) as terminal, common.watch_progress("examining", TOTAL, read):
        for _ in range(100):
            read.wait(2)  # asked twice a drawing
            if re.search(pattern, terminal.shown()):
                break
        assert re.search(pattern, terminal.shown())
    assert "\x1b[2K" in terminal.shown()  # wiped: what stays on the screen are the results
    assert drawing_threads() == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (50_000.0, r"12,345 of 50,000 images, \d\d:\d\d:\d\d left, until 20\d\d-\d\d-\d\d \d\d:\d\d"),
        (100.0, r"12,345 of 50,000 images, 5:\d\d left, 12\d images/s, [\d,.]+ MB/s"),
    ],
)
def test_eighty_columns_have_the_time_that_is_left_and_no_half_of_a_word(monkeypatch, seconds, shown):
    stage = common._Stage("examining", Progress(50_000), lambda: Progress(12_345, 2 * 10**12, 1_234))
    stage.started_s -= seconds
    monkeypatch.setattr(common, "_Stage", lambda *_: stage)
    with Terminal(monkeypatch, 80) as terminal, common.watch_progress("examining", Progress(), Progress):
        pass
    assert re.search(rf"{shown}\s*\n?\r?\x1b", re.sub(r"\x1b\[[\d;]*m", "", terminal.shown())), terminal.shown()


def test_an_ingest_on_a_terminal_shows_a_bar_a_stage_and_its_lines(tmp_path, monkeypatch, capsys):
    class_folders(tmp_path / "photos", per_class=6)
    with Terminal(monkeypatch) as terminal:
        assert run(["ingest", str(tmp_path / "photos"), "--out", str(tmp_path / "dataset"), "--splits", "all=1"]) == 0
    shown = terminal.shown()
    assert re.search("examining .*━", shown)
    assert re.search("writing .*━", shown)
    assert "examined  12 good, 0 rejected" in shown
    assert "━" not in capsys.readouterr().out

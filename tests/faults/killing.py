"""The real command line, ended by signals at chosen moments and run again; see `test_kills.py`.

`python -m tests.faults.killing SOURCE FOLDER SEED COUNT WAY...` ends COUNT ingests in each way, a key of `WAYS`, and
prints what it saw as one JSON object. Moments and processes are those of `tests.beam_jobs.kill`: forked from one that
has imported the command line. Half of the signals come at a moment exactly, the others up to 30 ms later, wherever the
ingest is then. Every fourth ingest replaces a dataset. Beside all of them runs a reader, who compares whatever is
published with what it should be.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline import cli
from tests.beam_jobs import kill
from tests.beam_jobs.runs import files_under
from tests.faults.leaving import seconds_of, tried_again, write_whole

_LATE_S = 0.03
_SECOND_S = 0.05
_LEAVE_S = 20.0  # for decoders to see that nobody wants them any more


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an ingest is ended.

    Attributes:
      number: the signal.
      terminal: whether it goes to all processes of the group, as a terminal sends it; or to the driver alone.
      twice: whether it comes again while the first is answered.
    """

    number: signal.Signals
    terminal: bool = False
    twice: bool = False

    def strike(self) -> None:
        """Sends the signal."""
        if self.terminal:
            os.killpg(0, self.number)
        else:
            os.kill(os.getpid(), self.number)


WAYS = {
    "SIGKILL": Way(number=signal.SIGKILL),
    "SIGTERM": Way(number=signal.SIGTERM),
    "SIGINT": Way(number=signal.SIGINT),
    "Ctrl-C": Way(number=signal.SIGINT, terminal=True),
    "Ctrl-C twice": Way(number=signal.SIGINT, terminal=True, twice=True),
}


def arguments(source: str, out: Path, *more: str) -> list[str]:
    """Returns the command line of an ingest that is cut as `kill.OPTIONS` say."""
    shares = ",".join(f"{name}={share}" for name, share in kill.OPTIONS["splits"].items())
    settings = out.parent / "settings.yaml"
    with tempfile.NamedTemporaryFile("w", dir=out.parent, delete=False) as stream:
        json.dump({"ingest": {"bucket_images": kill.OPTIONS["bucket_images"]}}, stream)
    os.replace(stream.name, settings)  # another command may be reading it
    shape = ("--shards", str(kill.OPTIONS["shards"]), "--threads", str(kill.OPTIONS["threads"]))
    return ["ingest", source, "--out", str(out), "--splits", shares, *shape, "-c", str(settings), *more]


def dataset(out: Path) -> dict[str, bytes]:
    """Returns the files of a dataset, without what passes between the stages."""
    return {name: data for name, data in files_under(out).items() if not name.startswith("_work/")}


def command(line: list[str], said: Path) -> None:
    """Becomes the command line; what it prints goes to a file."""
    number = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(number, 1)
    os.dup2(number, 2)
    cli.main(line)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """When an ingest is ended.

    Attributes:
      moment: as `kill.on_each_moment` counts them.
      late: seconds after it.
      second: seconds from there to the second signal, in ways that have one.
    """

    moment: int
    late: float
    second: float


def whole(line: list[str], said: Path, source: str, out: Path, report: Path) -> None:
    """Runs the command line to its end, and writes down its exit code and what it read."""

    def work() -> dict:
        try:
            command(line, said)
        except SystemExit as end:
            return {"code": end.code, "published": (out / "dataset.json").exists()}
        raise AssertionError("the command line returned")

    kill.counted((source, str(out)), source, report, work)


def ended(line: list[str], said: Path, places: tuple[str, ...], drawn: Drawn, way: Way) -> None:
    """Runs the command line and ends it; where and when is written down beside what it says."""
    moments, first = itertools.count(1), threading.Event()

    def send(path: str) -> None:
        if next(moments) != drawn.moment:
            return

        def now() -> None:
            time.sleep(drawn.late)
            write_whole(said.with_suffix(".sent"), json.dumps({"path": path, "at": time.monotonic()}))
            first.set()
            way.strike()

        def once_more() -> None:
            first.wait()
            time.sleep(drawn.second)
            said.with_suffix(".second").touch()
            way.strike()

        if way.twice:
            _thread.start_new_thread(once_more, ())
        _thread.start_new_thread(now, ()) if drawn.late else now()

    kill.on_each_moment(places, send)
    command(line, said)


def stage_of(work: Path) -> str:
    """Returns the stage that the work directory names; empty before the first one, and when all is done."""
    try:
        return json.loads((work / "progress.json").read_text())["stage"]
    except FileNotFoundError:
        return ""


def read_on(folder: Path, good: list[dict[str, bytes]], until: int) -> int:
    """Looks at the dataset of the running try again and again while a process lives; returns 1 when it is not whole.

    Those of earlier tries are compared when all is over, see `changed_later`; to read them all the time takes a core.
    """
    while os.getppid() == until:
        with contextlib.suppress(OSError):  # it is made or replaced at this moment
            newest = max(folder.iterdir(), key=lambda place: place.stat().st_mtime_ns)
            found = newest / "out" / "dataset.json"
            before = found.stat().st_ino
            seen = dataset(found.parent)
            if seen not in good and found.stat().st_ino == before:
                (folder / "reader.txt").write_text(f"{found.parent}: {sorted(seen)}")
                return 1
        time.sleep(0.02)
    return 0


def changed_later(folder: Path, good: list[dict[str, bytes]]) -> str:
    """Returns the published datasets that are not whole when all tries are over; empty when all are."""
    found = sorted(path.parent for path in folder.glob("*/out/dataset.json"))
    return ", ".join(str(out) for out in found if dataset(out) not in good)


def main(source: str, folder: Path, seed: int, count: int, *names: str) -> dict[str, dict]:
    # What a terminal sends reaches this process too. A handler, for what is ignored would stay so in the nursery.
    signal.signal(signal.SIGINT, lambda *_: None)
    parent = kill.share_decoders()
    return {name: _try_all(source, folder / name, f"{seed} {name}", count, WAYS[name], parent) for name in names}


def _try_all(source: str, folder: Path, seed: str, count: int, way: Way, parent_of_decoders: int) -> dict:
    for other, more in (("clean", ()), ("old", ("--seed", "1"))):
        (folder / other).mkdir(parents=True)
        line = arguments(source, folder / other / "out", *more)
        report = folder / other / "report.json"
        files = (folder / other / "said.txt", source, folder / other / "out", report)
        assert kill.in_a_child(lambda line=line, files=files: whole(line, *files)) == 0, files[0].read_text()
    clean, old = (dataset(folder / other / "out") for other in ("clean", "old"))
    known = json.loads((folder / "clean" / "report.json").read_text())
    parent, reader = os.getpid(), os.fork()
    if not reader:
        os._exit(read_on(folder, [clean, old], parent))
    choose = random.Random(seed)
    tries = []
    for index, moment in enumerate(kill.chosen(choose, known["moments"], count)):
        late = choose.choice([0.0, choose.uniform(0.001, _LATE_S)])
        drawn = Drawn(moment=moment, late=late, second=choose.uniform(0, _SECOND_S))

        def attempt(before: int, index: int = index, drawn: Drawn = drawn) -> dict:
            place = folder / f"{index}-{before}"
            return _Try(source, place, index % 4 == 3, clean, old).run(drawn, way, parent_of_decoders)

        tries.append(tried_again(attempt, seconds_of))
    wrong = folder / "reader.txt"
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    said = wrong.read_text() if wrong.exists() else ""
    return {"clean": known, "tries": tries, "reader": said or changed_later(folder, [clean, old])}


class _Try:
    """One ingest that is ended, and run again."""

    def __init__(
        self, source: str, folder: Path, replaces: bool, clean: dict[str, bytes], old: dict[str, bytes]
    ) -> None:
        folder.mkdir()
        self._source, self._out, self._replaces = source, folder / "out", replaces
        self._clean, self._old = clean, old
        if replaces:
            copy = folder / "copy"
            shutil.copytree(folder.parent / "old" / "out", copy)
            copy.rename(self._out)  # the reader must not see half of it
            self._work = folder / ".out.feedline-next" / "_work"
        else:
            self._work = self._out / "_work"
        self._line = arguments(source, self._out, *(("--overwrite",) if replaces else ()))
        self._said = folder / "said.txt"

    def run(self, drawn: Drawn, way: Way, parent_of_decoders: int) -> dict:
        places = (self._source, str(self._work.parent))
        code = kill.in_a_child(lambda: ended(self._line, self._said, places, drawn, way))
        gone = time.monotonic()
        sent = self._sent()
        left = kill.left_behind(self._work.parent)
        found = {
            **vars(drawn),
            "replaces": self._replaces,
            "code": code,
            "said": self._said.read_text(),
            "seconds": gone - sent["at"] if sent else 0.0,
            "stage": stage_of(self._work) if sent else "after",
            "left": {name: [] for name in left} if self._begins_anew() else left,
            "twice": self._said.with_suffix(".second").exists(),
            "between": self._state(),
            "orphans": _decoders_left(parent_of_decoders),
        }
        return found | self._again()

    def _sent(self) -> dict:
        path = self._said.with_suffix(".sent")
        return json.loads(path.read_text()) if path.exists() else {}

    def _begins_anew(self) -> bool:
        """Returns whether a new generation was whole, but not in its place: nothing of it is taken up."""
        return self._replaces and (self._work.parent / "dataset.json").exists()

    def _state(self) -> str:
        """Returns what a reader sees."""
        if not (self._out / "dataset.json").exists():
            return "nothing"
        seen = dataset(self._out)
        return "new" if seen == self._clean else "old" if seen == self._old and self._replaces else "wrong"

    def _again(self) -> dict:
        report = self._said.with_name("report.json")
        line = self._line
        code = kill.in_a_child(lambda: whole(line, self._said, self._source, self._out, report))
        kept = sorted(path.name for path in self._out.parent.iterdir() if "feedline" in path.name)
        code = json.loads(report.read_text())["code"] if code == 0 else code
        after = {"again": code, "told": self._said.read_text(), "state": self._state(), "kept": kept}
        after["kept"] += ["_work"] if (self._out / "_work").exists() else []
        return after | {"read": json.loads(report.read_text())["read"] if report.exists() else {}}


def _decoders_left(parent: int) -> int:
    """Returns how many decoders, children of one process, outlive the ingest that had them started."""
    end = time.monotonic() + _LEAVE_S
    left = 1
    while left and time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess):  # one ends while it is looked at
            left = sum(one.status() != psutil.STATUS_ZOMBIE for one in psutil.Process(parent).children())
        time.sleep(0.01)
    return left


if __name__ == "__main__":
    of, where, drawn_from, how_many, *by = sys.argv[1:]
    sys.stdout.write(json.dumps(main(of, Path(where), int(drawn_from), int(how_many), *by)))

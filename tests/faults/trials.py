"""Ingests in a process of their own, many one after the other, and what each left behind.

Starting `feedline` takes ten seconds on a busy machine, an ingest of a few images one. So one process runs the command
line again and again; one that does not answer in time is ended, and the next try gets another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.matrix import Row
from tests.faults.process import ROOT

_CAPBSET_DROP, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2  # linux/prctl.h, linux/capability.h
_BOUND = "bound"
_MESSAGE = "feedline: error: "
_TIMEOUT = 120.0  # a few of them fit into the time of a test, so that a hang is counted and does not end it
_FORGET_PEAK = "5"  # to /proc/<pid>/clear_refs, see proc(5)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How one ingest ended.

    Attributes:
      out: directory of the dataset.
      code: exit code of the command line; -1 when it did not end in time or its process died.
      hang: whether it did not end in time.
      err: standard error.
      grown_mib: by how much more memory its process held, at most, than it did before the try.
      moments: files that were opened and renamed in the directory that holds the output, if they were counted.
      struck: whether what was to happen at one of these moments did.
    """

    out: Path
    code: int
    hang: bool = False
    err: str = ""
    grown_mib: float = 0.0
    moments: int = 0
    struck: bool = False

    @property
    def error(self) -> str:
        """What the user is told; empty when all went well."""
        return self.err.partition(_MESSAGE)[2].removesuffix("\n")

    @property
    def images(self) -> set[str]:
        """Keys in the dataset."""
        return {row["key"] for row in self._rows("images")}

    @property
    def rejects(self) -> dict[str, str]:
        """What is called by which name among the rejects, and the reason."""
        return {row["key"]: row["reason"] for row in self._rows("rejects.parquet")}

    @property
    def details(self) -> str:
        """All that the rejects say."""
        return "\n".join(f"{row['key']} {row['uri']} {row['detail']}" for row in self._rows("rejects.parquet"))

    def count(self, table: str) -> int:
        """Returns how many rows a table of the dataset has."""
        return len(self._rows(table))

    def lost(self, names: Iterable[str]) -> set[str]:
        """Returns which of the names are neither in the dataset nor named by a reject or by the error."""
        told = self.details if self.code == 0 else f"{self.error}\n{self.details}"
        held = self.images | set(self.rejects)
        return set() if self.code == 2 else {name for name in names if name not in held and name not in told}

    def told_well(self) -> bool:
        """Whether it ended with a dataset, or without one and with one line about what is wrong."""
        published = (self.out / "dataset.json").exists()
        if self.code == 0:
            return published and not self.error
        unexpected = "--debug" in self.err or "Traceback" in self.err
        return self.code in (1, 2, 3) and not published and not unexpected and len(self.error.splitlines()) == 1

    def judge(
        self,
        row: Row,
        about: str,
        names: Iterable[str] = (),
        *,
        code: int | tuple[int, ...] = 0,
        says: str = "",
        wrong: bool = False,
    ) -> None:
        """Enters the try in a row of the matrix.

        Args:
          row: of the fault.
          about: names the try.
          names: keys of which none may be lost.
          code: the exit code that is right, or those of which each may be.
          says: what its error must hold, if there is one.
          wrong: whether something else was seen to be wrong.
        """
        lost = self.lost(names)
        right = self.code in (code if isinstance(code, tuple) else (code,)) and (not self.code or says in self.error)
        wrong = wrong or not right or not self.told_well()
        rejects = list(self.rejects.items())[:9] if wrong else "..."
        said = f"{about} (exit {self.code}, {self.err[-300:]!r}, {rejects}, lost {sorted(lost)[:3]})"
        row.tried(said, hang=self.hang, lost=bool(lost), wrong=wrong)

    def _rows(self, table: str) -> list[dict[str, str]]:
        rows = []
        # A folder holds the parts of a table; that in `_work` is of an ingest with too many rejects.
        for path in (self.out / table, self.out / "_work" / table):
            for part in sorted(path.glob("*")) if path.is_dir() else filter(Path.exists, [path]):
                columns = [name for name in ("key", "uri", "reason", "detail") if name in pq.read_schema(part).names]
                rows += pq.read_table(part, columns=columns, use_threads=False).to_pylist()
        return rows


class Worker:
    """The process; see the module. File modes bind it even when it is run as root."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def ingest(
        self,
        source: str | bytes | Path,
        out: Path,
        *arguments: object,
        between: tuple[int, str] | None = None,
        at: tuple[int, float, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> Trial:
        """Runs `feedline ingest`, every reject allowed, into a single split: few images are enough.

        Args:
          source: what to ingest.
          out: directory of the dataset.
          arguments: further ones.
          between: a shell command, and before which job of the ingest it runs: 1 examines, 2 writes.
          at: a shell command, at which of `Trial.moments` it runs, and how many seconds later; as long as it fails,
            it runs again at the moments that follow. Moment 0 never comes: they are counted.
          timeout: seconds after which it hangs.
        """
        usual = ["--max-reject-ratio", "1", "--splits", "all=1"]
        command = ["ingest", os.fsdecode(source), "--out", str(out), *usual, *map(str, arguments)]
        place = f"{out.parent}{os.sep}"
        answer = self.ask({"arguments": command, "between": between, "at": at and (place, *at)}, timeout)
        if answer is None:
            hang = self._process is not None and self._process.poll() is None
            self.close()
            return Trial(out=out, code=-1, hang=hang, err=f"{_MESSAGE}no answer")
        return Trial(out=out, **answer)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process, "nothing was asked yet"
        return self._process.pid

    def ask(self, request: dict, timeout: float) -> dict | None:
        """Has a command run; returns None when there is no answer in time."""
        process = self._process if self._process and self._process.poll() is None else self._started()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], timeout)
            line = process.stdout.readline() if ready else ""
            return json.loads(line) if line else None
        except BaseException:  # or the next try would be given the answer of this one
            self.close()
            raise

    def close(self) -> None:
        """Ends the process with all of its own."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
        self._process = None

    def _started(self) -> subprocess.Popen:
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.trials"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("FEEDLINE_")},
            start_new_session=True,
        )
        return self._process


@contextlib.contextmanager
def worker() -> Iterator[Worker]:
    """Yields a process for many tries, and ends it."""
    found = Worker()
    try:
        yield found
    finally:
        found.close()


def _bind() -> None:
    """Takes from root the right to read what nobody may read; it counts from the next program on."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)


def _answer(arguments: list[str], between: tuple[int, str] | None, at: tuple[str, int, float, str] | None) -> dict:
    from pipeline import cli

    out, err = io.StringIO(), io.StringIO()
    before = least_memory_mib()
    strike = _Strike(*at) if at else None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _jobs(between):
        code = cli.execute(arguments)
    grown = memory_mib("VmHWM") - before
    return {"code": code, "err": err.getvalue(), "grown_mib": grown, **(strike.over() if strike else {})}


def least_memory_mib() -> float:
    """Gives back what earlier tries left free, or it would hide what the next one takes; returns what is held then."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    return memory_mib("VmRSS")


def memory_mib(name: str) -> float:
    """Returns what the system says of the memory of this process: `VmRSS` now, `VmHWM` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


class _Strike:
    """Runs a shell command at a moment; see `Worker.ingest`."""

    def __init__(self, place: str, moment: int, late: float, command: str) -> None:
        from tests.beam_jobs import kill

        self._moment, self._late, self._command = moment, late, command
        self._moments, self._last = itertools.count(1), 0
        self._struck = self._is_over = False
        self._later: threading.Thread | None = None
        self._acts = threading.Lock()
        kill.on_each_moment((place,), self._count)

    def over(self) -> dict:
        """Counts no more, and returns what became of it."""
        self._is_over = True
        if self._later:
            self._later.join()
        return {"moments": self._last, "struck": self._struck}

    def _count(self, _: str) -> None:
        if self._is_over:
            return
        self._last = number = next(self._moments)
        if not self._moment or number < self._moment or self._struck:
            return
        if number == self._moment and self._late:
            self._later = threading.Thread(target=self._act, args=(self._late,))
            self._later.start()
        else:
            self._act()

    def _act(self, late: float = 0.0) -> None:
        if self._acts.acquire(blocking=False):  # or another thread does
            time.sleep(late)
            self._struck = subprocess.run(["sh", "-ec", self._command], check=False).returncode == 0
            self._acts.release()


@contextlib.contextmanager
def _jobs(between: tuple[int, str] | None) -> Iterator[None]:
    """Runs a shell command when a certain job of an ingest is about to begin."""
    from beam_jobs import ingest

    usual, begun = ingest.run_job, itertools.count(1)

    def run_job(*arguments: object) -> None:
        if between and next(begun) == between[0]:
            subprocess.run(["sh", "-ec", between[1]], check=True)
        usual(*arguments)

    ingest.run_job = run_job
    try:
        yield
    finally:
        ingest.run_job = usual


def main() -> None:
    """Answers the requests on standard input, one a line."""
    if os.geteuid() == 0 and _BOUND not in sys.argv:
        _bind()
        os.execv(sys.executable, [sys.executable, "-m", "tests.faults.trials", _BOUND])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    for line in sys.stdin:
        print(json.dumps(_answer(**json.loads(line))), file=answers, flush=True)
        if not gc.get_freeze_count():  # what the first try imported stays
            gc.collect()
            gc.freeze()


if __name__ == "__main__":
    main()

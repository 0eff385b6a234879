"""Ingests whose workers are sent signals; see `test_kills.py`.

`python -m tests.faults.killing_workers IMAGES URLS FOLDER SEED COUNT` runs COUNT ingests for each kind of worker and
each signal, and prints what it saw as one JSON object. Processes are those of `tests.beam_jobs.kill`. Every ingest has
a nursery of its own for each kind, so that it can die; all of them are forked, at the first line of their `main`, from
one process that has imported what they import.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from beam_jobs.common import process_pool as pool
from beam_jobs.images import sandbox
from beam_jobs.sources import fetchers
from beam_jobs.stages import writers
from tests.beam_jobs import kill
from tests.faults.killing import arguments, command, dataset, stage_of, whole
from tests.faults.leaving import write_whole

KINDS = {
    "decoder": "a decoder process",
    "nursery": "the process from which decoders are forked",
    "writer": "a process that writes shards",
    "fetcher": "a process that fetches images",
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
FATAL = ("SIGKILL",)  # a terminal and a cluster send the others to all processes; the driver decides what they mean
_LATE_S = 0.02
_DIES_S = 5.0
_LIVES_S = 0.03
_ASKED = {"writer": writers, "fetcher": fetchers}  # kinds that are ended after a request, whose number is the moment


class Nurseries:
    """The process that nurseries are forked from."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            self._requests.close()
            _fork_nurseries(theirs)
        theirs.close()
        ready = "from beam_jobs.images.sandbox.worker import main"
        self.start([ready], pass_fds=[], stderr=sys.stderr).kill()  # the imports are done when it answers

    def serve_all(self) -> None:
        """Has all ingests that are forked from now on take their nurseries from here."""
        pool.subprocess = SimpleNamespace(
            Popen=self.start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
        )

    def start(self, line: list[str], *, pass_fds: list[int], stderr: Any, **_others: Any) -> Nursery:
        """Starts one; takes what `pool` gives to `subprocess.Popen`."""
        answer, theirs = os.pipe()
        module = re.search(r"from (\S+) import main$", " ".join(line), re.MULTILINE)[1]
        socket.send_fds(self._requests, [module.encode()], [theirs, stderr.fileno(), *pass_fds])
        os.close(theirs)
        with open(answer, "rb") as said:
            return Nursery(int(said.read()))


class Nursery:
    """What `pool` needs of a `subprocess.Popen`."""

    returncode = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(psutil.Error):
            psutil.Process(self.pid).wait(timeout)


def _fork_nurseries(requests: socket.socket) -> None:
    """Forks a nursery for each request, until nobody can ask any more."""
    sys.modules.update(dict.fromkeys(pool.NOT_IMPORTED))  # as `pool` has it
    from beam_jobs.images.sandbox import worker  # noqa: F401 - the import of TensorFlow

    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while (request := socket.recv_fds(requests, 100, 3))[0]:
        answer, errors, *control = request[1]
        pid = os.fork()
        if not pid:
            requests.close()
            os.close(answer)
            os.dup2(errors, 2)
            os.close(errors)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.argv = ["-c", *map(str, control)]
            try:
                importlib.import_module(request[0].decode()).main()
            finally:
                os._exit(0)
        os.write(answer, str(pid).encode())
        for descriptor in request[1]:
            os.close(descriptor)
    os._exit(0)


def workers(kind: str) -> list[int]:
    """Returns the process ids of the workers of this process."""
    found = sandbox._own.pool
    if kind == "nursery":
        return [found._fork_server._process.pid] if found._fork_server else []
    return [one.pid for one in (*found._idle, *found._busy)]


def struck(line: list[str], said: Path, source: str, out: Path, drawn: dict[str, Any]) -> None:
    """Runs the command line, and sends a worker a signal at a moment, or the next one at which there is one."""
    moments, hit = itertools.count(1), []
    number = signal.Signals[drawn["signal"]]

    def strike(found: list[int]) -> None:
        if next(moments) < drawn["moment"] or hit or not found:
            return
        hit.append(found[-1])
        stage = stage_of(out / "_work")

        # In the thread that came to the moment, or an ingest that is nearly done would end before it is seen.
        time.sleep(drawn["late"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(hit[0], number)
        gone = dies(hit[0], _DIES_S if drawn["signal"] in FATAL else _LIVES_S)
        write_whole(said.with_suffix(".sent"), json.dumps({"stage": stage, "gone": gone}))

    if drawn["kind"] in _ASKED:
        on_each_request(drawn["kind"], lambda pid: strike([pid]))
    else:
        kill.on_each_moment((source, str(out)), lambda _: strike(workers(drawn["kind"])))
    command(line, said)


def on_each_request(kind: str, act: Callable[[int], None]) -> None:
    """Calls a function with the process id of a worker after each request to it, for good; few images have workers."""
    module, ask = _ASKED[kind], pool.Child.ask
    module.MIN_IMAGES = 2

    def asks(child: pool.Child, *rest: Any) -> None:
        ask(child, *rest)
        if child in module._own.pool._busy:
            act(child.pid)

    pool.Child.ask = asks


def dies(pid: int, seconds: float) -> bool:
    """Returns whether a process ends in time; one that a busy machine has not let take its signal yet has more."""
    end = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end and not _awaits_a_signal(pid):
                return False
            time.sleep(0.002)
    return True


def _awaits_a_signal(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return False


def main(images: str, urls: str, folder: Path, seed: int, count: int) -> list[dict]:
    Nurseries().serve_all()
    choose, tries = random.Random(seed), []
    for kind in KINDS:
        source = [urls, "--http-allow-private", "--http-per-host", "4"] if kind == "fetcher" else [images]
        clean = folder / f"{kind}-clean"
        moments = _moments(kind, source, clean)
        tries += [
            _tried(source, folder / f"{kind}-{name}-{index}", dataset(clean / "out"), drawn)
            for name in SIGNALS
            for index, moment in enumerate(kill.chosen(choose, moments, count))
            if (drawn := {"kind": kind, "signal": name, "moment": moment, "late": choose.uniform(0, _LATE_S)})
        ]
    return tries


def _moments(kind: str, source: list[str], place: Path) -> int:
    """Ingests in peace, and returns how many moments it had."""
    place.mkdir(parents=True)
    out, said, report, requests = (place / name for name in ("out", "said.txt", "report.json", "requests"))
    line = _line(source, out)

    def work() -> None:
        if kind not in _ASKED:
            whole(line, said, source[0], out, report)
            return
        on_each_request(kind, lambda pid: requests.open("a").write(f"{pid}\n"))
        command(line, said)

    assert kill.in_a_child(work) == 0, said.read_text()
    return len(requests.read_text().split()) if kind in _ASKED else json.loads(report.read_text())["moments"]


def _line(source: list[str], out: Path) -> list[str]:
    return arguments(source[0], out, *source[1:])


def _tried(source: list[str], place: Path, clean: dict[str, bytes], drawn: dict[str, Any]) -> dict:
    place.mkdir()
    out, said = place / "out", place / "said.txt"
    line = _line(source, out)
    code = kill.in_a_child(lambda: struck(line, said, source[0], out, drawn))
    same = (out / "dataset.json").exists() and dataset(out) == clean
    sent = said.with_suffix(".sent")
    hit = json.loads(sent.read_text()) if sent.exists() else {"stage": "none", "gone": None}
    return {**drawn, **hit, "code": code, "same": same, "said": said.read_text()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:3], Path(sys.argv[3]), *map(int, sys.argv[4:]))))

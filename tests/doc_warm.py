"""A process that has imported everything that `feedline` does, and forks for each command of a page.

Importing TensorFlow, TFX and Beam takes longer than what most commands of the pages do. This is for the tests of the
pages alone: `doc_stub`, found as `feedline` in the path of their blocks, sends the words, the directory, the
environment and the open files; the fork takes them over and runs the very script that was meant, from its first line
to the end of the interpreter. A fork is safe while TensorFlow has computed nothing, which is checked. Decoders are
forked in the same way, for their own nursery would have to import TensorFlow, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent) if __name__ == "__main__" else sys.path[0]

from tests.doc_stub import CODE, LENGTH, PYTHON  # noqa: E402 - it is found by the line before

_OURS = ("beam_jobs", "trainer", "components", "pipeline")
_HEAVY = ("tensorflow", "tfx.v1", "tensorflow_data_validation", "tensorflow_model_analysis", "tensorflow_transform")
_BESIDES = ("engines", "export", "airflow", "kubeflow", "dataflow", "doctor", "__main__")  # of others, or run when read
_ABOVE = 512  # numbers of files that no command has


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Path]:
    """Starts the server; yields a directory for the path of the blocks, with the `feedline` that asks it."""
    server, bin_dir, own = folder / "server", folder / "bin", folder / "python"
    stub = f"exec {sys.executable} -I -S {HERE / 'doc_stub.py'} {server}"
    bin_dir.mkdir(parents=True)
    for path, program in ((bin_dir / "feedline", Path(sys.executable).parent / "feedline"), (own, sys.executable)):
        path.write_text(f'#!/bin/sh\n{stub} {program} "$@"\n')
        path.chmod(0o755)
    command = [sys.executable, "-W", "ignore", __file__, str(server), str(own)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # it ends with its input
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield bin_dir
        process.stdin.close()


# --- the server


def serve(path: str) -> dict[str, Any]:
    """Forks until the input ends; returns in each fork, which is what was asked for by now, what to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the minders
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"ready\n")
        while 0 not in (ready := select.select([listener, 0], [], [])[0]):
            assert ready
            connection, _ = listener.accept()
            if not os.fork():
                return _mind(connection)
            connection.close()
    sys.exit()


def _mind(connection: socket.socket) -> dict[str, Any]:
    """Forks the command; passes signals on to it, says how it ended, and ends it when nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 64)
    wanted = json.loads(connection.recv(LENGTH.unpack(length)[0], socket.MSG_WAITALL))
    child = os.fork()
    if not child:
        connection.close()
        _take_over(wanted, descriptors)
        return wanted
    for number in (0, 1, 2, *descriptors):  # or nobody would see them end
        os.close(number)
    ended = os.pidfd_open(child)
    while ended not in select.select([connection, ended], [], [])[0]:
        number = connection.recv(1)
        os.kill(child, number[0] if number else signal.SIGKILL)
        if not number:
            break
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(OSError):
        connection.send(CODE.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _take_over(wanted: dict[str, Any], descriptors: list[int]) -> None:
    os.setsid()
    for number in range(3):
        os.close(number)
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, _ABOVE) for number in descriptors]
    for number in descriptors:
        os.close(number)
    for number, place in zip(moved, wanted["numbers"], strict=True):
        os.dup2(number, place)
        os.close(number)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environment"])


def _run(program: str, *arguments: str) -> None:
    """Runs a script, or the code that Python is given, as if the interpreter had just been started."""
    if arguments[: len(PYTHON)] == PYTHON:
        code, *rest = arguments[len(PYTHON) :]
        sys.argv = ["-c", *rest]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return
    warnings.resetwarnings()
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


def _import_everything() -> None:
    for name in _HEAVY:
        importlib.import_module(name)
    for package in map(importlib.import_module, _OURS):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(word in module.name for word in _BESIDES):
                importlib.import_module(module.name)


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    _import_everything()
    from tensorflow.python.eager import context

    assert not context.context()._initialized, "something has been computed"
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages that all of them share
    _wanted = serve(sys.argv[1])
    sys.executable = sys.argv[2]  # for the nursery
    _run(*_wanted["command"])

"""Stands for `feedline` where the pages are run: hands the command to the process of `doc_warm`, and ends as it ends.

Run as `doc_stub.py SOCKET PROGRAM ARGUMENT...`. It imports nothing of ours, for all it is for is to start at once. The
program itself is run where the start is a part of what is shown: another Keras or path, the doctor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

LENGTH, CODE = struct.Struct("<i"), struct.Struct("<i")
PYTHON = ("-W", "ignore", "-c")  # how the nursery is started; its program is Python itself
_AT_THE_START = {"PYTHONPATH", "KERAS_BACKEND"}  # what is read when Python or Keras is imported
_BY_ITSELF = "doctor"
_NURSERY = "beam_jobs.images.sandbox.worker"


def main(server: str, program: str, *arguments: str) -> None:
    """Runs a program, and ends with its code or by its signal."""
    if not _is_for_the_server(arguments):
        os.execv(program, [program, *arguments])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        _send(connection, [program, *arguments], _descriptors(besides=connection.fileno()))
        (code,) = CODE.unpack(connection.recv(CODE.size) or CODE.pack(1))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_for_the_server(arguments: tuple[str, ...]) -> bool:
    if arguments[: len(PYTHON)] == PYTHON:
        return _NURSERY in arguments[len(PYTHON)]
    return not (_AT_THE_START & os.environ.keys() or _BY_ITSELF in arguments)


def _descriptors(besides: int) -> list[int]:
    """The files that are open here: the three streams, and what whoever started this passes on."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            os.fstat(number)
        except OSError:  # the listing itself
            continue
        if number != besides:
            found.append(number)
    return found


def _send(connection: socket.socket, command: list[str], descriptors: list[int]) -> None:
    wanted = {"command": command, "numbers": descriptors, "cwd": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(wanted).encode()
    socket.send_fds(connection, [LENGTH.pack(len(text))], descriptors)
    connection.sendall(text)


if __name__ == "__main__":
    main(*sys.argv[1:])

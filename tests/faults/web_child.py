"""The command line, watched: `python -m tests.faults.web_child NAMES RECORD ingest ...`.

NAMES is JSON: name -> the answers to the first look-up, the second and so on, each a list of addresses; the last answer
stays. 127.0.0.1 counts as an address of the open internet, and no other of this machine does.

RECORD is a file that is made, of JSON lines: `["asked", host, port]` for every address of a network that is connected
or sent to, whichever library does it, and `["fetched", url, seconds]` for every image, whatever became of it. All
processes of the command are watched: those that fetch, and those that decode, which must ask for nothing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from beam_jobs.common import process_pool
from beam_jobs.sources import http_client, http_fetch

_ASKING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_NETWORKS = frozenset({socket.AF_INET, socket.AF_INET6})


def main() -> None:
    from pipeline import cli

    names, path = sys.argv[1:3]
    root = str(Path(__file__).parents[2])
    here = f"sys.path.append({root!r})\nfrom tests.faults.web_child import watch\nwatch({names!r}, {path!r})\n"
    process_pool._MAIN = here.replace("%", "%%") + process_pool._MAIN
    watch(names, path)
    cli.main(sys.argv[3:])


def watch(names: str, path: str) -> None:
    """Watches this process, and those that are forked from it."""
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _watch(record)
    _time(record)
    _answer(json.loads(names))


def _note(record: int, *values: object) -> None:
    os.write(record, f"{json.dumps(values)}\n".encode())  # at once, so that lines of two threads do not mix


def _watch(record: int) -> None:
    def asked(event: str, values: tuple) -> None:
        if event in _ASKING and values[0].family in _NETWORKS and values[1]:
            _note(record, "asked", *values[1][:2])

    sys.addaudithook(asked)


def _time(record: int) -> None:
    fetch = http_fetch.fetch

    def timed(url, *arguments):
        started = time.monotonic()
        try:
            return fetch(url, *arguments)
        finally:
            _note(record, "fetched", url, time.monotonic() - started)

    http_fetch.fetch = timed


def _answer(answers: dict[str, list[list[str]]]) -> None:
    look_up, is_public = socket.getaddrinfo, http_client.is_public

    def answered(host, port, *arguments, **options):
        if host not in answers:
            return look_up(host, port, *arguments, **options)
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [entry for address in found for entry in look_up(address, port, *arguments, **options)]

    socket.getaddrinfo = answered
    http_client.is_public = lambda address: address == "127.0.0.1" or is_public(address)


if __name__ == "__main__":
    main()

"""The command line with a name server of its own: `python -m tests.faults.web_child NAMES ingest ...`.

NAMES is JSON: name -> the answers to the first look-up, the second and so on, each a list of addresses; the last answer
stays. 127.0.0.1 counts as an address of the open internet, and no other of this machine does.
"""

from __future__ import annotations

import json
import socket
import sys

from beam_jobs import connections
from pipeline import cli


def main() -> None:
    answers: dict[str, list[list[str]]] = json.loads(sys.argv[1])
    look_up, is_public = socket.getaddrinfo, connections.is_public

    def answered(host, port, *arguments, **options):
        if host not in answers:
            return look_up(host, port, *arguments, **options)
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [entry for address in found for entry in look_up(address, port, *arguments, **options)]

    socket.getaddrinfo = answered
    connections.is_public = lambda address: address == "127.0.0.1" or is_public(address)
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()

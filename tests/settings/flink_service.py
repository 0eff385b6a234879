"""A job server of Flink as far as the settings are concerned: it takes jobs, notes what it was sent, and gives them up.

It runs in this process; the `java` that the product starts is a program that notes its arguments and passes on bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_job_api_pb2 as messages
from apache_beam.portability.api import beam_job_api_pb2_grpc as services
from google.protobuf import json_format

from tests.command import executable

_JAVA = f"""#!{sys.executable} -IS
import socket, sys, threading
if "-version" in sys.argv:
    sys.exit(print('openjdk version "17.0.1"', file=sys.stderr))
open("{{seen}}", "w").write("\\n".join(sys.argv))

def pump(source, target):
    while piece := source.recv(65536):
        target.sendall(piece)

port = int(sys.argv[sys.argv.index("--job-port") + 1])
with socket.create_server(("localhost", port)) as server:
    while True:
        here = server.accept()[0]
        there = socket.create_connection(("localhost", {{port}}))
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class JobServer(services.JobServiceServicer):
    """Attributes: the `options` and `environments` of the newest job, and how often one was `sent`."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.environments: list[str] = []
        self.sent = 0

    def DescribePipelineOptions(self, request, context):  # noqa: N802 - as the protocol calls it
        return messages.DescribePipelineOptionsResponse()

    def Prepare(self, request, context):  # noqa: N802
        found = json_format.MessageToDict(request.pipeline_options)
        self.options = {name.split(":")[2]: value for name, value in found.items()}
        self.environments = [
            f"{environment.urn} {environment.payload!r}"
            for environment in request.pipeline.components.environments.values()
        ]
        return messages.PrepareJobResponse(preparation_id="job")

    def Run(self, request, context):  # noqa: N802
        self.sent += 1
        return messages.RunJobResponse(job_id="job")

    def GetStateStream(self, request, context):  # noqa: N802
        yield messages.JobStateEvent(state=messages.JobState.FAILED)

    def GetMessageStream(self, request, context):  # noqa: N802
        yield from ()

    def GetState(self, request, context):  # noqa: N802
        return messages.JobStateEvent(state=messages.JobState.FAILED)


@contextlib.contextmanager
def job_server(home: Path) -> Iterator[JobServer]:
    """Runs the service while the block lasts, and makes `home` a `JAVA_HOME` whose `java` leads to it.

    `home/arguments` holds the arguments of the newest `java`, a line each.
    """
    service = JobServer()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_JobServiceServicer_to_server(service, server)
    port = server.add_insecure_port("localhost:0")
    java = home / "bin" / "java"
    executable(java, _JAVA.format(seen=home / "arguments", port=port))
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait(10)

"""What becomes of a job when the connection to its job server breaks: gRPC itself, and a server that breaks off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2 as messages
from apache_beam.portability.api import beam_job_api_pb2_grpc as services
from apache_beam.runners.portability.portable_runner import PipelineResult
from apache_beam.runners.runner import PipelineState

from beam_jobs.runners.flink_jobs import _Result
from tests.engines.flink_processes import free_ports


class BreaksOff(services.JobServiceServicer):
    """A job server that breaks off while a job is watched, and knows its state afterwards."""

    def __init__(self, *states: int) -> None:
        self._states = list(states)
        self.watched = 0

    def GetStateStream(self, request, context):  # noqa: N802 - as the protocol calls it
        self.watched += 1
        if self._states:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        yield messages.JobStateEvent(state=messages.JobState.DONE)

    def GetState(self, request, context):  # noqa: N802
        return messages.JobStateEvent(state=self._states.pop(0))


@contextlib.contextmanager
def serving(service: services.JobServiceServicer) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    services.add_JobServiceServicer_to_server(service, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None).wait(10)


def job(place: str, retries: int) -> _Result:
    service = services.JobServiceStub(grpc.insecure_channel(place))
    request = messages.GetJobStateRequest(job_id="job")
    send = lambda: PipelineResult(service, "job", iter(()), service.GetStateStream(request, timeout=30))  # noqa: E731
    return _Result(send, retries, None)


def test_a_job_server_that_is_gone_is_one_line():
    with pytest.raises(RuntimeError, match="^the connection to the job server of Flink broke: .*refused") as caught:
        job(f"localhost:{free_ports(1)[0]}", retries=3).wait_until_finish()
    assert "\n" not in str(caught.value)


def test_a_job_that_failed_meanwhile_is_sent_again():
    service = BreaksOff(messages.JobState.FAILED)
    with serving(service) as place:
        assert job(place, retries=1).wait_until_finish() == PipelineState.DONE
    assert service.watched == 2


def test_a_job_that_may_still_run_is_not_sent_twice():
    service = BreaksOff(messages.JobState.RUNNING)
    with (
        serving(service) as place,
        pytest.raises(RuntimeError, match="^the connection to the job server of Flink broke: Socket closed$"),
    ):
        job(place, retries=1).wait_until_finish()
    assert service.watched == 1

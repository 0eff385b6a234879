"""`feedline-worker`: starts a Beam worker on a task manager of Flink, with the installed version of feedline.

It has the arguments of the boot program in Beam's container of the Python SDK, and replaces that program as the command
of a process environment or of a worker pool. The dependencies of a job must be installed; it unpacks no package.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

_TIMEOUT_S = 60.0
_POLL_S = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a worker until the runner stops it or the parent process ends."""
    parsed = _parser().parse_args(arguments)
    parent_id = os.getppid()
    threading.Thread(target=_end_with_parent, args=(parent_id,), daemon=True).start()
    os.environ.update(settings(parsed, request_provision_info(parsed.provision_endpoint, parsed.id)))
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def settings(arguments: argparse.Namespace, info: Any) -> Mapping[str, str]:
    """Returns the environment variables for Beam's worker.

    Args:
      arguments: parsed arguments; their addresses have priority over those of `info`.
      info: `ProvisionInfo` from the runner.
    """
    from google.protobuf import json_format

    variables = {
        "WORKER_ID": arguments.id,
        "SEMI_PERSISTENT_DIRECTORY": arguments.semi_persist_dir,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "LOGGING_API_SERVICE_DESCRIPTOR": _descriptor(arguments.logging_endpoint or info.logging_endpoint.url),
        "CONTROL_API_SERVICE_DESCRIPTOR": _descriptor(arguments.control_endpoint or info.control_endpoint.url),
    }
    if info.status_endpoint.url:
        variables["STATUS_API_SERVICE_DESCRIPTOR"] = _descriptor(info.status_endpoint.url)
    return variables


def request_provision_info(endpoint: str, worker_id: str) -> Any:
    """Returns the `ProvisionInfo` of a worker, which is requested from the runner.

    Args:
      endpoint: `host:port` of the runner's provisioning service.
      worker_id: id of the worker.
    """
    import grpc  # type: ignore[import-untyped]
    from apache_beam.portability.api import beam_provision_api_pb2 as messages
    from apache_beam.portability.api import beam_provision_api_pb2_grpc as services

    with grpc.insecure_channel(endpoint) as channel:
        service = services.ProvisionServiceStub(channel)
        response = service.GetProvisionInfo(
            messages.GetProvisionInfoRequest(),
            metadata=(("worker_id", worker_id),),
            timeout=_TIMEOUT_S,
            wait_for_ready=True,
        )
    return response.info


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="feedline-worker", description="Starts a Beam worker; called by Beam.")
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    for name in ("logging", "artifact", "control"):
        parser.add_argument(f"--{name}_endpoint", default="")
    parser.add_argument("--semi_persist_dir", default="/tmp")  # noqa: S108 - the directory of a pickled session, unused
    return parser


def _descriptor(url: str) -> str:
    from apache_beam.portability.api import endpoints_pb2
    from google.protobuf import text_format

    text: str = text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))
    return text


def _end_with_parent(parent_id: int) -> None:
    # Otherwise the workers of a killed task manager would continue while its job is repeated on another one.
    while os.getppid() == parent_id:
        time.sleep(_POLL_S)
    os._exit(1)


if __name__ == "__main__":
    main()

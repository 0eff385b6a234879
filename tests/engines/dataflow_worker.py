"""What a worker of Dataflow does with a staged job, run by the tests in an environment that holds only the wheel.

Nothing of the checkout is imported here: `python dataflow_worker.py run URL OPTIONS` runs a staged graph to its end on
Beam's in-process runner, `python dataflow_worker.py load FILE...` loads pickled code as a worker does.
"""

from __future__ import annotations

import json
import sys


def run(url: str, options_json: str) -> None:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    values = {key: value for key, value in json.loads(options_json).items() if key not in ("runner", "pipelineUrl")}
    # Newer clients send a Struct, which knows only doubles; the service hands whole ones on without a point.
    whole = {key: int(value) for key, value in values.items() if isinstance(value, float) and value.is_integer()}
    options = PipelineOptions.from_dictionary(values | whole)
    FileSystems.set_options(options)
    proto = beam_runner_api_pb2.Pipeline.FromString(FileSystems.open(url).read())
    for environment in proto.components.environments.values():  # there is no container here; this process is one
        environment.Clear()
        environment.urn = python_urns.EMBEDDED_PYTHON
    result = FnApiRunner().run_via_runner_api(proto, options)
    result.wait_until_finish()


def load(paths: list[str]) -> None:
    from apache_beam.internal import pickler

    names = {}
    for path in paths:
        with open(path, "rb") as stream:
            function = pickler.loads(stream.read())[0]
        names[path] = f"{type(function).__module__}.{type(function).__qualname__}"
    sys.stdout.write(
        json.dumps({"steps": names, "from": sys.modules["beam_jobs"].__file__, "tfx": "tfx" in sys.modules})
    )


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:])
    else:
        load(sys.argv[2:])

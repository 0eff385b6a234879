"""What a container of Kubeflow runs: TFX's own entry point, with the types of its inputs filled in.

TFX finds the class of an artifact by the type that comes with it. Vertex AI sends one; Kubeflow Pipelines leaves it out
of every input, and there TFX alone ends with an error. The component says what it takes, so its type is filled in.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.errors import FeedlineError

# Not `-m`, which would look for modules in the working directory of the image first.
COMMAND = (
    "python",
    "-c",
    "import sys; sys.path.remove(''); from pipeline.runners.kubeflow_container import main; main()",
)
# Kubeflow allows one dot in the name of a type, so that it cannot be the path of the class.
TYPES: Mapping[str, str] = {
    "feedline.DatasetVerdict": "components.artifacts.DatasetVerdict",
    "feedline.HtmlReport": "components.artifacts.HtmlReport",
}

_ENTRY_POINT = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"
_INVOCATION, _SPEC = "--json_serialized_invocation_args", "--json_serialized_inputs_spec_args"


def main() -> None:
    """Runs one component, as the arguments of this process say. The exit code of an error is that of `feedline`."""
    from tfx.orchestration.kubeflow.v2 import compiler_utils

    compiler_utils.TITLE_TO_CLASS_PATH.update(TYPES)
    sys.argv = with_types(sys.argv)
    try:
        runpy.run_module(_ENTRY_POINT, run_name="__main__", alter_sys=True)
    except FeedlineError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def with_types(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a container with the type of every input as its component declares it.

    Args:
      arguments: with the ExecutorInput and the declared inputs, both JSON, behind the flags of TFX.

    Raises:
      ValueError: one of the two flags is missing.
    """
    place = list(arguments).index(_INVOCATION) + 1
    given: dict[str, Any] = json.loads(arguments[place])
    declared = json.loads(arguments[list(arguments).index(_SPEC) + 1]).get("artifacts", {})
    for name, listed in given.get("inputs", {}).get("artifacts", {}).items():
        for artifact in listed["artifacts"]:
            artifact["type"] = declared[name]["artifactType"]
    return [*arguments[:place], json.dumps(given), *arguments[place + 1 :]]


if __name__ == "__main__":
    main()

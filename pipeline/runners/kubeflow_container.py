"""Entry point of the containers of Kubeflow, which adds the missing types of the inputs and calls TFX's entry point.

TFX finds the class of an artifact by its type. Vertex AI sends the types; Kubeflow Pipelines omits them, which is an
error in TFX. The missing types are copied from the declaration of the component.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.errors import FeedlineError

# `-m` would search modules in the working directory of the image first.
COMMAND = (
    "python",
    "-c",
    "import sys; sys.path.remove(''); from pipeline.runners.kubeflow_container import main; main()",
)
# Type name in Kubeflow -> path of the class. Type names may have a single dot, so the path cannot be the name.
TYPES: Mapping[str, str] = {
    "feedline.DatasetVerdict": "components.artifacts.DatasetVerdict",
    "feedline.HtmlReport": "components.artifacts.HtmlReport",
}

_ENTRY_POINT = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"
_INVOCATION_FLAG, _INPUTS_FLAG = "--json_serialized_invocation_args", "--json_serialized_inputs_spec_args"


def main() -> None:
    """Runs the component in the arguments of this process. After an error, exits with the exit code of `feedline`."""
    from tfx.orchestration.kubeflow.v2 import compiler_utils

    compiler_utils.TITLE_TO_CLASS_PATH.update(TYPES)
    sys.argv = add_types(sys.argv)
    try:
        runpy.run_module(_ENTRY_POINT, run_name="__main__", alter_sys=True)
    except FeedlineError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def add_types(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a container, with the types of the inputs from the declaration of the component.

    Args:
      arguments: arguments of the container, with TFX's flags for the ExecutorInput and the declared inputs, both JSON.

    Raises:
      ValueError: one of the two flags is missing.
    """
    index = list(arguments).index(_INVOCATION_FLAG) + 1
    executor_input: dict[str, Any] = json.loads(arguments[index])
    declared = json.loads(arguments[list(arguments).index(_INPUTS_FLAG) + 1]).get("artifacts", {})
    for name, artifacts in executor_input.get("inputs", {}).get("artifacts", {}).items():
        for artifact in artifacts["artifacts"]:
            artifact["type"] = declared[name]["artifactType"]
    return [*arguments[:index], json.dumps(executor_input), *arguments[index + 1 :]]

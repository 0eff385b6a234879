"""What the tasks of an Airflow DAG do: one component each, and the summary and report after the last."""

from __future__ import annotations

import ast
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from beam_jobs import stack
from beam_jobs.errors import EmptySplit, FeedlineError, GateFailed, OptionError, TooManyRejects
from beam_jobs.sources import spans
from pipeline import config as configuration
from pipeline.config import PipelineConfig
from pipeline.runs import root, signals

if TYPE_CHECKING:
    from ml_metadata.metadata_store import MetadataStore
    from tfx import v1 as tfx


Steps = Mapping[str, list[str]]

_FINAL = (EmptySplit, GateFailed, TooManyRejects)  # what the data failed once, it fails again
_log = logging.getLogger(__name__)


def main() -> None:
    """Runs the step that a task of the DAG file asks for, and ends with the exit code of `feedline`.

    The first argument is the id of the run of the DAG. Settings, steps and the name of the step are a Python literal:
    the second argument, or the first line of the input, with whose end this process ends too. The exit code is
    `os.EX_DATAERR` where the data failed a check, which Airflow is not to try again.
    """
    signals.install()
    run_id, *given = sys.argv[1:]
    settings, steps, step = ast.literal_eval(given[0] if given else sys.stdin.readline())
    if not given:
        threading.Thread(target=_end_with_input, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    code = 0
    try:
        if step in steps:
            run_step(settings, steps, step, run_id)
        else:
            finish(settings, run_id)
    except FeedlineError as error:
        _log.error("%s", error)
        code = os.EX_DATAERR if isinstance(error, _FINAL) else error.exit_code
    except KeyboardInterrupt:
        code = signals.code()
    signals.end(code)


def pipeline_of(config: PipelineConfig) -> tfx.dsl.Pipeline:
    """Returns the pipeline; the first call of a process loads TFX, which takes seconds."""
    from pipeline.pipeline import create_pipeline

    return create_pipeline(config)


def steps_of(pipeline: tfx.dsl.Pipeline) -> dict[str, list[str]]:
    """Returns component -> those that it waits for, in an order in which they can run."""
    return {node.id: sorted(before.id for before in node.upstream_nodes) for node in pipeline.components}


def run_step(settings: Mapping[str, Any], steps: Steps, step: str, run_id: str) -> None:
    """Runs one component in one run of the DAG.

    A component that succeeded in this run before keeps what it made: a second output would break those after it.

    Args:
      settings: of the pipeline, with absolute paths.
      steps: component -> those that it waits for, as the DAG knows them.
      step: the component.
      run_id: of the run of the DAG.

    Raises:
      FeedlineError: it failed.
    """
    config = _configured(settings)
    pipeline = pipeline_of(config)
    if steps_of(pipeline) != steps:
        raise OptionError(
            "the code or the files of the pipeline are not those that its DAG was written for; compile it again"
        )
    os.makedirs(config.root, exist_ok=True)
    with root.exclusive_run(config):
        run = _run_name(config, run_id)
        if _succeeded(config, run, step):
            _log.info("%s succeeded in this run before and keeps what it made; trigger a new run for more", step)
            return
        _launch(config, pipeline, run, step)
        if not _succeeded(config, run, step):  # TFX only logs that an input is missing
            raise FeedlineError(f"{step} came to no result; the log above says why")


def finish(settings: Mapping[str, Any], run_id: str) -> None:
    """Writes the report of a run of the DAG and logs its summary.

    Args:
      settings: of the pipeline, with absolute paths.
      run_id: of the run of the DAG.

    Raises:
      GateFailed: the model was not good enough to be pushed.
    """
    config = _configured(settings)
    from pipeline.runs.history import open_store
    from pipeline.runs.summary import check_pushed, text

    with root.exclusive_run(config):
        store = open_store(config.metadata_path)
        if not _is_newest(store, config, _run_name(config, run_id)):
            _log.info("a newer run has come since; the report in %s is about that one", config.root)
            return
        images = root.images_dir(_pinned(config, store))
        summary = root.conclude(config, images, _log.info)
    _log.info("what came of the run:\n%s", text(summary))
    check_pushed(summary)


def _end_with_input() -> None:
    """Kills this process and those that it started when the task is gone, which holds the other end of the input."""
    # Not through `sys.stdin`, whose lock this thread would hold at the end of the interpreter.
    while os.read(0, 4096):
        pass
    os.killpg(os.getpid(), signal.SIGKILL)


def _configured(settings: Mapping[str, Any]) -> PipelineConfig:
    """Returns the configuration, in a process that is ready for TensorFlow as that of a command is."""
    stack.quieten_tensorflow()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    return configuration.build(settings)


def _run_name(config: PipelineConfig, run_id: str) -> str:
    # Pipelines of one root have runs of equal ids when they have equal schedules.
    return f"{config.name}.{run_id}"


def _launch(config: PipelineConfig, pipeline: tfx.dsl.Pipeline, run: str, step: str) -> None:
    """Runs one node of the compiled pipeline and leaves out the others."""
    from tfx.dsl.compiler import compiler, constants
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner
    from tfx.orchestration.portable import runtime_parameter_utils

    compiled = compiler.Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(compiled, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run})
    for node in compiled.nodes:
        if node.pipeline_node.node_info.id != step:
            node.pipeline_node.execution_options.skip.SetInParent()
    try:
        LocalDagRunner().run_with_ir(compiled)
    except GateFailed as stopped:
        _keep(config, stopped)
        raise


def _keep(config: PipelineConfig, stopped: GateFailed) -> None:
    from pipeline.runs.history import open_store

    images = root.images_dir(_pinned(config, open_store(config.metadata_path)))
    root.save_partial_report(config, images, stopped, _log.info)


def _succeeded(config: PipelineConfig, run: str, step: str) -> bool:
    from ml_metadata.proto import metadata_store_pb2

    from pipeline.runs.history import open_store

    if not os.path.isfile(config.metadata_path):
        return False
    store = open_store(config.metadata_path)
    named = (("pipeline_run", run), ("node", f"{config.name}.{step}"))
    contexts = [store.get_context_by_type_and_name(kind, name) for kind, name in named]
    if None in contexts:
        return False
    of_run, of_node = (store.get_executions_by_context(context.id) for context in contexts)
    numbers = {execution.id for execution in of_node}
    states = metadata_store_pb2.Execution
    return any(
        execution.id in numbers and execution.last_known_state in (states.COMPLETE, states.CACHED)
        for execution in of_run
    )


def _is_newest(store: MetadataStore, config: PipelineConfig, run: str) -> bool:
    from pipeline.runs.history import newest_executions

    executions = newest_executions(store, config.name)
    contexts = store.get_contexts_by_execution(executions[0].id) if executions else []
    return any(context.type == "pipeline_run" and context.name == run for context in contexts)


def _pinned(config: PipelineConfig, store: MetadataStore) -> PipelineConfig:
    """Returns the configuration with the span that the dataset was made of; a newer one may have come since."""
    from pipeline.runs.history import newest_run

    if not spans.has_span(config.pattern):
        return config
    dataset = newest_run(store, config.name)["ImageExampleGen"].outputs["examples"]
    properties = store.get_artifacts_by_uri(dataset)[0].properties
    span, version = (
        properties[name].int_value if f"{{{name.upper()}" in config.pattern else None for name in ("span", "version")
    )
    return dataclasses.replace(config, span=span, version=version)

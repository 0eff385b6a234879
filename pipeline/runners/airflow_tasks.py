"""The tasks of an Airflow DAG: one for each component, and a last one for the summary and the report."""

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
    from tfx.orchestration.pipeline import Pipeline


Steps = Mapping[str, list[str]]

_FINAL = (EmptySplit, GateFailed, TooManyRejects)  # failed checks of the data, for which a retry is useless
_log = logging.getLogger(__name__)


def main() -> None:
    """Runs the step of a task of the DAG file, and ends with the exit code of `feedline`.

    The first argument is the id of the DAG run. Settings, steps and the name of the step are a Python literal: the
    second argument, or the first line of standard input. In the second case, this process is killed at the end of the
    input. The exit code is `os.EX_DATAERR` when the data failed a check, which Airflow must not retry.
    """
    signals.install()
    run_id, *request = sys.argv[1:]
    settings, steps, step = ast.literal_eval(request[0] if request else sys.stdin.readline())
    if not request:
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


def load_pipeline(config: PipelineConfig) -> Pipeline:
    """Returns the pipeline; the first call in a process loads TFX, which takes seconds."""
    from pipeline.pipeline import create_pipeline

    return create_pipeline(config)


def list_steps(pipeline: Pipeline) -> dict[str, list[str]]:
    """Returns component -> components that it waits for, in execution order."""
    return {node.id: sorted(upstream.id for upstream in node.upstream_nodes) for node in pipeline.components}


def run_step(settings: Mapping[str, Any], steps: Steps, step: str, run_id: str) -> None:
    """Runs one component in a DAG run.

    A component that already succeeded in this run is not repeated: a second output would break later components.

    Args:
      settings: settings of the pipeline, with absolute paths.
      steps: component -> components that it waits for, from the DAG file.
      step: id of the component.
      run_id: id of the DAG run.

    Raises:
      FeedlineError: the component failed.
    """
    config = _build_config(settings)
    pipeline = load_pipeline(config)
    if list_steps(pipeline) != steps:
        raise OptionError(
            "the code or the files of the pipeline changed after its DAG file was written; compile it again"
        )
    os.makedirs(config.root, exist_ok=True)
    with root.exclusive_run(config):
        run = _run_name(config, run_id)
        if _succeeded(config, run, step):
            _log.info("%s already succeeded in this run and is not repeated; trigger a new run to repeat it", step)
            return
        _launch(config, pipeline, run, step)
        if not _succeeded(config, run, step):  # TFX only logs that an input is missing
            raise FeedlineError(f"{step} has no result; see the log above")


def finish(settings: Mapping[str, Any], run_id: str) -> None:
    """Writes the report of a DAG run and logs its summary.

    Args:
      settings: settings of the pipeline, with absolute paths.
      run_id: id of the DAG run.

    Raises:
      GateFailed: the model was not good enough to be pushed.
    """
    config = _build_config(settings)
    from pipeline.runs.history import open_store
    from pipeline.runs.summary import answer

    with root.exclusive_run(config):
        store = open_store(config.metadata_path)
        if not _is_newest(store, config, _run_name(config, run_id)):
            _log.info("there is a newer run; the report in %s is about that run", config.root)
            return
        images = root.images_dir(_pin_span(config, store))
        summary = root.conclude(config, images, _log.info)
    result = answer(summary)
    _log.info("summary of the run:\n%s", result.text)
    if result.refusal:
        raise GateFailed(result.refusal)


def _end_with_input() -> None:
    """Kills this process and its children when the task, which holds the other end of the input, has ended."""
    # Reading from `sys.stdin` would hold its lock during the shutdown of the interpreter.
    while os.read(0, 4096):
        pass
    os.killpg(os.getpid(), signal.SIGKILL)


def _build_config(settings: Mapping[str, Any]) -> PipelineConfig:
    """Returns the configuration, and sets up TensorFlow as a command does."""
    stack.quieten_tensorflow()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    return configuration.build(settings)


def _run_name(config: PipelineConfig, run_id: str) -> str:
    # Pipelines with the same root and schedule have equal run ids.
    return f"{config.name}.{run_id}"


def _launch(config: PipelineConfig, pipeline: Pipeline, run: str, step: str) -> None:
    """Runs one node of the compiled pipeline."""
    from tfx.dsl.compiler import compiler, constants
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner
    from tfx.orchestration.portable import runtime_parameter_utils

    from pipeline.runs.history import open_store

    compiled = compiler.Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(compiled, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run})
    for node in compiled.nodes:
        if node.pipeline_node.node_info.id != step:
            node.pipeline_node.execution_options.skip.SetInParent()
    try:
        LocalDagRunner().run_with_ir(compiled)
    except GateFailed as stopped:
        images = root.images_dir(_pin_span(config, open_store(config.metadata_path)))
        root.save_partial_report(config, images, stopped, _log.info)
        raise


def _succeeded(config: PipelineConfig, run: str, step: str) -> bool:
    from ml_metadata.proto import metadata_store_pb2

    from pipeline.runs.history import open_store

    if not os.path.isfile(config.metadata_path):
        return False
    store = open_store(config.metadata_path)
    names = (("pipeline_run", run), ("node", f"{config.name}.{step}"))
    contexts = [store.get_context_by_type_and_name(kind, name) for kind, name in names]
    if None in contexts:
        return False
    run_executions, node_executions = (store.get_executions_by_context(context.id) for context in contexts)
    node_ids = {execution.id for execution in node_executions}
    states = metadata_store_pb2.Execution
    return any(
        execution.id in node_ids and execution.last_known_state in (states.COMPLETE, states.CACHED)
        for execution in run_executions
    )


def _is_newest(store: MetadataStore, config: PipelineConfig, run: str) -> bool:
    from pipeline.runs.history import newest_executions

    executions = newest_executions(store, config.name)
    contexts = store.get_contexts_by_execution(executions[0].id) if executions else []
    return any(context.type == "pipeline_run" and context.name == run for context in contexts)


def _pin_span(config: PipelineConfig, store: MetadataStore) -> PipelineConfig:
    """Returns the configuration with the span of the dataset of the run; there may be a newer span."""
    from pipeline.runs.history import newest_run

    if not spans.has_span(config.pattern):
        return config
    dataset = newest_run(store, config.name)["ImageExampleGen"].outputs["examples"]
    properties = store.get_artifacts_by_uri(dataset)[0].properties
    span, version = (
        properties[name].int_value if f"{{{name.upper()}" in config.pattern else None for name in ("span", "version")
    )
    return dataclasses.replace(config, span=span, version=version)

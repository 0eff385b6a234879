"""The tasks of an Airflow DAG: one for each component, and a last task for the summary and the report."""

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


Steps = Mapping[str, list[str]]  # component -> components that must finish before it
_FINAL_ERRORS = (EmptySplit, GateFailed, TooManyRejects)  # failed checks of the data, for which a retry is useless
_log = logging.getLogger(__name__)


def main() -> None:
    """Runs a task of the DAG, and exits with the same exit codes as `feedline`.

    The first argument is the id of the DAG run. A Python literal of a tuple, with the settings, the steps and the name
    of the task, is the second argument or the first line of standard input. In the latter case, this process is killed
    at the end of the input. The exit code is `os.EX_DATAERR` if the data failed a check: Airflow must not retry it.
    """
    signals.install()
    run_id, *request = sys.argv[1:]
    settings, steps, step = ast.literal_eval(request[0] if request else sys.stdin.readline())
    if not request:
        threading.Thread(target=_end_with_input, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    exit_code = 0
    try:
        if step in steps:
            run_step(settings, steps, step, run_id)
        else:
            finish(settings, run_id)
    except FeedlineError as error:
        _log.error("%s", error)
        exit_code = os.EX_DATAERR if isinstance(error, _FINAL_ERRORS) else error.exit_code
    except KeyboardInterrupt:
        exit_code = signals.code()
    signals.end(exit_code)


def load_pipeline(config: PipelineConfig) -> Pipeline:
    """Returns the pipeline; the first call in a process loads TFX, which takes seconds."""
    from pipeline.pipeline import create_pipeline

    return create_pipeline(config)


def list_steps(pipeline: Pipeline) -> dict[str, list[str]]:
    """Returns component -> components that must finish before it, in execution order."""
    return {node.id: sorted(upstream.id for upstream in node.upstream_nodes) for node in pipeline.components}


def run_step(settings: Mapping[str, Any], steps: Steps, step: str, run_id: str) -> None:
    """Runs one component in a DAG run.

    A component that has already succeeded in this run is not repeated: later components fail if it has two outputs.

    Args:
      settings: settings of the pipeline, with absolute paths.
      steps: component -> components that must finish before it, from the DAG file.
      step: id of the component.
      run_id: id of the DAG run.

    Raises:
      FeedlineError: the component failed, or the pipeline differs from that of the DAG file.
    """
    config = _build_config(settings)
    pipeline = load_pipeline(config)
    if list_steps(pipeline) != steps:
        raise OptionError(
            "the code or the files of the pipeline changed after its DAG file was written; compile it again"
        )
    os.makedirs(config.root, exist_ok=True)
    with root.exclusive_run(config):
        run_name = _run_name(config, run_id)
        if _has_succeeded(config, run_name, step):
            _log.info("%s already succeeded in this run and is not repeated; trigger a new run to repeat it", step)
            return
        _launch(config, pipeline, run_name, step)
        if not _has_succeeded(config, run_name, step):  # TFX logs a missing input, but raises no error
            raise FeedlineError(f"{step} has no result; see the log above")


def finish(settings: Mapping[str, Any], run_id: str) -> None:
    """Writes the report of a DAG run and logs its summary.

    Args:
      settings: settings of the pipeline, with absolute paths.
      run_id: id of the DAG run.

    Raises:
      GateFailed: the model was not blessed, and therefore not pushed.
    """
    config = _build_config(settings)
    from pipeline.runs.history import open_store
    from pipeline.runs.summary import run_output

    with root.exclusive_run(config):
        store = open_store(config.metadata_path)
        if not _is_newest(store, config, _run_name(config, run_id)):
            _log.info("there is a newer run, which the report in %s describes", config.root)
            return
        images = root.images_dir(_pin_span(config, store))
        summary = root.conclude(config, images, _log.info)
    result = run_output(summary)
    _log.info("summary of the run:\n%s", result.text)
    if result.refusal:
        raise GateFailed(result.refusal)


def _end_with_input() -> None:
    """Kills this process and its children at the end of standard input, when the Airflow task has ended."""
    # A read from `sys.stdin` would keep its lock during the shutdown of the interpreter.
    while os.read(0, 4096):
        pass
    os.killpg(os.getpid(), signal.SIGKILL)


def _build_config(settings: Mapping[str, Any]) -> PipelineConfig:
    """Returns the configuration, and sets TensorFlow's environment variables like the commands of `feedline`."""
    stack.quieten_tensorflow()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    return configuration.build(settings)


def _run_name(config: PipelineConfig, run_id: str) -> str:
    # Airflow gives pipelines with one schedule equal run ids, and they may share a root.
    return f"{config.name}.{run_id}"


def _launch(config: PipelineConfig, pipeline: Pipeline, run_name: str, step: str) -> None:
    """Runs one component of the compiled pipeline, and writes a partial report if the gate fails."""
    from tfx.dsl.compiler import compiler, constants
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner
    from tfx.orchestration.portable import runtime_parameter_utils

    from pipeline.runs.history import open_store

    compiled = compiler.Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(compiled, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_name})
    for node in compiled.nodes:
        if node.pipeline_node.node_info.id != step:
            node.pipeline_node.execution_options.skip.SetInParent()
    try:
        LocalDagRunner().run_with_ir(compiled)
    except GateFailed as failure:
        images = root.images_dir(_pin_span(config, open_store(config.metadata_path)))
        root.save_partial_report(config, images, failure, _log.info)
        raise


def _has_succeeded(config: PipelineConfig, run_name: str, step: str) -> bool:
    from ml_metadata.proto import metadata_store_pb2

    from pipeline.runs.history import open_store

    if not os.path.isfile(config.metadata_path):
        return False
    store = open_store(config.metadata_path)
    names = (("pipeline_run", run_name), ("node", f"{config.name}.{step}"))
    contexts = [store.get_context_by_type_and_name(kind, name) for kind, name in names]
    if None in contexts:
        return False
    run_executions, node_executions = (store.get_executions_by_context(context.id) for context in contexts)
    node_ids = {execution.id for execution in node_executions}
    execution_type = metadata_store_pb2.Execution
    return any(
        execution.id in node_ids and execution.last_known_state in (execution_type.COMPLETE, execution_type.CACHED)
        for execution in run_executions
    )


def _is_newest(store: MetadataStore, config: PipelineConfig, run_name: str) -> bool:
    from pipeline.runs.history import newest_executions

    executions = newest_executions(store, config.name)
    contexts = store.get_contexts_by_execution(executions[0].id) if executions else []
    return any(context.type == "pipeline_run" and context.name == run_name for context in contexts)


def _pin_span(config: PipelineConfig, store: MetadataStore) -> PipelineConfig:
    """Returns the configuration with the span of the dataset of the newest run; the source may have a newer span."""
    from pipeline.runs.history import newest_run

    if not spans.has_span(config.pattern):
        return config
    dataset = newest_run(store, config.name)["ImageExampleGen"].outputs["examples"]
    properties = store.get_artifacts_by_uri(dataset)[0].properties
    span, version = (
        properties[name].int_value if f"{{{name.upper()}" in config.pattern else None for name in ("span", "version")
    )
    return dataclasses.replace(config, span=span, version=version)

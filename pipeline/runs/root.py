"""The root directory of a pipeline: its lock, removal of the outputs of failed runs, and the steps after a run.

After the components, under any orchestrator, `conclude` writes the report, copies an inferred schema, returns the
summary of the run, and pushes the model again if its pushed copy was removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.errors import FeedlineError, GateFailed, OptionError
from beam_jobs.storage import disk, lock
from pipeline.config import LOCK_NAME, PipelineConfig
from pipeline.runs import unchanged

if TYPE_CHECKING:
    from ml_metadata.metadata_store import MetadataStore

    from pipeline.runs.history import Step
    from pipeline.runs.summary import RunSummary


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Locks a root against other runs while the block runs.

    Raises:
      OptionError: another run uses the root, or the root cannot be written.
    """
    with contextlib.ExitStack() as stack:
        message = f"root {root} is in use by another run: {lock.OWNER}; wait for its end, or choose another root"
        try:
            stack.enter_context(lock.exclusive(os.path.join(root, LOCK_NAME), message))
        except OSError as error:
            raise OptionError(f"root {root} cannot be written: {error.strerror}; choose another --root") from error
        yield


def check_free(root: str) -> None:
    """Raises `OptionError` when another run uses a root, or the root cannot be written. Does not lock it."""
    if os.path.isfile(os.path.join(root, LOCK_NAME)):
        with locked(root):
            pass
    elif refusal := disk.refusal(root):
        remedy = refusal.repair or "choose another --root"
        raise OptionError(f"root {root} cannot be written: {refusal.reason}; {remedy}")


_SYSTEM_DIR = ".system"  # in which components and launchers of TFX exchange files


@contextlib.contextmanager
def exclusive_run(config: PipelineConfig) -> Iterator[None]:
    """Locks the root of a pipeline for one run, and removes the outputs of failed executions before and after it.

    TFX itself allows several runs in a root, which then repeat the training and block each other's database. It removes
    the outputs of a component that raises, but not of one that is interrupted or killed.

    Args:
      config: configuration of the pipeline; its root exists.

    Raises:
      OptionError: another run uses the root, or it contains outputs that are not in the database.
    """
    with locked(config.root):
        _check_database(config)
        unchanged.remove_record(config.root)
        clear_failed(config)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # such as a full disk; the error of the run matters more
                clear_failed(config)
            raise
        clear_failed(config)


def clear_failed(config: PipelineConfig) -> None:
    """Removes outputs of failed executions, and marks unfinished executions of a killed run as failed.

    Call it only while the root is locked. Work directories of components are not removed.
    """
    from components.blessed_model import PARTIAL_PREFIX
    from pipeline.runs import history

    for component_id in storage.list_dirs(config.artifacts_dir):
        storage.remove_tree(os.path.join(config.artifacts_dir, component_id, _SYSTEM_DIR))
    for name in storage.list_dirs(config.serving_dir):
        if name.startswith(PARTIAL_PREFIX):
            storage.remove_tree(os.path.join(config.serving_dir, name))
    if not os.path.isfile(config.metadata_path):
        return
    store = history.open_store(config.metadata_path, write=True)
    failed = _fail_abandoned(store)
    for path, execution_id in _output_dirs(config.artifacts_dir):
        # By id: the paths in the database are wrong after the root was moved.
        if execution_id in failed:
            storage.remove_tree(path)


def _check_database(config: PipelineConfig) -> None:
    """Raises `OptionError` when an output directory is not in the database: TFX would use its number again."""
    from pipeline.runs import history

    last_id = 0
    if os.path.isfile(config.metadata_path):
        executions = history.open_store(config.metadata_path).get_executions()
        last_id = max((execution.id for execution in executions), default=0)
    for path, execution_id in _output_dirs(config.artifacts_dir):
        if execution_id > last_id:
            raise OptionError(
                f"root {config.root} contains {os.path.relpath(path, config.root)}, which is not in its "
                f"{os.path.basename(config.metadata_path)}; restore that file, remove "
                f"{config.artifacts_dir}, or choose another root"
            )


def _fail_abandoned(store: MetadataStore) -> set[int]:
    """Marks unfinished executions as failed; returns the ids of all failed executions."""
    from ml_metadata.proto.metadata_store_pb2 import Execution

    executions = store.get_executions()
    abandoned = [item for item in executions if item.last_known_state in (Execution.NEW, Execution.RUNNING)]
    for execution in abandoned:
        execution.last_known_state = Execution.FAILED
    if abandoned:
        store.put_executions(abandoned)
    return {item.id for item in executions if item.last_known_state in (Execution.FAILED, Execution.CANCELED)}


def _output_dirs(artifacts_dir: str) -> Iterator[tuple[str, int]]:
    """Yields path and execution id of every output directory, COMPONENT/KEY/ID."""
    for component_id in storage.list_dirs(artifacts_dir):
        for key in storage.list_dirs(os.path.join(artifacts_dir, component_id)):
            outputs = os.path.join(artifacts_dir, component_id, key)
            for name in storage.list_dirs(outputs):
                if name.isdigit():
                    yield os.path.join(outputs, name), int(name)


SCHEMA_NAME = "schema.inferred.pbtxt"  # differs from the name of a reviewed file, which a run must not change

Say = Callable[[str], None]


def conclude(config: PipelineConfig, images: str, say: Say) -> RunSummary:
    """Measures the input pipeline, writes the report, copies an inferred schema and returns the summary of the run.

    Args:
      config: configuration of the pipeline.
      images: directory of the images; see `images_dir`.
      say: function that prints a line of progress.
    """
    from pipeline.runs.history import newest_run, open_store
    from pipeline.runs.summary import collect, write_report
    from trainer import bench

    store = open_store(config.metadata_path)
    steps = newest_run(store, config.name)
    say("measuring the input pipeline")
    dataset = steps["ImageExampleGen"].outputs["examples"]
    rates = bench.compare(dataset, next(iter(manifest.load(dataset).splits)), config.input)
    say("writing the report")
    report_path = write_report(config, store, steps, images)
    summary = collect(steps, rates, report_path, copy_schema(config, steps), is_named=bool(config.schema))
    _restore_push(summary)
    return summary


def images_dir(config: PipelineConfig) -> str:
    """Returns the directory of the images; empty when there is none, as for archives and adopted datasets."""
    from beam_jobs.sources.factory import open_source

    if not config.ingest:
        return ""
    base = open_source(dataclasses.replace(config.ingest, source=config.resolved_source())).base
    return base if os.path.isdir(base) else ""


def save_partial_report(config: PipelineConfig, images: str, gate_failure: GateFailed, say: Say) -> None:
    """Writes the report and the schema of a run that the gate stopped, for the repair of the data."""
    from pipeline.runs.history import newest_run, open_store
    from pipeline.runs.summary import write_report

    store = open_store(config.metadata_path)
    try:
        steps = newest_run(store, config.name)
        copy_schema(config, steps)
        say(f"the findings of the gate are in {write_report(config, store, steps, images, gate_failure.verdict)}")
    except (OSError, FeedlineError) as error:  # the caller raises the findings
        say(f"the report could not be written: {error}")


def copy_schema(config: PipelineConfig, steps: Mapping[str, Step]) -> str:
    """Copies an inferred schema to the file that the configuration names, or into the root.

    Returns:
      path of the copy; empty when the schema was not inferred.
    """
    step = steps.get("InferredSchema")
    if not step or "schema" not in step.outputs:
        return ""
    target = config.schema or os.path.join(config.root, SCHEMA_NAME)
    if config.schema and os.path.exists(target):  # a user wrote it during the run
        return target
    original = os.path.join(step.outputs["schema"], "schema.pbtxt")
    try:
        storage.write_bytes(target, storage.read_bytes(original))
    except OSError as error:
        raise OptionError(f"schema {target} cannot be written: {error.strerror}; its original is {original}") from error
    return target


def _restore_push(summary: RunSummary) -> None:
    """Pushes the model again when the push came from the cache and the pushed copy was removed."""
    if summary.blessed and not os.path.isfile(os.path.join(summary.model_dir, "saved_model.pb")):
        from components.blessed_model import publish_model

        publish_model(os.path.join(summary.steps["Trainer"].outputs["model"], "Format-Serving"), summary.model_dir)

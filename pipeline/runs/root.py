"""The root of a pipeline: one run at a time in it, nothing left over from dead attempts, and the steps after a run.

Wherever the components ran, there follow report, summary, schema, and a push that somebody removed.
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
from beam_jobs.sources.factory import open_source
from beam_jobs.storage import disk, lock
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from ml_metadata.metadata_store import MetadataStore

    from pipeline.runs.history import Step
    from pipeline.runs.summary import RunSummary


LOCK_NAME = ".lock"


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Keeps other runs away from a root while the block runs.

    Raises:
      OptionError: another run uses it, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.locked(os.path.join(root, LOCK_NAME)))
        except lock.Locked as error:
            raise OptionError(
                f"root {root} is in use by another run: {error}; wait for its end, or choose another root"
            ) from None
        except OSError as error:
            raise OptionError(f"root {root} cannot be written: {error.strerror}; choose another --root") from error
        yield


def check_free(root: str) -> None:
    """Raises `OptionError` when another run uses a root, or it cannot be written. It may be taken a moment later."""
    if os.path.isfile(os.path.join(root, LOCK_NAME)):
        with locked(root):
            pass
    elif refused := disk.refusal(root):
        remedy = refused.repair or "choose another --root"
        raise OptionError(f"root {root} cannot be written: {refused.reason}; {remedy}")


_SYSTEM_DIR = ".system"  # where TFX keeps what passes between a component and its launcher


@contextlib.contextmanager
def alone(config: PipelineConfig) -> Iterator[None]:
    """Holds the root of a pipeline for one run; before and after it, removes what dead attempts left behind.

    TFX itself lets two runs share a root, where they train twice and wait for each other's database; and it cleans up
    after a component that raises, but not after one that is interrupted or killed.

    Args:
      config: of the pipeline; its root exists.

    Raises:
      OptionError: another run holds the root, or it holds artifacts of a database that is gone.
    """
    with locked(config.root):
        _check_known(config)
        clear_dead(config)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # such as a full disk: the reason of the run itself is worth more
                clear_dead(config)
            raise
        clear_dead(config)


def clear_dead(config: PipelineConfig) -> None:
    """Removes outputs of executions that did not end well, and closes those that a killed run left open.

    Call it only while no run is under way. What a component keeps for its next attempt stays.
    """
    from components.blessed_model import PARTIAL_PREFIX
    from pipeline.runs import history

    for node in storage.list_dirs(config.artifacts_dir):
        storage.remove_tree(os.path.join(config.artifacts_dir, node, _SYSTEM_DIR))
    for name in storage.list_dirs(config.serving_dir):
        if name.startswith(PARTIAL_PREFIX):
            storage.remove_tree(os.path.join(config.serving_dir, name))
    if not os.path.isfile(config.metadata_path):
        return
    store = history.open_store(config.metadata_path, write=True)
    dead = _dead_executions(store)
    for path, number in _numbered(config.artifacts_dir):
        # By number, never by the paths of the database: those are of another place when somebody moved the root.
        if number in dead:
            storage.remove_tree(path)


def _check_known(config: PipelineConfig) -> None:
    """Raises `OptionError` where TFX, counting from one again, would write into directories of a lost database."""
    from pipeline.runs import history

    known = 0
    if os.path.isfile(config.metadata_path):
        executions = history.open_store(config.metadata_path).get_executions()
        known = max((execution.id for execution in executions), default=0)
    for path, number in _numbered(config.artifacts_dir):
        if number > known:
            raise OptionError(
                f"root {config.root} holds {os.path.relpath(path, config.root)}, of which its "
                f"{os.path.basename(config.metadata_path)} knows nothing; restore that file, remove "
                f"{config.artifacts_dir}, or choose another root"
            )


def _dead_executions(store: MetadataStore) -> set[int]:
    from ml_metadata.proto.metadata_store_pb2 import Execution

    executions = store.get_executions()
    abandoned = [item for item in executions if item.last_known_state in (Execution.NEW, Execution.RUNNING)]
    for execution in abandoned:
        execution.last_known_state = Execution.FAILED
    if abandoned:
        store.put_executions(abandoned)
    return {item.id for item in executions if item.last_known_state in (Execution.FAILED, Execution.CANCELED)}


def _numbered(artifacts_dir: str) -> Iterator[tuple[str, int]]:
    """Yields path and number of every output directory, NODE/KEY/NUMBER: the number is that of the execution."""
    for node in storage.list_dirs(artifacts_dir):
        for key in storage.list_dirs(os.path.join(artifacts_dir, node)):
            outputs = os.path.join(artifacts_dir, node, key)
            for name in storage.list_dirs(outputs):
                if name.isdigit():
                    yield os.path.join(outputs, name), int(name)


SCHEMA_NAME = "schema.inferred.pbtxt"  # never the name of a reviewed file, which a run must not touch

Say = Callable[[str], None]


def conclude(config: PipelineConfig, images: str, say: Say) -> RunSummary:
    """Measures the input pipeline, writes the report and returns what came of the newest run.

    Args:
      config: of the pipeline.
      images: see `images_dir`.
      say: takes one line of progress.

    Returns:
      the summary. The report is in the root; an inferred schema too, or under the name that the configuration gives.
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
    page = write_report(config, store, steps, images)
    summary = collect(steps, rates, page, keep_schema(config, steps), is_named=bool(config.schema))
    _restore_push(summary)
    return summary


def images_dir(config: PipelineConfig) -> str:
    """Returns the directory that the images lie in; empty where there is none, as for archives and adopted datasets."""
    if not config.ingest:
        return ""
    base = open_source(dataclasses.replace(config.ingest, source=config.resolved_source())).base
    return base if os.path.isdir(base) else ""


def keep_what_there_is(config: PipelineConfig, images: str, stopped: GateFailed, say: Say) -> None:
    """Leaves the report and the schema of a run that its gate stopped, for the repair of the data."""
    from pipeline.runs.history import newest_run, open_store
    from pipeline.runs.summary import write_report

    store = open_store(config.metadata_path)
    try:
        steps = newest_run(store, config.name)
        keep_schema(config, steps)
        say(f"what the gate found is in {write_report(config, store, steps, images, stopped.verdict)}")
    except (OSError, FeedlineError) as error:  # the findings are worth more than the page about them
        say(f"the report could not be written: {error}")


def keep_schema(config: PipelineConfig, steps: Mapping[str, Step]) -> str:
    """Copies an inferred schema to where people find it: under the name that was asked for, or into the root.

    Returns:
      where it is; empty when it was not inferred.
    """
    step = steps.get("InferredSchema")
    if not step or "schema" not in step.outputs:
        return ""
    target = config.schema or os.path.join(config.root, SCHEMA_NAME)
    if config.schema and os.path.exists(target):  # somebody put it there meanwhile
        return target
    inferred = os.path.join(step.outputs["schema"], "schema.pbtxt")
    try:
        storage.write_bytes(target, storage.read_bytes(inferred))
    except OSError as error:
        raise OptionError(f"schema {target} cannot be written: {error.strerror}; it is kept as {inferred}") from error
    return target


def _restore_push(summary: RunSummary) -> None:
    """Pushes the model again when the push came from the cache and somebody removed what it had pushed."""
    if summary.blessed and not os.path.isfile(os.path.join(summary.model_dir, "saved_model.pb")):
        from components.blessed_model import publish_model

        publish_model(os.path.join(summary.steps["Trainer"].outputs["model"], "Format-Serving"), summary.model_dir)

"""One run at a time in a root, and nothing left over from the attempts that failed or were killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2

from beam_jobs import storage
from beam_jobs.errors import OptionError
from components.model_pusher.names import PARTIAL_PREFIX
from pipeline.config import PipelineConfig
from pipeline.runs import history
from pipeline.runs.lock import locked

_SYSTEM_DIR = ".system"  # where TFX keeps what passes between a component and its launcher
_STATES = metadata_store_pb2.Execution
_ABANDONED = (_STATES.NEW, _STATES.RUNNING)
_DEAD = (_STATES.FAILED, _STATES.CANCELED)


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
        clear(config)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # such as a full disk: the reason of the run itself is worth more
                clear(config)
            raise
        clear(config)


def clear(config: PipelineConfig) -> None:
    """Removes outputs of executions that did not end well, and closes those that a killed run left open.

    Call it only while no run is under way. What a component keeps for its next attempt stays.
    """
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
    executions = store.get_executions()
    abandoned = [execution for execution in executions if execution.last_known_state in _ABANDONED]
    for execution in abandoned:
        execution.last_known_state = _STATES.FAILED
    if abandoned:
        store.put_executions(abandoned)
    return {execution.id for execution in executions if execution.last_known_state in _DEAD}


def _numbered(artifacts_dir: str) -> Iterator[tuple[str, int]]:
    """Yields path and number of every output directory, NODE/KEY/NUMBER: the number is that of the execution."""
    for node in storage.list_dirs(artifacts_dir):
        for key in storage.list_dirs(os.path.join(artifacts_dir, node)):
            outputs = os.path.join(artifacts_dir, node, key)
            for name in storage.list_dirs(outputs):
                if name.isdigit():
                    yield os.path.join(outputs, name), int(name)

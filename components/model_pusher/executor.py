"""The executor of Pusher: a model appears in the serving directory whole or not at all, and the same model once.

TFX's own copies file by file into the numbered directory. Cut short it leaves half a version behind, and a retry after
the copy but before the end of the execution pushes the same model a second time under another number.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from tfx import types
from tfx.components.pusher import executor as pusher
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils, standard_component_specs
from tfx.utils import proto_utils

from beam_jobs import storage
from components.model_pusher.names import PARTIAL_PREFIX
from trainer.training.progress import DIVERGED_NAME


class Executor(pusher.Executor):
    """Pushes by rename."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Pushes the model if it was blessed and its training did not diverge.

        An object store, which cannot rename, gets it the way of TFX.
        """
        destination = pusher_pb2.PushDestination()
        proto_utils.json_to_proto(exec_properties[standard_component_specs.PUSH_DESTINATION_KEY], destination)
        base = destination.filesystem.base_directory
        pushed = artifact_utils.get_single_instance(output_dict[standard_component_specs.PUSHED_MODEL_KEY])
        model = self.GetModelPath(input_dict)
        if not self.CheckBlessing(input_dict) or storage.exists(storage.join(model, DIVERGED_NAME)):
            pushed.set_int_custom_property("pushed", 0)
            return
        if storage.is_remote(base):
            super().Do(input_dict, output_dict, exec_properties)
            return
        _copy(model, pushed.uri)
        version = push(model, base)
        pushed.set_int_custom_property("pushed", 1)
        pushed.set_string_custom_property("pushed_destination", os.path.join(base, version))
        pushed.set_string_custom_property("pushed_version", version)


def push(model: str, base: str) -> str:
    """Publishes a model as the newest version of a local serving directory. Idempotent.

    Args:
      model: directory of a SavedModel.
      base: directory of the numbered versions.

    Returns:
      the name of the version: the newest when it is this model already, else a new one, named by the time in seconds.

    Raises:
      OSError: it cannot be written; no version was added.
    """
    newest = max((int(name) for name in storage.list_dirs(base) if name.isdigit()), default=0)
    if newest and _content(os.path.join(base, str(newest))) == _content(model):
        return str(newest)
    version = str(max(int(time.time()), newest + 1))  # a clock that was set back must not make an older version
    publish(model, os.path.join(base, version))
    return version


def publish(model: str, version: str) -> None:
    """Copies a model into a local directory that is there whole or not at all; replaces what is there.

    Args:
      model: directory of a SavedModel.
      version: directory of a numbered version.

    Raises:
      OSError: it cannot be written.
    """
    partial = os.path.join(os.path.dirname(version), PARTIAL_PREFIX + os.path.basename(version))
    storage.remove_tree(partial)
    try:
        _copy(model, partial)
        storage.remove_tree(version)
        os.rename(partial, version)
    except BaseException:
        storage.remove_tree(partial)
        raise


def _copy(source: str, target: str) -> None:
    """Copies a tree, every file whole and synced."""
    for directory, _, names in os.walk(source):
        there = os.path.join(target, os.path.relpath(directory, source))
        storage.make_dirs(there)
        for name in names:
            with (
                storage.open_read(os.path.join(directory, name)) as stream,
                storage.atomic_writer(os.path.join(there, name)) as out,
            ):
                shutil.copyfileobj(stream, out)


def _content(directory: str) -> dict[str, tuple[int, str]]:
    """Returns relative path -> size and sha256 of every file."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
    return {os.path.relpath(path, directory): storage.digest(path) for path in paths}

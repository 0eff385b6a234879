"""Blessed models: the previous one as the baseline of Evaluator, and the atomic push of a new one.

The baseline is the newest blessed model that is older than the candidate and has the same description: the classes and
the format of the records. TFX's LatestBlessedModelStrategy ignores the candidate. In a second run on unchanged inputs,
it returns the candidate itself, so that Evaluator misses the cache and compares the model with itself. It also ignores
the classes: TFMA fails if the baseline has fewer classes, and compares wrong classes if it has different ones.

The push is atomic, and is not repeated for the same model. TFX's Pusher copies the files into the directory of the
version. After an interruption, an incomplete version remains, and a retry pushes the model again as another version.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from typing import Any

from ml_metadata import MetadataStore
from tfx import types
from tfx.components.evaluator import constants
from tfx.components.pusher import component as pusher_component
from tfx.components.pusher import executor as pusher
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.common import resolver
from tfx.dsl.components.common.resolver import Resolver
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils, standard_artifacts, standard_component_specs
from tfx.utils import path_utils, proto_utils

from beam_jobs import storage
from components.artifacts import Artifacts
from trainer.training.checkpoint import DIVERGED_NAME

CANDIDATE_KEY = "candidate"
MODEL_KEY = "model"
BLESSING_KEY = "model_blessing"


class BlessedBeforeStrategy(resolver.ResolverStrategy):
    """Resolves `model` to the baseline of `candidate`, or to no model."""

    def __init__(self, description: str) -> None:
        """Builds the strategy.

        Args:
          description: name of the description file in a SavedModel; models are comparable if its content is equal.
        """
        self._description_name = description

    def resolve_artifacts(self, store: MetadataStore, input_dict: Artifacts) -> Artifacts:
        """Returns the inputs with only the baseline under `model` and its blessing under `model_blessing`.

        Args:
          store: store of ML Metadata.
          input_dict: this run's model under `candidate`, all models under `model`, blessings under `model_blessing`.
        """
        [candidate] = input_dict[CANDIDATE_KEY]
        blessings = {
            blessing.get_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY): blessing
            for blessing in input_dict[BLESSING_KEY]
            if blessing.get_int_custom_property(constants.ARTIFACT_PROPERTY_BLESSED_KEY) == constants.BLESSED_VALUE
        }
        blessed = [model for model in input_dict[MODEL_KEY] if model.id in blessings and model.id < candidate.id]
        description = self._read_description(candidate)
        for model in sorted(blessed, key=lambda model: model.id, reverse=True):
            if description and self._read_description(model) == description:
                return {CANDIDATE_KEY: [candidate], MODEL_KEY: [model], BLESSING_KEY: [blessings[model.id]]}
            logging.warning(
                "the model blessed in %s is no baseline: it has other classes, reads other records, or was deleted",
                os.path.basename(model.uri),
            )
        return {CANDIDATE_KEY: [candidate], MODEL_KEY: [], BLESSING_KEY: []}

    def _read_description(self, model: types.Artifact) -> bytes:
        """Returns the content of the description file of a model; empty if the file does not exist."""
        directory = path_utils.serving_model_path(model.uri)
        try:
            return storage.read_bytes(storage.join(directory, self._description_name))
        except OSError:
            return b""


NODE_ID = "BlessedModel"


def blessed_model(candidate: types.BaseChannel, description: str) -> Resolver:
    """Returns a resolver of the previous blessed model.

    Example:
      blessed = blessed_model(trainer.outputs["model"], DESCRIPTION_NAME)
      evaluator = Evaluator(model=trainer.outputs["model"], baseline_model=blessed.outputs["model"], ...)

    Args:
      candidate: channel of the model of this run.
      description: name of the description file in a SavedModel; models are comparable if its content is equal.

    Outputs:
      model: `Model`, at most one: the newest blessed model that is older than the candidate and comparable with it.
    """
    return Resolver(
        strategy_class=BlessedBeforeStrategy,
        config={"description": description},
        **{
            CANDIDATE_KEY: candidate,
            MODEL_KEY: types.Channel(type=standard_artifacts.Model),
            BLESSING_KEY: types.Channel(type=standard_artifacts.ModelBlessing),
        },
    ).with_id(NODE_ID)


PARTIAL_PREFIX = ".pushing-"  # not numeric, so that model servers and `feedline predict` ignore it


class PusherExecutor(pusher.Executor):
    """Pushes a model by renaming a complete directory."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Pushes the model if it was blessed and its training did not diverge.

        To an object store, which cannot rename directories, the executor of TFX pushes it.
        """
        destination = pusher_pb2.PushDestination()
        proto_utils.json_to_proto(exec_properties[standard_component_specs.PUSH_DESTINATION_KEY], destination)
        base = destination.filesystem.base_directory
        pushed_model = artifact_utils.get_single_instance(output_dict[standard_component_specs.PUSHED_MODEL_KEY])
        model = self.GetModelPath(input_dict)
        if not self.CheckBlessing(input_dict) or storage.exists(storage.join(model, DIVERGED_NAME)):
            pushed_model.set_int_custom_property("pushed", 0)
            return
        if storage.is_remote(base):
            super().Do(input_dict, output_dict, exec_properties)
            return
        _copy_tree(model, pushed_model.uri)
        version = push_model(model, base)
        pushed_model.set_int_custom_property("pushed", 1)
        pushed_model.set_string_custom_property("pushed_destination", os.path.join(base, version))
        pushed_model.set_string_custom_property("pushed_version", version)


def push_model(model: str, base: str) -> str:
    """Publishes a model as the newest version of a local serving directory. Idempotent.

    Args:
      model: directory of a SavedModel.
      base: directory of the numbered versions.

    Returns:
      name of the version: the newest version if it has the same files, else a new version, named after the Unix time.

    Raises:
      OSError: the model cannot be written; no version was created.
    """
    newest_version = max((int(name) for name in storage.list_dirs(base) if name.isdigit()), default=0)
    if newest_version and _file_digests(os.path.join(base, str(newest_version))) == _file_digests(model):
        return str(newest_version)
    version = str(max(int(time.time()), newest_version + 1))  # also if the clock was set back
    publish_model(model, os.path.join(base, version))
    return version


def publish_model(model: str, version: str) -> None:
    """Copies a model into a local directory, atomically; replaces an existing directory.

    Args:
      model: directory of a SavedModel.
      version: directory to create, whose name is the number of the version.

    Raises:
      OSError: the model cannot be written.
    """
    partial_dir = os.path.join(os.path.dirname(version), PARTIAL_PREFIX + os.path.basename(version))
    storage.remove_tree(partial_dir)
    try:
        _copy_tree(model, partial_dir)
        storage.remove_tree(version)
        storage.rename(partial_dir, version)
    except BaseException:
        storage.remove_tree(partial_dir)
        raise


def _copy_tree(source: str, target: str) -> None:
    """Copies a directory with its subdirectories; writes and syncs every file atomically."""
    for directory, _, names in os.walk(source):
        target_directory = os.path.join(target, os.path.relpath(directory, source))
        storage.make_dirs(target_directory)
        for name in names:
            with (
                storage.open_read(os.path.join(directory, name)) as stream,
                storage.atomic_writer(os.path.join(target_directory, name)) as out,
            ):
                shutil.copyfileobj(stream, out)


def _file_digests(directory: str) -> dict[str, tuple[int, str]]:
    """Returns relative path -> size and sha256, for every file of a directory and its subdirectories."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
    return {os.path.relpath(path, directory): storage.digest(path) for path in paths}


class Pusher(pusher_component.Pusher):
    """Pushes the model if it was blessed.

    Example:
      pusher = Pusher(
          model=trainer.outputs["model"], model_blessing=evaluator.outputs["blessing"], push_destination=destination
      )

    Outputs:
      pushed_model: `PushedModel`, with the directory of the version in its property `pushed_destination`.
    """

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(PusherExecutor)

"""Blessed models: the one before as the baseline of Evaluator, and pushing one whole or not at all.

The baseline is the newest blessed model that was made before another one, and is of the same kind. TFX's own
LatestBlessedModelStrategy knows nothing of the model that is evaluated. Run once more on unchanged inputs it finds that
very model, blessed a moment ago, so Evaluator would miss the cache and compare the model with itself. Nor does it know
classes: TFMA, given a model of fewer classes, fails in the middle, and one of as many but other classes is compared as
if an index meant the same in both.

A model appears in the serving directory whole or not at all, and the same model once. TFX's own Pusher copies file by
file into the numbered directory. Cut short it leaves half a version behind, and a retry after the copy but before the
end of the execution pushes the same model a second time under another number.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from typing import Any

from ml_metadata import MetadataStore
from tfx import types
from tfx import v1 as tfx
from tfx.components.evaluator import constants
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
    """Resolves `model` to the baseline of `candidate`: one model, or none."""

    def __init__(self, description: str) -> None:
        """Builds the strategy.

        Args:
          description: file inside a SavedModel that is the same in models that can be compared.
        """
        self._description = description

    def resolve_artifacts(self, store: MetadataStore, input_dict: Artifacts) -> Artifacts:
        """Returns the inputs with the baseline under `model` and its blessing under `model_blessing`, if there is one.

        Args:
          store: of ML Metadata.
          input_dict: the model of this run under `candidate`, all models and all blessings.
        """
        [candidate] = input_dict[CANDIDATE_KEY]
        blessings = {
            blessing.get_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY): blessing
            for blessing in input_dict[BLESSING_KEY]
            if blessing.get_int_custom_property(constants.ARTIFACT_PROPERTY_BLESSED_KEY) == constants.BLESSED_VALUE
        }
        before = [model for model in input_dict[MODEL_KEY] if model.id in blessings and model.id < candidate.id]
        wanted = self._describe(candidate)
        for model in sorted(before, key=lambda model: model.id, reverse=True):
            if wanted and self._describe(model) == wanted:
                return {CANDIDATE_KEY: [candidate], MODEL_KEY: [model], BLESSING_KEY: [blessings[model.id]]}
            logging.warning(
                "the model blessed in %s is not compared with: its classes or its records are others, or it is gone",
                os.path.basename(model.uri),
            )
        return {CANDIDATE_KEY: [candidate], MODEL_KEY: [], BLESSING_KEY: []}

    def _describe(self, model: types.Artifact) -> bytes:
        """Returns the description of a model, empty when it has none."""
        directory = path_utils.serving_model_path(model.uri)
        try:
            return storage.read_bytes(storage.join(directory, self._description))
        except OSError:
            return b""


NODE_ID = "BlessedModel"


def blessed_model(candidate: types.BaseChannel, description: str) -> Resolver:
    """Returns a resolver of the model blessed before.

    Example:
      blessed = blessed_model(trainer.outputs["model"], DESCRIPTION_NAME)
      evaluator = Evaluator(model=trainer.outputs["model"], baseline_model=blessed.outputs["model"], ...)

    Args:
      candidate: the model of this run.
      description: file inside a SavedModel that is the same in models that can be compared.

    Outputs:
      model: `Model`, none or one: the newest blessed one that is older than the candidate and has its description.
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


PARTIAL_PREFIX = ".pushing-"  # no number, so that neither a model server nor `feedline predict` takes it for a version


class PusherExecutor(pusher.Executor):
    """Pushes by rename."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
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
        _copy_tree(model, pushed.uri)
        version = push_model(model, base)
        pushed.set_int_custom_property("pushed", 1)
        pushed.set_string_custom_property("pushed_destination", os.path.join(base, version))
        pushed.set_string_custom_property("pushed_version", version)


def push_model(model: str, base: str) -> str:
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
    if newest and _digests(os.path.join(base, str(newest))) == _digests(model):
        return str(newest)
    version = str(max(int(time.time()), newest + 1))  # a clock that was set back must not make an older version
    publish_model(model, os.path.join(base, version))
    return version


def publish_model(model: str, version: str) -> None:
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
        _copy_tree(model, partial)
        storage.remove_tree(version)
        storage.rename(partial, version)
    except BaseException:
        storage.remove_tree(partial)
        raise


def _copy_tree(source: str, target: str) -> None:
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


def _digests(directory: str) -> dict[str, tuple[int, str]]:
    """Returns relative path -> size and sha256 of every file."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
    return {os.path.relpath(path, directory): storage.digest(path) for path in paths}


class Pusher(tfx.components.Pusher):
    """Pushes the model if it was blessed.

    Example:
      pusher = Pusher(
          model=trainer.outputs["model"], model_blessing=evaluator.outputs["blessing"], push_destination=destination
      )

    Outputs:
      pushed_model: `PushedModel`; where it was pushed to is its property `pushed_destination`.
    """

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(PusherExecutor)

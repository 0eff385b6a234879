"""The newest blessed model that was made before another one, and is of the same kind.

TFX's own LatestBlessedModelStrategy knows nothing of the model that is evaluated. Run once more on unchanged inputs it
finds that very model, blessed a moment ago, so Evaluator would miss the cache and compare the model with itself. Nor
does it know classes: TFMA, given a model of fewer classes, fails in the middle, and one of as many but other classes
is compared as if an index meant the same in both.
"""

from __future__ import annotations

import logging
import os

from ml_metadata import MetadataStore
from tfx import types
from tfx.components.evaluator import constants
from tfx.dsl.components.common import resolver
from tfx.utils import path_utils

from beam_jobs import storage

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

    def resolve_artifacts(
        self, store: MetadataStore, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]]:
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

"""The dataset before the one of this run: the resolver, for pipelines, and its strategy."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx import v1 as tfx
from tfx.types import standard_artifacts

from components.artifacts import Artifacts, DatasetVerdict
from components.image_example_gen import DIGEST_KEY

CURRENT_KEY = "examples"
PREVIOUS_KEY = "previous"
VERDICTS_KEY = "verdicts"


class PreviousSpanStrategy(tfx.dsl.experimental.ResolverStrategy):
    """Resolves the newest dataset that came before the current one, has another content and passed the gate.

    Datasets are ordered by span, version and id. An older span that runs again has therefore the same one before it as
    when it ran first, and so has a run that is served from the cache. Without spans the order is that of their making.

    A dataset that the gate stopped is no baseline: the next one like it would show no drift, and pass.
    """

    def resolve_artifacts(self, store: Any, input_dict: Artifacts) -> Artifacts:
        """Returns the same keys, with at most one dataset under `previous` and no verdict.

        Args:
          store: ML Metadata.
          input_dict: `examples` of this run, `previous`: all of this pipeline, `verdicts`: all of this pipeline.
        """
        current = input_dict[CURRENT_KEY]
        passed = {_digest(verdict) for verdict in input_dict[VERDICTS_KEY]}
        earlier = [artifact for artifact in input_dict[PREVIOUS_KEY] if current and _is_before(artifact, current[0])]
        known = [artifact for artifact in earlier if _digest(artifact) and _digest(artifact) in passed]
        newest = [max(known, key=_place)] if known else []
        return {CURRENT_KEY: current, PREVIOUS_KEY: newest, VERDICTS_KEY: []}


def _is_before(artifact: types.Artifact, current: types.Artifact) -> bool:
    return _place(artifact) < _place(current) and _digest(artifact) != _digest(current)


def _place(artifact: types.Artifact) -> tuple[int, int, int]:
    return artifact.span, artifact.version, artifact.id


def _digest(artifact: types.Artifact) -> str:
    return artifact.get_string_custom_property(DIGEST_KEY)


NODE_ID = "PreviousSpan"


def previous_examples(examples: types.BaseChannel) -> tfx.dsl.Resolver:
    """Returns the node that finds the dataset before this one; it belongs into the components of the pipeline.

    Example:
      previous = previous_examples(example_gen.outputs["examples"])
      gate = DatasetGate(examples, anomalies, limits, baseline_examples=previous.outputs["previous"])

    Args:
      examples: the output of the component that makes the datasets. The pipeline needs a `DatasetGate` too: a dataset
        counts when it passed.

    Outputs:
      previous: `Examples`; empty on the first run, and until another dataset passed.
    """
    # Without its output key: two channels of one producer and key share a name in TFX, and the resolver fails.
    every = tfx.dsl.Channel(type=standard_artifacts.Examples, producer_component_id=examples.producer_component_id)
    channels = {CURRENT_KEY: examples, PREVIOUS_KEY: every, VERDICTS_KEY: tfx.dsl.Channel(type=DatasetVerdict)}
    return tfx.dsl.Resolver(strategy_class=PreviousSpanStrategy, **channels).with_id(NODE_ID)

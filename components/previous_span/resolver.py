"""The resolver of the previous dataset of a pipeline, and its strategy."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Channel, standard_artifacts

from components.artifacts import Artifacts, DatasetVerdict
from components.image_example_gen import DIGEST_KEY

CURRENT_KEY = "examples"
PREVIOUS_KEY = "previous"
VERDICTS_KEY = "verdicts"


class PreviousSpanStrategy(ResolverStrategy):
    """Resolves the newest dataset that precedes the current one, has another digest and has a verdict of the gate.

    Datasets are ordered by span, version and id; without spans, this is the order of creation. Therefore, the previous
    dataset is the same when an older span is processed again, and when the output of a run comes from the cache.

    A dataset without a verdict is no baseline, because the gate stopped: a similar bad dataset would have no drift.
    """

    def resolve_artifacts(self, store: Any, input_dict: Artifacts) -> Artifacts:
        """Returns the same keys, with at most one dataset under `previous` and no verdicts.

        Args:
          store: store of ML Metadata.
          input_dict: the dataset of this run under `examples`, all datasets of the pipeline under `previous`, all
            verdicts under `verdicts`, each with the digest of its dataset.
        """
        current = input_dict[CURRENT_KEY]
        verdict_digests = {_digest(verdict) for verdict in input_dict[VERDICTS_KEY]} - {"", *map(_digest, current)}
        candidates = [
            artifact
            for artifact in input_dict[PREVIOUS_KEY]
            if current and _sort_key(artifact) < _sort_key(current[0]) and _digest(artifact) in verdict_digests
        ]
        previous = [max(candidates, key=_sort_key)] if candidates else []
        return {CURRENT_KEY: current, PREVIOUS_KEY: previous, VERDICTS_KEY: []}


def _sort_key(artifact: types.Artifact) -> tuple[int, int, int]:
    return artifact.span, artifact.version, artifact.id


def _digest(artifact: types.Artifact) -> str:
    return artifact.get_string_custom_property(DIGEST_KEY)


NODE_ID = "PreviousSpan"


def previous_examples(examples: types.BaseChannel) -> Resolver:
    """Returns the resolver of the previous dataset, a node to add to the components of the pipeline.

    Example:
      previous = previous_examples(example_gen.outputs["examples"])
      gate = DatasetGate(examples, anomalies, limits, baseline_examples=previous.outputs["previous"])

    Args:
      examples: output of the component that creates the datasets. The pipeline also needs a `DatasetGate`, because only
        datasets with a verdict are resolved.

    Outputs:
      previous: `Examples`, at most one; empty until another dataset has a verdict.
    """
    # No output key: TFX gives two channels of the same producer and key one name, with which the resolver fails.
    all_examples = Channel(type=standard_artifacts.Examples, producer_component_id=examples.producer_component_id)
    channels = {CURRENT_KEY: examples, PREVIOUS_KEY: all_examples, VERDICTS_KEY: Channel(type=DatasetVerdict)}
    return Resolver(strategy_class=PreviousSpanStrategy, **channels).with_id(NODE_ID)

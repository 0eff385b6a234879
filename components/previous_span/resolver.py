"""The resolver, for pipelines."""

from __future__ import annotations

from tfx import types
from tfx import v1 as tfx
from tfx.types import standard_artifacts

from components.artifacts import DatasetVerdict
from components.previous_span.strategy import CURRENT_KEY, PREVIOUS_KEY, VERDICTS_KEY, PreviousSpanStrategy

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

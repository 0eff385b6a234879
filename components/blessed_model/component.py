"""The node that hands Evaluator its baseline."""

from __future__ import annotations

from tfx import types
from tfx.dsl.components.common.resolver import Resolver
from tfx.types import standard_artifacts

from components.blessed_model.strategy import BLESSING_KEY, CANDIDATE_KEY, MODEL_KEY, BlessedBeforeStrategy

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

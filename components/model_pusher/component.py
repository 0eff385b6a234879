"""Pusher as TFX has it, with an executor that pushes a model whole or not at all."""

from __future__ import annotations

from tfx import v1 as tfx
from tfx.dsl.components.base import executor_spec

from components.model_pusher import executor


class Pusher(tfx.components.Pusher):
    """Pushes the model if it was blessed.

    Example:
      pusher = Pusher(
          model=trainer.outputs["model"], model_blessing=evaluator.outputs["blessing"], push_destination=destination
      )

    Outputs:
      pushed_model: `PushedModel`; where it was pushed to is its property `pushed_destination`.
    """

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(executor.Executor)

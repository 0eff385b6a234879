from __future__ import annotations

from tfx import types
from tfx import v1 as tfx
from tfx.types import standard_artifacts

from components.blessed_model import Pusher, PusherExecutor


def test_it_is_the_pusher_of_tfx_with_another_executor():
    destination = tfx.proto.PushDestination(filesystem=tfx.proto.PushDestination.Filesystem(base_directory="serving"))
    pusher = Pusher(model=types.Channel(type=standard_artifacts.Model), push_destination=destination)
    assert pusher.id == "Pusher"
    assert pusher.executor_spec.executor_class is PusherExecutor
    assert pusher.outputs["pushed_model"].type is standard_artifacts.PushedModel

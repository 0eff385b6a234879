"""What `feedline run` needs of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.common import child_python, system
from beam_jobs.common.strings import size
from beam_jobs.errors import FeedlineError
from beam_jobs.storage import is_remote
from pipeline import doctor
from pipeline.doctor import Check

_LEAST_MEMORY_BYTES = 2e9  # of a run of small images, most of it for TensorFlow and TFX themselves
_LOADING_S = 250.0
_LOAD = """
import json, pipeline.pipeline, tensorflow
names = [device.name for device in tensorflow.config.list_physical_devices("GPU")]
print(json.dumps({"gpus": names, "tensorflow": tensorflow.__version__}))
"""


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about this machine, what takes long last."""
    yield from doctor.basics("tfx")
    yield memory()
    yield doctor.writable("root", str(settings.get("root") or "."), "feedline run --root DIR")
    yield configuration(settings)
    yield beam()
    yield from tensorflow()


def memory() -> Check:
    """Checks the free memory, of the machine or of the container that this is."""
    free = system.free_bytes()
    return Check(
        name="memory",
        ok=free >= _LEAST_MEMORY_BYTES,
        detail=f"{size(free)} free, a run takes 2 GB and more, by image and batch size",
        remedy="feedline run --set input.batch_size=16 --set input.cache=none",
        needed=False,
    )


def configuration(settings: Mapping[str, Any]) -> Check:
    """Checks what a run checks before it starts; a source elsewhere is not asked."""
    found = doctor.configured(settings)
    if not settings or not found.ok:
        return found
    from pipeline.config import build
    from pipeline.runners import local

    config = build(settings)
    if is_remote(config.pattern):
        return found
    try:
        local.preflight(config)
    except FeedlineError as error:
        return Check(name=found.name, ok=False, detail=str(error), remedy=doctor.SHOW)
    return found


def beam() -> Check:
    """Runs a pipeline of one element on Beam's in-process runner."""
    try:
        import apache_beam

        from beam_jobs.runners.beam_job import local_pipeline

        pipeline = local_pipeline()
        pipeline | apache_beam.Create([1]) | apache_beam.Map(str)
        pipeline.run().wait_until_finish()
    except Exception as error:  # noqa: BLE001 - of whatever is broken
        reason = doctor.last_line(str(error)) or type(error).__name__
        remedy = doctor.install_command("--force-reinstall", "apache-beam>=2.74,<3")
        return Check(name="beam", ok=False, detail=f"the in-process runner does not start: {reason}", remedy=remedy)
    return Check(name="beam", ok=True, detail=f"{apache_beam.__version__}, the in-process runner starts")


def tensorflow() -> Iterator[Check]:
    """Loads TensorFlow and TFX as a run does, in a process that may die of it, and asks for GPUs."""
    code, output, trouble = doctor.output_of(child_python.command(_LOAD, flags=("-W", "ignore")), _LOADING_S)
    if code:
        why = doctor.last_line(trouble) or f"it ended with code {code}"
        remedy = doctor.install_command("--force-reinstall", "feedline[tfx]")
        yield Check(name="tensorflow and tfx", ok=False, detail=f"they do not load: {why}", remedy=remedy)
        return
    facts = json.loads(doctor.last_line(output))
    yield Check(name="tensorflow and tfx", ok=True, detail=f"they load, TensorFlow {facts['tensorflow']}")
    if os.path.exists("/dev/nvidia0"):
        names = ", ".join(name.rpartition("physical_device:")[2] for name in facts["gpus"])
        remedy = doctor.install_command(f"tensorflow[and-cuda]=={facts['tensorflow']}")
        detail = names or "there is one, and TensorFlow does not see it"
        yield Check(name="gpu", ok=bool(names), detail=detail, remedy=remedy, needed=False)

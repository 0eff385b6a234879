"""Checks for `feedline run` on this machine."""

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

_MIN_MEMORY_BYTES = 2e9  # for a run with small images, mainly for TensorFlow and TFX
_LOAD_TIMEOUT_S = 250.0
_LOAD_CODE = """
import json, pipeline.pipeline, tensorflow
names = [device.name for device in tensorflow.config.list_physical_devices("GPU")]
print(json.dumps({"gpus": names, "tensorflow": tensorflow.__version__}))
"""


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Checks this machine; slow checks are last."""
    yield from doctor.package_checks("tfx")
    yield memory()
    yield doctor.writable("root", str(settings.get("root") or "."), "feedline run --root DIR")
    yield configuration(settings)
    yield beam()
    yield from tensorflow()


def memory() -> Check:
    """Checks the free memory of the machine or the container."""
    free_bytes = system.free_bytes()
    detail = f"{size(free_bytes)} free, a run needs 2 GB or more, depending on image and batch size"
    remedy = "feedline run --set input.batch_size=16 --set input.cache=none"
    return Check(name="memory", ok=free_bytes >= _MIN_MEMORY_BYTES, detail=detail, remedy=remedy, needed=False)


def configuration(settings: Mapping[str, Any]) -> Check:
    """Runs the checks that `feedline run` makes first, except for a remote source."""
    check = doctor.check_configuration(settings)
    if not settings or not check.ok:
        return check
    from pipeline.config import build
    from pipeline.runners import local

    config = build(settings)
    if is_remote(config.pattern):
        return check
    try:
        local.preflight(config)
    except FeedlineError as error:
        return Check(name=check.name, ok=False, detail=str(error), remedy=doctor.SHOW_CONFIG)
    return check


def beam() -> Check:
    """Runs a pipeline of one element on Beam's in-process runner."""
    try:
        import apache_beam

        from beam_jobs.runners.beam_job import local_pipeline

        pipeline = local_pipeline()
        pipeline | apache_beam.Create([1]) | apache_beam.Map(str)
        pipeline.run().wait_until_finish()
    except Exception as error:  # noqa: BLE001 - any error is a failed check
        reason = doctor.last_line(str(error)) or type(error).__name__
        remedy = doctor.install_command("--force-reinstall", "apache-beam>=2.74,<3")
        return Check(name="beam", ok=False, detail=f"the in-process runner does not start: {reason}", remedy=remedy)
    return Check(name="beam", ok=True, detail=f"{apache_beam.__version__}, the in-process runner starts")


def tensorflow() -> Iterator[Check]:
    """Loads TensorFlow and TFX in another process, which may crash, and lists the GPUs."""
    code, output, errors = doctor.run_program(child_python.command(_LOAD_CODE, flags=("-W", "ignore")), _LOAD_TIMEOUT_S)
    if code:
        reason = doctor.last_line(errors) or f"it ended with code {code}"
        remedy = doctor.install_command("--force-reinstall", "feedline[tfx]")
        yield Check(name="tensorflow and tfx", ok=False, detail=f"they do not load: {reason}", remedy=remedy)
        return
    properties = json.loads(doctor.last_line(output))
    yield Check(name="tensorflow and tfx", ok=True, detail=f"they load, TensorFlow {properties['tensorflow']}")
    if os.path.exists("/dev/nvidia0"):
        names = ", ".join(name.rpartition("physical_device:")[2] for name in properties["gpus"])
        remedy = doctor.install_command(f"tensorflow[and-cuda]=={properties['tensorflow']}")
        detail = names or "the machine has a GPU, but TensorFlow does not find it"
        yield Check(name="gpu", ok=bool(names), detail=detail, remedy=remedy, needed=False)

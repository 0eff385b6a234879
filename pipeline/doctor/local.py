"""What `feedline run` needs of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.errors import FeedlineError
from beam_jobs.storage import is_remote
from pipeline.doctor import Check, common

_LEAST_MEMORY_BYTES = 4e9  # a run of small images takes half of that, most of it for TensorFlow and TFX themselves
_LEAST_ROOT_BYTES = 5e9
_LEAST_SCRATCH_BYTES = 1e9
_CONTAINER = "/sys/fs/cgroup"
_LOADING_S = 250.0
_LOAD = """
import importlib.metadata, json, pipeline.pipeline, tensorflow
names = [device.name for device in tensorflow.config.list_physical_devices("GPU")]
cuda = bool(tensorflow.test.is_built_with_cuda())
print(json.dumps({"gpus": names, "cuda": cuda, "tensorflow": tensorflow.__version__}))
"""


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about this machine, what takes long last."""
    yield from common.basics("tfx")
    yield memory()
    yield cores()
    yield common.writable("root", str(settings.get("root") or "."), "feedline run --root DIR", int(_LEAST_ROOT_BYTES))
    yield common.writable("temporary files", tempfile.gettempdir(), "export TMPDIR=DIR", int(_LEAST_SCRATCH_BYTES))
    yield configuration(settings)
    yield beam()
    yield from tensorflow()


def memory(group: str = _CONTAINER) -> Check:
    """Checks the free memory, of the machine or of the container that this is.

    Args:
      group: directory of the cgroup, version 2, that this process sees as its own.
    """
    import psutil

    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no such group, or "max" where it has no limit
        most, used = (int(_text(group, name)) for name in ("memory.max", "memory.current"))
        # As in `trainer.cache`, which loads TensorFlow: files in the page cache count as used, and give way at once.
        inactive = dict(line.split() for line in _text(group, "memory.stat").splitlines()).get("inactive_file", "0")
        free = min(free, max(0, most - used + int(inactive)))
    return Check(
        name="memory",
        ok=free >= _LEAST_MEMORY_BYTES,
        detail=f"{free / 1e9:,.1f} GB free, a run takes 2 GB and more, by image and batch size",
        remedy="feedline run --set input.batch_size=16 --set input.cache=none",
        needed=False,
    )


def _text(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii") as stream:
        return stream.read()


def cores() -> Check:
    """Says how many cores this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check(name="cores", ok=True, detail=str(count))


def configuration(settings: Mapping[str, Any]) -> Check:
    """Checks what a run checks before it starts; a source elsewhere is not asked."""
    found = common.configured(settings)
    if not settings or not found.ok:
        return found
    from pipeline import run_local
    from pipeline.config import build

    config = build(settings)
    if is_remote(config.pattern):
        return found
    try:
        run_local.preflight(config)
    except FeedlineError as error:
        return Check(name=found.name, ok=False, detail=str(error), remedy=common.SHOW)
    return found


def beam() -> Check:
    """Runs a pipeline of one element on Beam's in-process runner."""
    try:
        import apache_beam

        from beam_jobs.jobs import local_pipeline

        pipeline = local_pipeline()
        pipeline | apache_beam.Create([1]) | apache_beam.Map(str)
        pipeline.run().wait_until_finish()
    except Exception as error:  # noqa: BLE001 - of whatever is broken
        said = common.last_line(str(error)) or type(error).__name__
        remedy = common.install("--force-reinstall", "apache-beam>=2.74,<3")
        return Check(name="beam", ok=False, detail=f"the in-process runner does not start: {said}", remedy=remedy)
    return Check(name="beam", ok=True, detail=f"{apache_beam.__version__}, the in-process runner starts")


def tensorflow() -> Iterator[Check]:
    """Loads TensorFlow and TFX as a run does, in a process that may die of it, and asks for GPUs."""
    code, said, trouble = common.output([sys.executable, "-W", "ignore", "-c", _LOAD], _LOADING_S)
    if code:
        why = common.last_line(trouble) or f"it ended with code {code}"
        remedy = common.install("--force-reinstall", "feedline[tfx]")
        yield Check(name="tensorflow and tfx", ok=False, detail=f"they do not load: {why}", remedy=remedy)
        return
    found = json.loads(common.last_line(said))
    yield Check(name="tensorflow and tfx", ok=True, detail=f"they load, TensorFlow {found['tensorflow']}")
    if found["gpus"]:
        yield Check(
            name="gpu", ok=True, detail=", ".join(name.rpartition("physical_device:")[2] for name in found["gpus"])
        )
    elif os.path.exists("/dev/nvidia0"):
        remedy = common.install(f"tensorflow[and-cuda]=={found['tensorflow']}")
        yield Check(
            name="gpu", ok=False, detail="there is one, and TensorFlow does not see it", remedy=remedy, needed=False
        )
    else:
        yield Check(name="gpu", ok=True, detail="none, training uses the CPU")

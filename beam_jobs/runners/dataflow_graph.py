"""The graph of a job as the workers will get it: how large it is, and what is pickled into it.

Works on the proto alone, so that it can be looked at without a service.
"""

from __future__ import annotations

import base64
import bz2
import pickletools
from collections.abc import Iterator
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.python_urns import PICKLED_DOFN_INFO

from beam_jobs.errors import FeedlineError
from beam_jobs.storage import is_remote

_PICKLED_ELEMENT = b"\xff\x80"  # as Beam's coder of any object marks it
MAX_BYTES = 10_000_000  # of the service, for the graph of a job


def check(proto: Any) -> None:
    """Checks a job before it is sent.

    Args:
      proto: `beam_runner_api_pb2.Pipeline`.

    Raises:
      FeedlineError: Dataflow would refuse the job, or its workers could not load it.
    """
    count = proto.ByteSize()
    if count > MAX_BYTES:
        raise FeedlineError(
            f"the graph of the job has {count / 1e6:.1f} MB, Dataflow takes {MAX_BYTES / 1e6:.0f}; it lists every unit "
            "of work, so make fewer of them with a larger --shard-mb, or a larger `bucket_images`"
        )
    for name, payload in functions(proto).items():
        texts = set(words(payload))
        if "__main__" in texts:
            raise FeedlineError(f"{name} holds code of __main__, which no worker can import; move it into a module")
        if here := next((text for text in texts if text.endswith(".parquet") and not is_remote(text)), ""):
            raise FeedlineError(
                f"{here} lies on this machine, where no worker reads it; give an --out in a gs:// bucket"
            )


def functions(proto: Any) -> dict[str, bytes]:
    """Returns the name of every step with code in it -> that code, as Beam pickled it."""
    found = {}
    for transform in proto.components.transforms.values():
        if not transform.spec.urn.startswith("beam:transform:pardo:"):
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if payload.do_fn.urn == PICKLED_DOFN_INFO:
            found[transform.unique_name] = payload.do_fn.payload
    return found


def words(payload: bytes) -> Iterator[str]:
    """Yields every text in some pickled code and its elements, names of modules among them. Nothing is executed."""
    pending = [bz2.decompress(base64.b64decode(payload))]
    while pending:
        for _, argument, _ in pickletools.genops(pending.pop()):
            if isinstance(argument, str):
                yield argument
            elif isinstance(argument, bytes) and argument.startswith(_PICKLED_ELEMENT):
                pending.append(argument[1:])

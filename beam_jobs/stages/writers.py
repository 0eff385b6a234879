"""Writing of shards by several processes of one machine, because encoding a record holds the interpreter lock.

A process writes one shard at a time, with the function that a worker of a cluster calls, and decodes no image. A
process that dies is replaced and its shard is written again: `write.write_shard` is idempotent.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from beam_jobs import storage
from beam_jobs.common import fork_server
from beam_jobs.common.messages import PeerClosed, ReceiveTimeout, receive, send, set_timeout
from beam_jobs.common.process_pool import ChildDied, OwnPool, TooSlow
from beam_jobs.common.system import Progress, local_progress, repeat
from beam_jobs.errors import FeedlineError
from beam_jobs.options import PixelOptions
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages import write
from beam_jobs.stages.write import ShardTask, WriteTask

# With fewer images, this process has written the shards before others have started.
MIN_IMAGES = 4096
_PROGRESS_S = 0.5
_MAX_DEATHS = 3  # number of processes that may die while they write one shard
# Limit of CPU time between two progress messages of a process; a stopped process has ten times as much clock time.
_CPU_LIMIT_S = 60.0

_own = OwnPool(__name__, "the processes that write shards do not start: {}")


def write_or_note(shard: ShardTask, task: WriteTask) -> dict[str, int]:
    """Writes a shard with `write.write_shard`; if that fails, writes a note with the cause.

    Returns:
      name -> number: `written_shards`, `resumed_shards`, `images` and `bytes`; or `failed_shards` alone.

    Raises:
      FeedlineError: the writing processes do not start, or die repeatedly, or the ingest was stopped.
      OSError: a local disk cannot be read or written.
    """
    return _write_in_child(shard, task) if task.processes else _write_here(shard, task)


def _write_here(shard: ShardTask, task: WriteTask) -> dict[str, int]:
    try:
        written = write.write_shard(shard, task)
    except (FeedlineError, OSError) as error:
        if isinstance(error, OSError) and not storage.is_remote(task.out):
            raise  # `disk.explain_errors` adds the cause
        write.write_failure_note(shard, task, error)
        return {"failed_shards": 1}
    sidecar = write.load_sidecar(task.work, shard)
    counts = {"images": sidecar.records, "bytes": sidecar.shard.bytes if written else 0}
    return {**counts, "written_shards": int(written), "resumed_shards": int(not written)}


def _write_in_child(shard: ShardTask, task: WriteTask) -> dict[str, int]:
    request = {"shard": asdict(shard), "task": asdict(task)}
    reported = Progress()
    for _ in range(_MAX_DEATHS):
        try:
            with _own.pool.child(task.processes) as writer:
                writer.ask(request, ())
                while "outcome" not in (response := writer.answer(_CPU_LIMIT_S, may_wait=True)[0]):
                    current = Progress(*response["done"])
                    local_progress.add(Progress(current.images - reported.images, current.bytes - reported.bytes))
                    reported = current
        except (ChildDied, TooSlow) as error:  # the message of `TooSlow` is about the limits of an image
            cause = error if isinstance(error, ChildDied) else ChildDied("it was stopped")
            continue
        return _parse_response(response)
    raise FeedlineError(
        f"the process that writes {shard.split}/{shard.name} ended {_MAX_DEATHS} times ({cause}); make sure that "
        "memory is free and run the ingest again, or use --threads 1, which starts no such process"
    ) from cause


def _parse_response(response: dict[str, Any]) -> dict[str, int]:
    if error := response.get("error"):
        raise OSError(*error)
    if bug := response.get("bug"):
        raise RuntimeError(bug)
    counts: dict[str, int] = response["outcome"]
    return counts


def start(images: int, threads: int) -> None:
    """Starts the processes in the background if they are likely to be used; saves the first shard half a second.

    Args:
      images: number of images before the plan, which may drop some.
      threads: number of threads for all shards.
    """
    if images >= MIN_IMAGES and threads > 1:
        _own.pool.start()


def process_count(task: WriteTask, images: int, shards: Sequence[ShardTask], threads: int) -> int:
    """Returns the number of processes to write local shards with; 0 to write in this process only.

    It is 0 for compressed archives, which each process would unpack again, and for stores, for which threads can wait.

    Args:
      task: parameters of the shards.
      images: number of images.
      shards: the shards.
      threads: number of threads for all shards.
    """
    process_limit = min(threads, len(shards))
    if images < MIN_IMAGES or process_limit < 2:
        return 0
    samples = {shard.split: shard for shard in reversed(shards)}  # one per split, with images in random order
    for shard in samples.values():
        rows = shard.rows.read()
        locations = zip(rows["uri"].to_pylist(), rows["slice"].to_pylist(), strict=True)
        if not task.reader.are_directly_readable(locations):
            return 0
    return process_limit


def close() -> None:
    """Ends all processes, also busy ones; later writes start new processes."""
    _own.close()


def main() -> None:
    """Forks writing processes until the parent process closes the socket."""
    fork_server.run(_serve)


def _serve(connection: socket.socket) -> None:
    """Writes the requested shards until the peer closes the connection or sends no request for a minute."""
    set_timeout(connection, fork_server.IDLE_S)
    try:
        send(connection, {"pid": os.getpid()})
        while True:
            request, _ = receive(connection)
            local_progress.reset()
            with repeat(_PROGRESS_S, lambda: _send_progress(connection)):
                response = _run_request(request)
            _send_progress(connection)
            send(connection, response)
    except (PeerClosed, ReceiveTimeout):
        return


def _send_progress(connection: socket.socket) -> None:
    progress = local_progress.read()
    send(connection, {"done": [progress.images, progress.bytes]})


def _run_request(request: dict[str, Any]) -> dict[str, Any]:
    shard, values = ShardTask.from_json(request["shard"]), request["task"]
    nested_values = {"reader": Reader.from_json(values["reader"]), "pixels": PixelOptions(**values["pixels"])}
    task = WriteTask(**{**values, **nested_values, "labels": tuple(values["labels"]), "threads": 1, "processes": 0})
    try:
        return {"outcome": _write_here(shard, task)}
    except OSError as error:
        number, text, path = error.errno, error.strerror, error.filename
        return {"outcome": {}, "error": [str(error)] if number is None else [number, text, path]}
    except Exception:  # noqa: BLE001 - the job reports the traceback of a bug
        return {"outcome": {}, "bug": traceback.format_exc()}

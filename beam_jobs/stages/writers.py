"""Shards written by several processes of one machine: encoding a record holds the interpreter lock.

A process writes one shard at a time, with the function that a worker of a cluster calls, and decodes nothing. One that
dies is replaced; its shard is written again, which `write.write_shard` allows.
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

# Fewer images are written before the processes have started.
MIN_IMAGES = 4096
_PROGRESS_S = 0.5
_MAX_DEATHS = 3  # of processes that write one shard
# Of computing between two answers, which tell the progress. A process that is stopped has ten times as long.
_SECONDS = 60.0

_own = OwnPool(__name__, "the processes that write shards do not start: {}")


def write_or_note(shard: ShardTask, task: WriteTask) -> dict[str, int]:
    """Writes a shard as `write.write_shard` does, or a note about the image that prevents it.

    Returns:
      name -> number: `written_shards`, `resumed_shards`, `images` and `bytes`; or `failed_shards` alone.

    Raises:
      FeedlineError: the processes of `task.processes` do not start, or die again and again, or the ingest was stopped.
      OSError: a local disk cannot be read or written.
    """
    return _ask(shard, task) if task.processes else _write_here(shard, task)


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


def _ask(shard: ShardTask, task: WriteTask) -> dict[str, int]:
    request = {"shard": asdict(shard), "task": asdict(task)}
    done = Progress()
    for _ in range(_MAX_DEATHS):
        try:
            with _own.pool.child(task.processes) as writer:
                writer.ask(request, ())
                while "outcome" not in (answer := writer.answer(_SECONDS, may_wait=True)[0]):
                    new = Progress(*answer["done"])
                    local_progress.add(Progress(new.images - done.images, new.bytes - done.bytes))
                    done = new
        except (ChildDied, TooSlow) as died:  # the second tells of the limits of an image
            cause = died if isinstance(died, ChildDied) else ChildDied("it was stopped")
            continue
        return _outcome(answer)
    raise FeedlineError(
        f"the process that writes {shard.split}/{shard.name} ended {_MAX_DEATHS} times ({cause}); make sure that "
        "memory is free and run it again, or with --threads 1, which starts no such process"
    ) from cause


def _outcome(answer: dict[str, Any]) -> dict[str, int]:
    if error := answer.get("error"):
        raise OSError(*error)
    if bug := answer.get("bug"):
        raise RuntimeError(bug)
    counts: dict[str, int] = answer["outcome"]
    return counts


def start(images: int, threads: int) -> None:
    """Begins to start the processes if they are likely to be used; the first shard would do it, half a second later.

    Args:
      images: number of images, of which a plan may leave some out.
      threads: number of threads for all shards.
    """
    if images >= MIN_IMAGES and threads > 1:
        _own.pool.start()


def count(task: WriteTask, images: int, shards: Sequence[ShardTask], threads: int) -> int:
    """Returns the number of processes to write local shards with; 0 for none but this one.

    Other processes would unpack a compressed archive again, each of them; a store is waited for in threads.

    Args:
      task: parameters of the shards.
      images: number of images.
      shards: the shards.
      threads: number of threads for all of them.
    """
    number = min(threads, len(shards))
    if images < MIN_IMAGES or number < 2:
        return 0
    first = {shard.split: shard for shard in reversed(shards)}  # of each split, whose images are in a random order
    for shard in first.values():
        rows = shard.rows.read()
        if not task.reader.are_plain(zip(rows["uri"].to_pylist(), rows["slice"].to_pylist(), strict=True)):
            return 0
    return number


def close() -> None:
    """Ends all processes, also busy ones; later calls start new ones."""
    _own.close()


def main() -> None:
    """Forks processes that write, until the parent process closes the socket."""
    fork_server.run(_serve)


def _serve(connection: socket.socket) -> None:
    """Writes the shards that the peer names until it ends or names none for a minute."""
    set_timeout(connection, fork_server.IDLE_S)
    try:
        send(connection, {"pid": os.getpid()})
        while True:
            request, _ = receive(connection)
            local_progress.reset()
            with repeat(_PROGRESS_S, lambda: _send_progress(connection)):
                answer = _answer(request)
            _send_progress(connection)
            send(connection, answer)
    except (PeerClosed, ReceiveTimeout):
        return


def _send_progress(connection: socket.socket) -> None:
    done = local_progress.read()
    send(connection, {"done": [done.images, done.bytes]})


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    shard, values = ShardTask.from_json(request["shard"]), request["task"]
    parts = {"reader": Reader.from_json(values["reader"]), "pixels": PixelOptions(**values["pixels"])}
    task = WriteTask(**{**values, **parts, "labels": tuple(values["labels"]), "threads": 1, "processes": 0})
    try:
        return {"outcome": _write_here(shard, task)}
    except OSError as error:
        number, text, path = error.errno, error.strerror, error.filename
        return {"outcome": {}, "error": [str(error)] if number is None else [number, text, path]}
    except Exception:  # noqa: BLE001 - of a bug of ours the job says what it is
        return {"outcome": {}, "bug": traceback.format_exc()}

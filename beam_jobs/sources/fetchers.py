"""Reads images in a given order, with many requests at a time.

Images of web servers are fetched by several processes of one machine, one for each core: the threads of a single
process would wait for its interpreter lock. The processes return the bytes to their parent, so processes that decode
open no connection. Together, the processes keep the limit of requests to a host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from beam_jobs.common import fork_server
from beam_jobs.common.messages import PeerClosed, ReceiveTimeout, receive, send, set_timeout
from beam_jobs.common.process_pool import Child, ChildDied, OwnPool, TooSlow
from beam_jobs.common.system import map_ordered
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.rejects import RejectReason
from beam_jobs.sources import http_fetch
from beam_jobs.sources.image_reader import Reader

Content = bytes | BadImage | Unreadable  # bytes of an image, or the error of reading it
Place = tuple[str, str]  # uri and slice of an image

MIN_IMAGES = 256  # fewer images would be fetched before the processes have started
_BATCH_IMAGES = 8  # most images in a message to a process
# Limit of the CPU time for a batch; requests have their own limits. Only a stopped process has a limit of clock time.
_ANSWER_CPU_SECONDS = 60.0

_own = OwnPool(__name__, "the processes that fetch images do not start: {}")


def read_all(reader: Reader, places: Sequence[Place], cores: int) -> Generator[Content, None, None]:
    """Yields the bytes that `reader.read` returns for each place, or its error, in the order of the places.

    At most twice as many images as parallel requests are read ahead. When one of several processes dies or is stopped,
    the calling process reads the remaining images.

    Args:
      reader: reads the images.
      places: uri and slice of each image.
      cores: number of CPU cores to use.

    Raises:
      FeedlineError: the processes do not start, or the ingest was stopped.
      SourceError: a compressed container cannot be unpacked on this machine.
    """
    threads, read_count = reader.threads(places, cores), 0
    processes = min(cores, reader.http.per_host) if len(places) >= MIN_IMAGES else 0
    if processes > 1 and all(http_fetch.is_url(uri) for uri, _ in places):
        with contextlib.suppress(ChildDied, TooSlow), _own.pool.children(processes) as children:
            for content in _fetch_all(children, reader, places, max(1, threads // processes)):
                yield content
                read_count += 1
    yield from map_ordered(partial(_read, reader=reader), places[read_count:], threads)


def _read(place: Place, reader: Reader) -> Content:
    try:
        return reader.read(*place)
    except (BadImage, Unreadable) as error:
        return error


def _fetch_all(children: Sequence[Child], reader: Reader, places: Sequence[Place], threads: int) -> Iterator[Content]:
    """Yields the contents in order. Children get batches in turn, each its next batch before it has finished the last.

    Raises:
      ChildDied: a child has died.
      TooSlow: a child is stopped, or computes too long.
    """
    child_count, batch_size = len(children), min(_BATCH_IMAGES, threads)
    headers = []
    for number in range(child_count):  # divides the limit of requests to a host, without a remainder
        per_host = (reader.http.per_host + number) // child_count
        values = asdict(replace(reader, http=replace(reader.http, per_host=per_host)))
        headers.append({"reader": values, "threads": threads})
    pending: deque[tuple[Child, int]] = deque()
    for number, start in enumerate(range(0, len(places), batch_size)):
        batch, child = places[start : start + batch_size], children[number % child_count]
        child.ask({**headers[number % child_count], "places": batch}, ())
        pending.append((child, len(batch)))
        if len(pending) == child_count * (2 * threads // batch_size):  # twice as many images as requests
            yield from _receive_contents(*pending.popleft())
    for child, length in pending:
        yield from _receive_contents(child, length)


def _receive_contents(child: Child, image_count: int) -> list[Content]:
    """Returns the contents of the oldest batch that a child has not returned."""
    header, bodies = child.answer(_ANSWER_CPU_SECONDS, may_wait=True)
    if bug := header.get("bug"):
        raise RuntimeError(bug)
    contents: list[Content] = []
    for outcome, body in zip(header["answers"], bodies, strict=True):
        if "bad" in outcome:
            reason, detail, length = outcome["bad"]
            contents.append(BadImage(RejectReason(reason), detail, length))
        else:
            contents.append(Unreadable(outcome["unreadable"]) if "unreadable" in outcome else body)
    if len(contents) != image_count:
        raise RuntimeError(f"a process returned {len(contents)} contents for {image_count} images")
    return contents


def main() -> None:
    """Forks processes that fetch, until the parent process closes the socket."""
    fork_server.run(_serve)


def _serve(connection: socket.socket) -> None:
    """Reads the images of each request, until the peer ends or sends no request for a minute."""
    set_timeout(connection, fork_server.IDLE_S)
    batches: SimpleQueue[list[Future[Content]]] = SimpleQueue()
    unanswered: deque[None] = deque()  # an item for each batch without a response
    send(connection, {"pid": os.getpid()})
    threading.Thread(target=_send_all, args=(connection, batches, unanswered), daemon=True).start()
    pool = None
    while True:
        try:
            request, _ = receive(connection)
        except PeerClosed:
            return
        except ReceiveTimeout:
            if unanswered:
                continue
            return
        pool = pool or ThreadPoolExecutor(request["threads"])
        read = partial(_read, reader=Reader.from_json(request["reader"]))
        unanswered.append(None)
        batches.put([pool.submit(read, tuple(place)) for place in request["places"]])


def _send_all(connection: socket.socket, batches: SimpleQueue[list[Future[Content]]], unanswered: deque[None]) -> None:
    try:
        while True:
            send(connection, *_pack(batches.get()))
            unanswered.pop()
    finally:
        os._exit(1)  # otherwise the peer would wait for responses forever


def _pack(futures: list[Future[Content]]) -> tuple[Any, ...]:
    """Returns header and bodies of the response to a batch."""
    outcomes: list[dict[str, Any]] = []
    bodies = []
    try:
        for content in (future.result() for future in futures):
            bodies.append(content if isinstance(content, bytes) else b"")
            if isinstance(content, BadImage):
                outcomes.append({"bad": [content.reason.value, content.detail, content.size]})
            else:
                outcomes.append({"unreadable": str(content)} if isinstance(content, Unreadable) else {})
    except Exception:  # noqa: BLE001 - the job reports the traceback of a bug
        return ({"bug": traceback.format_exc()},)
    return ({"answers": outcomes}, *bodies)

"""Reading the images of a bucket one after the other, with many requests at a time.

Images of web servers are fetched by several processes of one machine, one for each core: the threads of a single one
wait for its interpreter lock. The process that started them passes the bytes on, so a process that decodes opens no
connection. All of them together keep the limit of requests to a host.
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

Content = bytes | BadImage | Unreadable
Place = tuple[str, str]  # uri and slice of an image

MIN_IMAGES = 256  # fewer are fetched before the processes have started
_LOT = 8  # images of a message at most
# Of computing for an answer: requests have limits of their own. A process that is stopped has ten times as long.
_SECONDS = 60.0

_own = OwnPool(__name__, "the processes that fetch images do not start: {}")


def read_all(reader: Reader, places: Sequence[Place], cores: int) -> Generator[Content, None, None]:
    """Yields what `reader.read` returns for each place, or its error, in their order.

    At most twice as many images as requests wait for their turn. When one of several processes dies or is stopped, this
    one reads the rest.

    Args:
      reader: reads the images.
      places: uri and slice of each image.
      cores: number of threads that compute.

    Raises:
      FeedlineError: the processes do not start, or the ingest was stopped.
      SourceError: a compressed container cannot be unpacked on this machine.
    """
    threads, done = reader.threads(places, cores), 0
    processes = min(cores, reader.http.per_host) if len(places) >= MIN_IMAGES else 0
    if processes > 1 and all(http_fetch.is_url(uri) for uri, _ in places):
        with contextlib.suppress(ChildDied, TooSlow), _own.pool.children(processes) as children:
            for content in _ask(children, reader, places, max(1, threads // processes)):
                yield content
                done += 1
    yield from map_ordered(partial(_read, reader=reader), places[done:], threads)


def _read(place: Place, reader: Reader) -> Content:
    try:
        return reader.read(*place)
    except (BadImage, Unreadable) as error:
        return error


def _ask(children: Sequence[Child], reader: Reader, places: Sequence[Place], threads: int) -> Iterator[Content]:
    """Yields the contents that children return in turn; each gets its next lot before it has answered the one before.

    Raises:
      ChildDied: a child has died.
      TooSlow: a child is stopped.
    """
    count, size = len(children), min(_LOT, threads)
    headers = []
    for number in range(count):  # the limit of a host is divided without a rest
        per_host = (reader.http.per_host + number) // count
        values = asdict(replace(reader, http=replace(reader.http, per_host=per_host)))
        headers.append({"reader": values, "threads": threads})
    asked: deque[tuple[Child, int]] = deque()
    for number, start in enumerate(range(0, len(places), size)):
        lot, child = places[start : start + size], children[number % count]
        child.ask({**headers[number % count], "places": lot}, ())
        asked.append((child, len(lot)))
        if len(asked) == count * (2 * threads // size):
            yield from _answer(*asked.popleft())
    for child, length in asked:
        yield from _answer(child, length)


def _answer(child: Child, size: int) -> list[Content]:
    header, bodies = child.answer(_SECONDS, may_wait=True)
    if bug := header.get("bug"):
        raise RuntimeError(bug)
    contents: list[Content] = []
    for answer, body in zip(header["answers"], bodies, strict=True):
        if "bad" in answer:
            reason, detail, length = answer["bad"]
            contents.append(BadImage(RejectReason(reason), detail, length))
        else:
            contents.append(Unreadable(answer["unreadable"]) if "unreadable" in answer else body)
    if len(contents) != size:
        raise RuntimeError(f"{len(contents)} contents of {size} images")
    return contents


def main() -> None:
    """Forks processes that fetch, until the parent process closes the socket."""
    fork_server.run(_serve)


def _serve(connection: socket.socket) -> None:
    """Reads the images that the peer names until it ends or names none for a minute."""
    set_timeout(connection, fork_server.IDLE_S)
    answers: SimpleQueue[list[Future[Content]]] = SimpleQueue()
    unanswered: deque[None] = deque()  # an item for each lot
    send(connection, {"pid": os.getpid()})
    threading.Thread(target=_send_all, args=(connection, answers, unanswered), daemon=True).start()
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
        answers.put([pool.submit(read, tuple(place)) for place in request["places"]])


def _send_all(connection: socket.socket, answers: SimpleQueue[list[Future[Content]]], unanswered: deque[None]) -> None:
    try:
        while True:
            send(connection, *_pack(answers.get()))
            unanswered.pop()
    finally:
        os._exit(1)  # the peer would wait for answers forever


def _pack(futures: list[Future[Content]]) -> tuple[Any, ...]:
    """Returns header and bodies of the answer about a lot."""
    answers: list[dict[str, Any]] = []
    bodies = []
    try:
        for content in (future.result() for future in futures):
            bodies.append(content if isinstance(content, bytes) else b"")
            if isinstance(content, BadImage):
                answers.append({"bad": [content.reason.value, content.detail, content.size]})
            else:
                answers.append({"unreadable": str(content)} if isinstance(content, Unreadable) else {})
    except Exception:  # noqa: BLE001 - of a bug of ours the job says what it is
        return ({"bug": traceback.format_exc()},)
    return ({"answers": answers}, *bodies)

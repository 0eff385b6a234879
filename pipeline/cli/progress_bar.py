"""How far a stage is: a bar on a terminal, a plain line now and then anywhere else. Both on standard error."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from beam_jobs.common.concurrency import Progress
from pipeline.cli.common import say

_BAR_SECONDS = 0.2
_LINE_SECONDS = 15.0


@contextlib.contextmanager
def watch(stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
    """Shows images done, images/s, MB/s, rejects and the time left while the block runs; a `jobs.Watch`.

    Args:
      stage: its name.
      total: what it will have done; `images` 0 when it is unknown.
      read: tells what is done.
    """
    started = time.monotonic()

    def line() -> str:
        return describe(read(), total, time.monotonic() - started)

    if sys.stderr.isatty():
        shown = _bar(stage, total, read, line)
    else:
        shown = _every(_LINE_SECONDS, lambda: say(f"{stage}: {line()}"))
    with shown:
        yield


def describe(done: Progress, total: Progress, seconds: float) -> str:
    """Returns one line about how far a stage is.

    Args:
      done: what is done.
      total: what will be done; `images` 0 when it is unknown.
      seconds: since the stage began.
    """
    rate = done.images / seconds if seconds > 0 else 0.0
    known = f" of {total.images:,}" if total.images else ""
    parts = [f"{done.images:,}{known} images", f"{rate:,.0f} images/s"]
    parts.append(f"{done.bytes / 1e6 / seconds if seconds > 0 else 0:,.1f} MB/s")
    if done.rejects:
        parts.append(f"{done.rejects:,} rejected")
    if rate and total.images > done.images:
        parts.append(f"{_clock((total.images - done.images) / rate)} left")
    return ", ".join(parts)


@contextlib.contextmanager
def _bar(stage: str, total: Progress, read: Callable[[], Progress], line: Callable[[], str]) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(stage, total=total.images or None, line="")
        with _every(_BAR_SECONDS, lambda: bars.update(task, completed=read().images, line=line())):
            yield


@contextlib.contextmanager
def _every(seconds: float, show: Callable[[], object]) -> Iterator[None]:
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(seconds):
            show()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

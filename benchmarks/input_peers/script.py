"""Base of the scripts of the peers. Standard library only, because it runs in the environment of each peer."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.script import class_indices, list_images

BATCH = 64
_WARM_UP_SHARE = 0.25  # of the timed images; it covers the start of worker processes, compilation and read-ahead
_MARKER = ".written"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work of every peer per image; random numbers differ.

    Attributes:
      side_px: height and width of the images of a batch.
      dtype: dtype of the images of a batch.
      what: description.
    """

    side_px: int
    dtype: str
    what: str


TASKS: Mapping[str, Task] = {
    "photos": Task(
        side_px=224, dtype="uint8", what="decode, random crop of 8-100 % at 3:4 to 4:3, resize to 224, flip; uint8"
    ),
    "cifar": Task(
        side_px=32,
        dtype="float32",
        what="decode PNG, pad 4, random crop 32, flip, cutout 8, normalise; float32",
    ),
}
# Of the 50,000 training images of CIFAR-10, divided by 255.
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # ranges of a random crop, after Szegedy et al. (2015)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a peer.

    Attributes:
      source: class folders of images.
      data: directory of the images in the format of the peer; shared by its runs.
      task: name in `TASKS`.
      threads: number of worker threads or processes: one per core.
      kind: kind of the script to run; empty for a script without kinds.
    """

    source: Path
    data: Path
    task: str
    threads: int
    kind: str = ""

    def files(self) -> list[Path]:
        """Returns the images, in the order of `list_images`."""
        return list_images(self.source)

    def labels(self) -> dict[str, int]:
        """Returns class name -> index."""
        return class_indices(self.files())


@dataclass(frozen=True, kw_only=True)
class Script:
    """One peer.

    Attributes:
      peer: name in the results.
      distribution: installed package whose version is reported.
      open: task -> function that imports the library and returns infinite batches of shuffled images.
      note: short description of the work.
      write: converts the images to the format of the peer, once for all runs; None for a peer that reads the files.
      kinds: kinds of the script; the first is the default.
    """

    peer: str
    distribution: str
    open: Mapping[str, Callable[[Job], Iterator[Any]]]
    note: str
    write: Callable[[Job], None] | None = None
    kinds: tuple[str, ...] = ()

    def main(self) -> None:
        """Runs once with the arguments of the command line, and prints one line of JSON."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.input_peers.peer_{self.peer}")
        parser.add_argument("--source", type=Path, required=True, help="class folders of images")
        parser.add_argument("--data", type=Path, required=True, help="directory of the peer's own format, kept")
        parser.add_argument("--out", type=Path, help="taken from every peer, and used by none")
        parser.add_argument("--count", type=int, required=True, help=f"images to time, a multiple of {BATCH}")
        parser.add_argument("--task", choices=tuple(self.open), default="photos")
        parser.add_argument("--kind", choices=self.kinds or ("",), default=self.kinds[0] if self.kinds else "")
        arguments = parser.parse_args()
        job = Job(
            source=arguments.source.absolute(),
            data=arguments.data.absolute(),
            task=arguments.task,
            threads=os.cpu_count() or 1,
            kind=arguments.kind,
        )
        images, seconds = self.run(job, arguments.count)
        result = {"peer": self.peer, "images": images, "seconds": seconds}
        print(json.dumps(result | {"version": metadata.version(self.distribution), "note": self.note}), flush=True)
        # Skips the clean-up of worker processes and library threads, which may hang and is not measured.
        os._exit(0)

    def run(self, job: Job, count: int) -> tuple[int, float]:
        """Returns the number of timed images, and their time in seconds."""
        if self.write:
            write_once(job, self.write)
        batches = self.open[job.task](job)
        check(next(batches), TASKS[job.task])
        timed(batches, int(count * _WARM_UP_SHARE))
        return timed(batches, count)


def timed(batches: Iterator[Any], count: int) -> tuple[int, float]:
    """Reads batches of at least `count` images; returns the number of images, and the time in seconds."""
    images = 0
    started = time.perf_counter()
    while images < count:
        images += len(next(batches))
    return images, time.perf_counter() - started


def check(batch: Any, task: Task) -> None:
    """Raises `SystemExit` unless shape and dtype of a batch match the task, channels first or last."""
    side = task.side_px
    # `torch.uint8` has no name.
    shape, dtype = tuple(batch.shape), getattr(batch.dtype, "name", str(batch.dtype).rpartition(".")[2])
    if shape not in {(BATCH, side, side, 3), (BATCH, 3, side, side)} or dtype != task.dtype:
        raise SystemExit(f"a batch is {dtype}{list(shape)}; the task asks for {task.dtype}[{BATCH}, {side}, {side}, 3]")


def write_once(job: Job, write: Callable[[Job], None]) -> None:
    """Converts the images to the format of the peer, unless the data of the same files exists."""
    marker = job.data / _MARKER
    digest = hashlib.sha256("\n".join(map(_identity, job.files())).encode()).hexdigest()
    if marker.is_file() and marker.read_text() == digest:
        return
    shutil.rmtree(job.data, ignore_errors=True)
    job.data.mkdir(parents=True)
    write(job)
    marker.write_text(digest)


def _identity(path: Path) -> str:
    facts = path.stat()
    return f"{path.parent.name}/{path.name} {facts.st_size} {facts.st_mtime_ns}"

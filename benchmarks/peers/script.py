"""Base of the scripts of the peers. Imports only the standard library, as the environments of the peers differ."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks import serve

Work = Callable[[], int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a peer.

    Attributes:
      source: class folders with exactly the images of this run.
      out: empty directory for the result.
      url: URL of the served `source`, with a slash at the end; empty for peers that read files.
      kind: kind of the script to run; empty for a script without kinds.
    """

    source: Path
    out: Path
    url: str = ""
    kind: str = ""

    def files(self) -> list[Path]:
        """Returns the images, in the order of `list_images`."""
        return list_images(self.source)


@dataclass(frozen=True, kw_only=True)
class Script:
    """One peer.

    Attributes:
      peer: name in the results.
      distribution: installed package whose version is reported.
      prepare: imports the libraries and returns the work, a function that returns the number of written images.
      note: short description of the work.
      served: kinds that read URLs; "" for a script without kinds.
      kinds: kinds of the script; the first is the default.
      own_seconds: returns the duration by the clock of the peer, for a peer whose processes start slowly; None for the
        wall time of the work.
    """

    peer: str
    distribution: str
    prepare: Callable[[Job], Work]
    note: str
    served: Sequence[str] = ()
    kinds: Sequence[str] = ()
    own_seconds: Callable[[Job], float] | None = None

    def main(self) -> None:
        """Runs once with the arguments of the command line, and prints one line of JSON."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.peer_{self.peer}", description=self.note)
        parser.add_argument("--source", type=Path, required=True, help="class folders of images")
        parser.add_argument("--out", type=Path, required=True, help="new or empty directory")
        parser.add_argument("--count", type=int, default=0, help="how many images to take; 0 takes all")
        parser.add_argument("--kind", choices=self.kinds or ("",), default=self.kinds[0] if self.kinds else "")
        arguments = parser.parse_args()
        images, seconds = self.run(arguments.source, arguments.out, arguments.count, arguments.kind)
        result = {"peer": f"{self.peer} {arguments.kind}".strip(), "images": images, "seconds": seconds}
        print(json.dumps(result | {"version": metadata.version(self.distribution), "note": self.note}), flush=True)

    def run(self, source: Path, out: Path, count: int, kind: str) -> tuple[int, float]:
        """Returns the number of images written and the seconds it took."""
        out.mkdir(parents=True, exist_ok=True)
        if count:
            source = link_first(source, count, out / "source")
        result = out / "result"
        result.mkdir()
        with serve.serving(source) if kind in self.served else contextlib.nullcontext("") as url:
            job = Job(source=source.absolute(), out=result.absolute(), url=url, kind=kind)
            work = self.prepare(job)
            os.sync()  # excludes the disk writes of the previous run
            started = time.perf_counter()
            images = work()
            seconds = time.perf_counter() - started
        return images, self.own_seconds(job) if self.own_seconds else seconds


def list_images(source: Path) -> list[Path]:
    """Returns the files of class folders in order of name, then folder, so that the first files cover all classes."""
    paths = (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    return sorted(paths, key=lambda path: (path.name, path.parent.name))


def link_first(source: Path, count: int, target: Path) -> Path:
    """Links the first `count` images into new class folders; with hard links, all runs use the same page cache.

    Raises:
      SystemExit: there are fewer images than `count`.
    """
    files = list_images(source)
    if len(files) < count:
        raise SystemExit(f"{source} holds {len(files)} images; {count} were asked for")
    for path in files[:count]:
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        _link(path, link)
    return target


def class_indices(files: Sequence[Path]) -> dict[str, int]:
    """Returns class name -> index, in order of name."""
    return {name: index for index, name in enumerate(sorted({path.parent.name for path in files}))}


def decode_with_opencv(path: Path, encoded: bytes) -> None:
    """Decodes an image whole, in one thread, as the other cores have processes of their own.

    Raises:
      ValueError: the image cannot be decoded.
    """
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    if cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR) is None:
        raise ValueError(f"{path} cannot be decoded")


def write_url_table(job: Job, url_column: str) -> Path:
    """Writes a CSV table of a served source beside the result: URL, class name and relative path of every image."""
    table = job.out.parent / "urls.csv"
    with open(table, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow((url_column, "label", "filename"))
        for path in job.files():
            name = path.relative_to(job.source).as_posix()
            writer.writerow((serve.file_url(job.url, name), path.parent.name, name))
    return table


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, target)

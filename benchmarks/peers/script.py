"""What the scripts of the peers share. Standard library only: every peer runs it in an environment of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks import serve

Work = Callable[[], int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a peer.

    Attributes:
      source: class folders that hold the images of this run and nothing else.
      out: empty directory of the result.
      url: where `source` is served, with a slash at the end; empty for peers that read files.
      kind: which of the kinds of the script to run; empty when it has none.
    """

    source: Path
    out: Path
    url: str = ""
    kind: str = ""

    def files(self) -> list[Path]:
        """Returns the images, in the order of `images_of`."""
        return images_of(self.source)


@dataclass(frozen=True, kw_only=True)
class Script:
    """One peer.

    Attributes:
      peer: its name in the results.
      distribution: the installed package that gives the version.
      prepare: imports what the work needs and returns the work, which returns the number of images it wrote.
      note: what the work does and leaves out, in a few words.
      served: the kinds that read URLs; the one kind of a script without kinds is "".
      kinds: ways to run it; the first is the default.
      own_seconds: reads the peer's own clock after the work, for one whose processes take long to start; without it
        the wall time of the work counts.
    """

    peer: str
    distribution: str
    prepare: Callable[[Job], Work]
    note: str
    served: Sequence[str] = ()
    kinds: Sequence[str] = ()
    own_seconds: Callable[[Job], float] | None = None

    def main(self) -> None:
        """Runs once as the command line says, and prints one line of JSON."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.{self._module}", description=self.note)
        parser.add_argument("--source", type=Path, required=True, help="class folders of images")
        parser.add_argument("--out", type=Path, required=True, help="new or empty directory")
        parser.add_argument("--count", type=int, default=0, help="how many images to take; 0 takes all")
        parser.add_argument("--kind", choices=self.kinds or ("",), default=self.kinds[0] if self.kinds else "")
        arguments = parser.parse_args()
        images, seconds = self.run(arguments.source, arguments.out, arguments.count, arguments.kind)
        version = metadata.version(self.distribution)
        print(json.dumps(vars_of(self.peer, arguments.kind, images, seconds, version, self.note)), flush=True)

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
            os.sync()  # what the run before left to be written to the disk is not this one's time
            started = time.perf_counter()
            images = work()
            seconds = time.perf_counter() - started
        return images, self.own_seconds(job) if self.own_seconds else seconds

    @property
    def _module(self) -> str:
        return f"peer_{self.peer}"


def vars_of(peer: str, kind: str, images: int, seconds: float, version: str, note: str) -> dict[str, object]:
    """Returns the line of a script as a mapping."""
    name = f"{peer} {kind}".strip()
    return {"peer": name, "images": images, "seconds": seconds, "version": version, "note": note}


def images_of(source: Path) -> list[Path]:
    """Returns the files of class folders by name, then by folder, so that the first of them are of every class."""
    found = (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    return sorted(found, key=lambda path: (path.name, path.parent.name))


def link_first(source: Path, count: int, target: Path) -> Path:
    """Makes class folders of the first `count` images: hard links, so that the page cache serves every run alike.

    Raises:
      SystemExit: there are fewer images.
    """
    files = images_of(source)
    if len(files) < count:
        raise SystemExit(f"{source} holds {len(files)} images; {count} were asked for")
    for path in files[:count]:
        there = target / path.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        _link(path, there)
    return target


def labels_of(files: Sequence[Path]) -> dict[str, int]:
    """Returns class name -> index, in order of the names."""
    return {name: index for index, name in enumerate(sorted({path.parent.name for path in files}))}


def url_rows(job: Job) -> Iterator[tuple[str, str, str]]:
    """Yields URL, class name and relative path of every image of a served source."""
    for path in job.files():
        name = path.relative_to(job.source).as_posix()
        yield serve.url_of(job.url, name), path.parent.name, name


def _link(path: Path, there: Path) -> None:
    try:
        os.link(path, there)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(path, there)

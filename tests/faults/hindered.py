"""Ingests that something comes in the way of, and what: see `test_disk.py`."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.beam_jobs.runs import files_under
from tests.faults.matrix import Row
from tests.faults.trials import Trial, Worker

Files = dict[str, "bytes | None"]

# No reject is allowed, so that the room for the dataset is known before an image is opened.
ARGUMENTS = ("--shards", 2, "--threads", 2, "--max-reject-ratio", 0)
_NEEDED = re.compile(r"about [\d,.]+ (bytes|kB|MB|GB) are needed")


def around(out: Path) -> Files:
    """Returns what lies in the directory that holds an output: relative path -> content of a file, None of others."""
    found = sorted(out.parent.rglob("*"))
    return {str(path.relative_to(out.parent)): path.read_bytes() if path.is_file() else None for path in found}


def temporary() -> list[str]:
    """Returns names of the temporary files of the process that ingests."""
    return sorted(os.listdir(os.environ["TMPDIR"]))


def tells_needed(line: str, further: tuple[str, ...]) -> bool:
    """Whether a line says how much room is needed, if it is of a stage where that is known.

    Nobody knows it while the source is scanned, when tables and manifest are published, and before `drop` has seen all
    images.
    """
    known = ("enough room for", "while writing", *(() if further else ("while examining",)))
    return bool(_NEEDED.search(line)) or not any(part in line for part in known)


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """An ingest that something comes in the way of, in a directory of its own.

    Attributes:
      worker: runs it.
      source: of the images.
      out: of the dataset.
      wanted: what has to be around it in the end.
      further: arguments.
      older: the dataset that it replaces; None for none.
    """

    worker: Worker
    source: Path
    out: Path
    wanted: Files
    further: tuple[str, ...] = ()
    older: Path | None = None

    def __post_init__(self) -> None:
        self.out.parent.mkdir(parents=True)
        if self.older:
            shutil.copytree(self.older, self.out)

    @property
    def folder(self) -> str:
        """The directory that holds the output, quoted for a shell."""
        return shlex.quote(str(self.out.parent))

    def run(self, **strike: object) -> Trial:
        over = ("--overwrite",) if self.older else ()
        return self.worker.ingest(self.source, self.out, *ARGUMENTS, *self.further, *over, **strike)

    def stands(self) -> bool:
        """Whether the output holds what it held before: the older dataset, or none.

        A disk that takes nothing between the last two renames leaves the older one beside it, for the next run to find.
        """
        if not self.older:
            return not (self.out / "dataset.json").exists()
        beside = self.out.with_name(".out.feedline-old")
        return files_under(self.out if self.out.exists() else beside) == files_under(self.older)

    def judge(
        self,
        row: Row,
        about: str,
        *said: str,
        mend: Callable[[], object],
        codes: tuple[int, ...] = (1, 2),
        **strike: object,
    ) -> Trial:
        """Enters a try: one line that says something and nothing published, then a run that leaves the dataset alone.

        Args:
          row: of the fault.
          about: names the try.
          said: parts of the line.
          mend: takes away what is in the way.
          codes: of the first run; with 0 among them it may also have been faster, and then the dataset has to be there.
          strike: see `Worker.ingest`.
        """
        held = temporary()
        first = self.run(**strike)
        through = first.code == 0 and 0 in codes
        good = first.code in codes and (through or (self._is_told(first, said) and self.stands()))
        mend()
        again = first if through and around(self.out) == self.wanted else self.run()
        # What the first run could not remove, the next one removes, and says that there is a dataset.
        ended = again.code == 0 or (through and not self.older and "already holds a dataset" in again.error)
        kept = around(self.out)
        lost = sorted(self.wanted.keys() - kept.keys())
        left = sorted(kept.keys() - self.wanted.keys()) + [name for name in temporary() if name not in held]
        about = f"{about} {self.further}: {first.code}, {first.err[-400:]!r}; then {again.code}, {again.err[-300:]!r}"
        wrong = not good or not ended or kept != self.wanted or bool(left)
        hang = first.hang or again.hang
        row.tried(f"{about}, lost {lost[:3]}, left {left[:3]}", hang=hang, lost=bool(lost), wrong=wrong)
        return first

    def _is_told(self, first: Trial, said: tuple[str, ...]) -> bool:
        lines = first.error.splitlines()
        shown = "Traceback" in first.err or "--debug" in first.err
        return len(lines) == 1 and all(part in lines[0] for part in said) and not shown and self._tells(lines[0])

    def _tells(self, line: str) -> bool:
        room = any(os.strerror(number) in line for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        return not (room or "enough room" in line) or tells_needed(line, self.further)


@dataclass(frozen=True, kw_only=True)
class How:
    """What comes in the way.

    Attributes:
      command: of a shell, that puts it there.
      mend: takes it away.
      said: parts of what the user is told.
    """

    command: str
    mend: Callable[[], object]
    said: tuple[str, ...]


def filled(place: Path, ingest: Ingest) -> How:
    filler = place / "filler"
    fill = f"dd if=/dev/zero of={shlex.quote(str(filler))} bs=64k 2>/dev/null || true"
    return How(command=fill, mend=lambda: filler.unlink(missing_ok=True), said=("are free", "make room"))


def read_only(place: Path, ingest: Ingest) -> How:
    # As long as a file is open for writing, it fails.
    lock = f"mount -o remount,ro {shlex.quote(str(place))} 2>/dev/null"
    return How(command=lock, mend=lambda: remount(place, "rw"), said=(os.strerror(errno.EROFS),))


def forbidden(place: Path, ingest: Ingest) -> How:
    said = (os.strerror(errno.EACCES), str(ingest.out.parent))
    return How(command=f"chmod -R a-w {ingest.folder}", mend=lambda: permit(ingest), said=said)


def removed(place: Path, ingest: Ingest) -> How:
    # What this run makes; an older dataset is not its own. By a rename first, for `rm` alone would race with the run.
    made = ".out.feedline-next" if ingest.older else "out"
    return How(
        command=f"mv {ingest.folder}/{made} {ingest.folder}/gone && rm -rf {ingest.folder}/gone",
        mend=list,
        said=(str(ingest.out.parent),),
    )


HOW = {"filled": filled, "read-only": read_only, "forbidden": forbidden, "removed": removed}


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", place], check=True)


def permit(ingest: Ingest) -> None:
    subprocess.run(["chmod", "-R", "u+rwX", ingest.out.parent], check=True)

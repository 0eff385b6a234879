"""Small hostile files of every kind through every command that reads them: bounded in memory and time, no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from beam_jobs.images.sandbox.worker import MEMORY_BYTES
from tests.faults.hostile_contents import DATASETS
from tests.faults.hostile_files import MAX_BYTES, SOURCES
from tests.faults.matrix import Row
from tests.faults.trials import Worker, worker
from tests.make_images import jpeg, png

pytestmark = pytest.mark.timeout(1800)

MEMORY_MIB = 900  # by which the main process may grow
TIME_S = 60.0  # that an input may hold it
_OUTCOME = "refused or rejected, in one line; the process takes at most 60 s and 900 MiB more than at its start"
_FORMATS = ("webdataset", "parquet")
KINDS = ("images", "archives", "tables", "annotations", "records")
_SHORT = 6  # of the files of a kind, every so many are tried in the short form


class Bounds:
    """Runs commands one after the other in one process, and holds each against the bounds."""

    def __init__(self, found: Worker, home: Path) -> None:
        """Runs every command once, so that what they import counts as the start.

        Args:
          found: the process.
          home: a directory for what the commands write.
        """
        self._worker = found
        self.good = home / "good"
        self._images(home / "images" / "all")
        self._source = home / "images"
        self.decoders = 0
        self._warm()

    def command(self, row: Row, about: str, *arguments: object) -> int:
        """Runs a command and enters it in a row of the matrix; returns its exit code, -1 for none."""
        answer = self._worker.ask({"arguments": [*map(str, arguments)], "between": None, "at": None}, TIME_S)
        if answer is None:  # it hung, or its process died
            row.tried(f"{about}: {arguments[0]} gave no answer in {TIME_S:g} s, or died", hang=True)
            self._worker.close()
            self._warm()
            return -1
        problems = [f"exit code {answer['code']}"] if answer["code"] not in (0, 2, 3) else []
        problems += [f"grew by {answer['grown_mib']:,.0f} MiB"] if answer["grown_mib"] > MEMORY_MIB else []
        unexpected = [word for word in ("Traceback", "--debug", " at 0x") if word in answer["err"]]
        forged = [line for line in answer["err"].splitlines() if line.startswith("images  ")]
        problems += [f"says {word.strip()}: {answer['err'][:200].strip()}" for word in (*unexpected, *forged)]
        problems += self._decoders_over_their_limit()
        row.tried(f"{about}: {arguments[0]} {'; '.join(problems)}", wrong=bool(problems))
        return answer["code"]

    def look_at(self, row: Row, about: str, dataset: Path, source: Path) -> None:
        """Runs every command that reads a dataset."""
        self.command(row, about, "verify", dataset)
        self.command(row, about, "inspect", dataset, "-n", "3")
        self.command(row, about, "report", dataset, "--images", source, "--out", dataset.parent / "report.html")
        for target in _FORMATS:
            self.command(row, about, "export", dataset, "--to", target, "--out", dataset.parent / target)

    def _warm(self) -> None:
        shutil.rmtree(self.good, ignore_errors=True)
        row = Row("untrusted", "good images", "")
        self.ingest(row, "good images", self._source, self.good)
        self.look_at(row, "good images", self.good, self._source)
        for target in (*_FORMATS, "report.html"):
            shutil.rmtree(self.good.parent / target, ignore_errors=True)
        assert not row.hangs, row.failures

    def ingest(self, row: Row, about: str, source: Path, out: Path) -> int:
        """Runs an ingest that takes every reject."""
        bounds = ["--max-seconds", "10", "--max-reject-ratio", "1", "--splits", "all=1"]
        return self.command(row, about, "ingest", source, "--out", out, *bounds)

    def _images(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"{number}.jpg").write_bytes(jpeg(number))
        (folder / "bad.png").write_bytes(png()[:200])

    def _decoders_over_their_limit(self) -> list[str]:
        """Returns which decoders took more memory than they may; they are those whose address space has a limit."""
        problems = []
        for process in psutil.Process(self._worker.pid).children(recursive=True):
            try:
                limit, memory = process.rlimit(psutil.RLIMIT_AS)[0], process.memory_info().rss
                start = psutil.Process(process.ppid()).memory_info()
            except psutil.NoSuchProcess:
                continue
            if limit == psutil.RLIM_INFINITY:
                continue
            self.decoders += 1
            if memory - start.rss > MEMORY_BYTES or limit - start.vms > MEMORY_BYTES + (64 << 20):
                problems.append(f"a decoder has {memory:,} bytes, its limit is {limit:,}, its start {start.vms:,}")
        return problems


@pytest.fixture(scope="module")
def bounds(tmp_path_factory) -> Iterator[Bounds]:
    with worker() as found:
        yield Bounds(found, tmp_path_factory.mktemp("hostile"))


def _some(names: list[str], short: bool) -> list[str]:
    return names[::_SHORT] if short else names


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_sources_are_bounded_in_memory_and_time(fault, bounds, tmp_path, short, kind):
    row = fault("untrusted", f"small hostile {kind}, through every command", _OUTCOME)
    for name in _some(list(SOURCES[kind]), short):
        folder = tmp_path / "case"
        folder.mkdir()
        source = SOURCES[kind][name](folder)
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2 * MAX_BYTES, name
        bounds.ingest(row, f"{kind}: {name}", source, folder / "dataset")
        if source.suffix in (".parquet", ".tfrecord", ".gz"):
            bounds.command(row, f"{kind}: {name}", "inspect", source, "-n", "3")
        if (folder / "dataset" / "dataset.json").exists():
            bounds.look_at(row, f"{kind}: {name}", folder / "dataset", source if source.is_dir() else source.parent)
        shutil.rmtree(folder)
    assert bounds.decoders or kind != "images"
    assert SOURCES.keys() == set(KINDS)


def test_hostile_datasets_are_bounded_in_memory_and_time(fault, bounds, tmp_path, short):
    row = fault("untrusted", "small hostile datasets, through every command", _OUTCOME)
    for name in _some(list(DATASETS), short):
        folder = tmp_path / "case"
        shutil.copytree(bounds.good, folder / "dataset")
        DATASETS[name](folder / "dataset")
        bounds.look_at(row, f"dataset: {name}", folder / "dataset", folder)
        bounds.command(row, f"dataset: {name}", "inspect", folder / "dataset", "--key", "all/0.jpg")
        bounds.command(row, f"dataset: {name}", "ingest", folder.parent, "--out", folder / "dataset", "--append")
        shutil.rmtree(folder)

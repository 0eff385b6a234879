"""Images that want to break a decoder, through whole ingests with all decoders at work."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_jobs.errors import FeedlineError
from beam_jobs.images import sandbox
from beam_jobs.ingest import run
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from tests import image_table
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.beam_jobs.hostile_rows import REJECTED, SECTIONS
from tests.beam_jobs.runs import files_under
from tests.make_images import jpeg, png

THREADS = 4
TIME_S = 240.0  # after which an ingest counts as a hang, and is ended
MEMORY_BYTES = 2 << 30  # of addresses, above what a decoder starts with
GOOD = {f"good{number}": (jpeg if number % 2 else png)(number) for number in range(12)}
ROWS = [row for rows in SECTIONS.values() for row in rows]
POLICIES = {
    "copy": PixelOptions(),
    "resize": PixelOptions(policy="resize", side_px=12),
    "raw": PixelOptions(policy="raw", side_px=12),
}


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def broken(tmp_path_factory) -> Iterator[None]:
    """Decoders that act on markers, see `broken_decoder`; to other bytes they are as ever."""
    with broken_decoders(tmp_path_factory.mktemp("broken")):
        yield


@dataclass(frozen=True)
class Ended:
    """How an ingest ended.

    Attributes:
      kept: names in the dataset.
      rejected: name -> reason.
      hang: whether it had to be ended.
      busy: most decoders that were seen at work at a time.
    """

    kept: set[str] = field(default_factory=set)
    rejected: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    busy: int = 0


class Watch:
    """Counts the decoders at work, and ends them when the time is up."""

    def __init__(self) -> None:
        self.busy, self.hang = 0, False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        end = time.monotonic() + TIME_S
        while not self._over.wait(0.002):
            self.busy = max(self.busy, len(sandbox._own.pool._busy))
            if time.monotonic() > end:
                self.hang = True
                sandbox._own.stop()
                return


def ingest(files: dict[str, bytes], folder: Path, **options) -> Ended:
    """Ingests files of one class in threads."""
    source, out = folder / "source" / "all", folder / "out"
    source.mkdir(parents=True)
    for name, data in files.items():
        (source / name).write_bytes(data)
    given = {"splits": {"all": 1.0}, "max_reject_ratio": 0.999, "threads": THREADS, **options}
    with Watch() as watch:
        try:
            run(IngestOptions(source=str(source.parent), out=str(out), **given))
        except FeedlineError:
            if not watch.hang:
                raise
            sandbox.close()
            return Ended(hang=True)
    kept = {Path(key).name for key in image_table.read(out)["key"].to_pylist()}
    rejects = pq.read_table(out / "rejects.parquet").to_pylist()
    rejected = {Path(row["key"]).name: row["reason"] for row in rejects}
    return Ended(kept, rejected, watch.hang, watch.busy)


@pytest.mark.parametrize("policy", POLICIES)
def test_bombs_forged_headers_and_all_other_hostile_files_at_once(fault, tmp_path, policy):
    row = fault("images", "every kind of hostile file, all decoders busy, 2 GiB each", "as listed in images.md")
    names = [f"{number:03d}" for number in range(len(ROWS))]
    # The same file twice, so that the decoders meet them in several mixtures.
    files = {f"{name}{turn}": kind.make() for turn in "ab" for name, kind in zip(names, ROWS, strict=True)} | GOOD
    found = ingest(files, tmp_path, pixels=POLICIES[policy])
    kept, rejected = found.kept, found.rejected
    row.tried(f"{found.busy} decoders at work", hang=found.hang, wrong=found.busy != THREADS)
    for turn in "ab":
        for name, kind in zip((f"{name}{turn}" for name in names), ROWS, strict=True):
            wanted = kind.reason if kind.outcome == REJECTED else None
            lost = name not in kept and name not in rejected
            row.tried(f"{kind.name}: {rejected.get(name)}", lost=lost, wrong=rejected.get(name) != wanted)
    row.tried("good images between them", lost=not set(GOOD) <= kept)
    if not found.hang:
        limits = [decoder.rlimit(psutil.RLIMIT_AS)[0] for decoder in own_decoders()]
        start = psutil.Process(sandbox._own.pool._fork_server._process.pid).memory_info().vms
        right = bool(limits) and all(abs(limit - start - MEMORY_BYTES) < 64 << 20 for limit in limits)
        row.tried(f"limits of {limits} where they start with {start}", wrong=not right)


def test_the_largest_images_allowed_fit_all_decoders_at_once(fault, tmp_path, tries):
    row = fault("images", "images of 64 megapixels in all decoders at once", "all are in the dataset")
    # Nothing is decoded before four decoders have one each: a fast one would be done before the next has started.
    files = {f"{number}": large_png(number) + b"<meet>" for number in range(tries(12, 4))}
    found = ingest(files, tmp_path)
    row.tried(f"{found.busy} decoders at work", hang=found.hang, wrong=found.busy != THREADS)
    for name in files:
        row.tried(f"{name}: {found.rejected.get(name)}", lost=name not in found.kept)


def large_png(seed: int) -> bytes:
    """Returns 64 megapixels of one bit, three quarters of them noise: files below 4 MiB would share a decoder."""
    side = 8000
    noise = np.random.default_rng(seed).bytes(3 * side * side // 32)
    out = io.BytesIO()
    Image.frombytes("1", (side, side), noise + bytes(len(noise) // 3)).save(out, "PNG", compress_level=1)
    return out.getvalue()


@pytest.mark.parametrize(
    ("marker", "what", "reason"),
    [
        (b"<abort>", "a decoder that calls abort()", "decoder_crashed"),
        (b"<segv>", "a decoder that dies of a segmentation fault", "decoder_crashed"),
        (b"<eat>", "a decoder that allocates all available memory", "decoder_crashed"),
        (b"<bug>", "a decoder that raises an unexpected exception", "decoder_crashed"),
        (b"<spin>", "a decoder that never ends", "too_slow"),
        (b"<sleep>", "a decoder that waits for ever without using CPU time", "too_slow"),
        (b"<stop>", "a decoder that stops itself (SIGSTOP)", "too_slow"),
    ],
)
def test_an_image_that_breaks_its_decoder_costs_itself_alone(fault, tmp_path, tries, marker, what, reason):
    row = fault("images", what, f"the image is rejected as `{reason}`, all others are in the dataset")
    bad = {f"bad{number}": data + marker for number, data in enumerate(list(GOOD.values())[: tries(3, 1)])}
    limits = ImageLimits(max_seconds=1 if reason == "too_slow" else 60)
    found = ingest({**bad, **GOOD}, tmp_path, limits=limits)
    row.tried("the ingest", hang=found.hang)
    for name in bad:
        row.tried(name, lost=name not in found.rejected, wrong=found.rejected.get(name) != reason)
    for name in GOOD:
        row.tried(name, lost=name not in found.kept)


def test_decoders_that_somebody_stops_cost_time_alone(fault, tmp_path, tries):
    row = fault(
        "images",
        "SIGSTOP of all working decoders",
        "after ten times `--max-seconds`, at least a minute, other processes take over; the same bytes",
    )
    # Large ones are more than a socket holds: sending them to a stopped decoder takes a minute to be given up.
    files = {f"{number:03d}": png(number) + bytes(number * tries(1024, 1)) for number in range(200)}
    limits = ImageLimits(max_seconds=1)
    ingest(files, tmp_path / "peace", limits=limits)
    over, stopped = threading.Event(), []
    stopper = threading.Thread(target=stop_all, args=(over, stopped))
    stopper.start()
    try:
        found = ingest(files, tmp_path / "stopped", limits=limits)
    finally:
        over.set()
        stopper.join()
    assert stopped
    same = files_under(tmp_path / "stopped" / "out") == files_under(tmp_path / "peace" / "out")
    row.tried(f"{found.rejected}", hang=found.hang, lost=len(found.kept) < len(files), wrong=not same)


def stop_all(over: threading.Event, stopped: list[int]) -> None:
    """Stops the decoders of the moment in which some are at work, once."""
    while not stopped and not over.wait(0.002):
        if sandbox._own.pool._busy:
            for one in own_decoders():
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.suspend()
                    stopped.append(one.pid)


def own_decoders() -> list[psutil.Process]:
    """Returns the decoders of this process."""
    pool = sandbox._own.pool
    numbers = {one.pid for one in (*pool._idle, *pool._busy)}
    return [process for process in psutil.process_iter() if process.pid in numbers]

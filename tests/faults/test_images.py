"""Images that want to break a decoder, through whole ingests with all decoders at work."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_jobs import decoders
from beam_jobs.ingest import run
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.beam_jobs.hostile_rows import REJECTED, SECTIONS
from tests.beam_jobs.runs import files_under
from tests.make_images import jpeg, png

THREADS = 4
GOOD = {f"good{number}": (jpeg if number % 2 else png)(number) for number in range(12)}
ROWS = [row for rows in SECTIONS.values() for row in rows]
POLICIES = {
    "copy": PixelOptions(),
    "resize": PixelOptions(policy="resize", side_px=12),
    "raw": PixelOptions(policy="raw", side_px=12),
}


@pytest.fixture(scope="module", autouse=True)
def broken(tmp_path_factory) -> Iterator[None]:
    """Decoders that act on markers, see `broken_decoder`; to other bytes they are as ever."""
    with broken_decoders(tmp_path_factory.mktemp("broken")):
        yield


def ingest(files: dict[str, bytes], folder: Path, **options) -> tuple[set[str], dict[str, str]]:
    """Returns the names in the dataset, and those rejected with their reasons."""
    source, out = folder / "source" / "all", folder / "out"
    source.mkdir(parents=True)
    for name, data in files.items():
        (source / name).write_bytes(data)
    given = {"splits": {"all": 1.0}, "max_reject_ratio": 0.999, "threads": THREADS, **options}
    run(IngestOptions(source=str(source.parent), out=str(out), **given))
    kept = {Path(key).name for key in pq.read_table(out / "images.parquet", columns=["key"])["key"].to_pylist()}
    rejects = pq.read_table(out / "rejects.parquet").to_pylist()
    return kept, {Path(row["key"]).name: row["reason"] for row in rejects}


@pytest.mark.parametrize("policy", POLICIES)
def test_bombs_forged_headers_and_all_other_hostile_files_at_once(fault, tmp_path, policy):
    row = fault("images", "every kind of hostile file, all decoders busy, 2 GiB each", "each as its row in images.md")
    names = [f"{number:03d}" for number in range(len(ROWS))]
    # The same file twice, so that the decoders meet them in several mixtures.
    files = {f"{name}{turn}": kind.make() for turn in "ab" for name, kind in zip(names, ROWS, strict=True)} | GOOD
    kept, rejected = ingest(files, tmp_path, pixels=POLICIES[policy])
    for turn in "ab":
        for name, kind in zip((f"{name}{turn}" for name in names), ROWS, strict=True):
            wanted = kind.reason if kind.outcome == REJECTED else None
            lost = name not in kept and name not in rejected
            row.tried(f"{kind.name}: {rejected.get(name)}", lost=lost, wrong=rejected.get(name) != wanted)
    row.tried("good images between them", lost=not set(GOOD) <= kept)
    reached = [decoder.memory_maps() and decoder.memory_info().vms for decoder in own_decoders()]
    limits = [decoder.rlimit(psutil.RLIMIT_AS)[0] for decoder in own_decoders()]
    assert limits
    assert all(vms <= limit for vms, limit in zip(reached, limits, strict=True))


def test_the_largest_images_allowed_fit_all_decoders_at_once(fault, tmp_path, tries):
    row = fault("images", "images of 64 megapixels in all decoders at once", "they are in the dataset")
    side = 8000
    plain = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).convert("1").save(plain, "PNG")
    files = {f"{number}": plain.getvalue() + b"\0" * number for number in range(tries(12, 4))} | GOOD
    kept, rejected = ingest(files, tmp_path)
    for name in files:
        row.tried(f"{name}: {rejected.get(name)}", lost=name not in kept)


@pytest.mark.parametrize(
    ("marker", "what", "reason"),
    [
        (b"<abort>", "a decoder that calls abort()", "decoder_crashed"),
        (b"<segv>", "a decoder that dies of a segmentation fault", "decoder_crashed"),
        (b"<eat>", "a decoder that takes all memory it can get", "decoder_crashed"),
        (b"<bug>", "a decoder that raises what nobody expects", "decoder_crashed"),
        (b"<spin>", "a decoder that never ends", "too_slow"),
    ],
)
def test_an_image_that_breaks_its_decoder_costs_itself_alone(fault, tmp_path, tries, marker, what, reason):
    row = fault("images", what, f"the image is rejected as `{reason}`, all others are in the dataset")
    bad = {f"bad{number}": data + marker for number, data in enumerate(list(GOOD.values())[: tries(3, 1)])}
    kept, rejected = ingest({**bad, **GOOD}, tmp_path, limits=ImageLimits(max_seconds=1 if marker == b"<spin>" else 60))
    for name in bad:
        row.tried(name, lost=name not in rejected, wrong=rejected.get(name) != reason)
    for name in GOOD:
        row.tried(name, lost=name not in kept)


def test_decoders_that_somebody_kills_cost_nothing(fault, tmp_path, tries):
    row = fault("images", "SIGKILL of decoders at random moments", "the bytes are those of a run in peace")
    files = {f"{number:03d}": png(number) for number in range(300)}
    ingest(files, tmp_path / "peace")
    wanted = files_under(tmp_path / "peace" / "out")
    for number in range(tries(10, 2)):
        folder, over, killed = tmp_path / str(number), threading.Event(), []
        killer = threading.Thread(target=kill_some, args=(number, over, killed))
        killer.start()
        try:
            kept, rejected = ingest(files, folder)
        finally:
            over.set()
            killer.join()
        assert killed
        about = f"try {number}: {sorted(rejected.items())[:3]}"
        row.tried(about, lost=len(kept) < len(files), wrong=files_under(folder / "out") != wanted)


def kill_some(seed: int, over: threading.Event, killed: list[int]) -> None:
    """Kills eight decoders, one every few hundredths of a second."""
    random = np.random.default_rng(seed)
    while len(killed) < 8 and not over.wait(random.uniform(0.01, 0.1)):
        if alive := own_decoders():
            one = alive[random.integers(len(alive))]
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
                killed.append(one.pid)


def own_decoders() -> list[psutil.Process]:
    """Returns the decoders of this process."""
    pool = decoders._pool
    numbers = {one.pid for one in (*pool._idle, *pool._busy)}
    return [process for process in psutil.process_iter() if process.pid in numbers]

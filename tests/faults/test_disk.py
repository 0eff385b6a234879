"""Disks that are too small, become full, read-only or forbidden, or whose directories are removed, under an ingest.

The small disks are memory disks, and directories with a quota come from `quota`; only root may mount either. Commands
run by `trials`, where file modes bind root too.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from beam_jobs.errors import DiskError
from tests.beam_jobs.kill import chosen
from tests.faults import quota
from tests.faults.hindered import ARGUMENTS, HOW, Files, Ingest, around, filled, read_only, remount
from tests.faults.process import feedline
from tests.faults.trials import Worker, worker
from tests.make_images import encode
from tests.small_disk import small_disk

if TYPE_CHECKING:  # it imports Keras
    from trainer.training.checkpoint import Checkpoint

pytestmark = pytest.mark.timeout(900)

SEED = 22
IMAGES = 30
LARGE = 64 << 20
# With these the room for the dataset is known only when all images were examined.
UNKNOWN = ("--duplicates", "drop")
# Kind -> fault and outcome, as the matrix has them.
ROWS = {
    "filled": (
        "a disk that other programs fill during the ingest",
        "one line with the free and, when known, the needed bytes; a rerun with enough space succeeds",
    ),
    "read-only": ("a disk that becomes read-only", "one line with the cause; a rerun on a writable disk succeeds"),
    "forbidden": ("write permission is removed", "one line names the file; a rerun with the permission succeeds"),
    "removed": ("the output directory is removed", "one line names the missing file; a complete rerun succeeds"),
}
LATE_S = 0.03
PUBLISHING = 12  # so many moments, at least, has the last stage, which is short
QUOTA_HELP = "raise the quota or remove files that count against it, then run the same command again"

TOO_SMALL = "a disk with too little free space"
CHECKPOINT = "a checkpoint that does not fit on the disk"
FULL_RUN = "`feedline run` on a full disk"
FULL_TEMPORARY = "a full disk of temporary files"
OVER_QUOTA = "a quota that is used up"


NOT_ROOT = "only root may mount a small disk"
MOUNTED = ("filled", "read-only")


def needs_root(fault: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(os.geteuid() != 0, reason=f"{fault}: {NOT_ROOT}")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """30 images of noise, half of them in a format that is changed, and so kept until the dataset is there."""
    folder = tmp_path_factory.mktemp("disk") / "source" / "noise"
    folder.mkdir(parents=True)
    random_ = np.random.default_rng(SEED)
    for number in range(IMAGES):
        pixels = random_.integers(0, 256, (64, 64, 3), np.uint8)
        name, kind = (f"{number:02d}.png", "PNG") if number % 2 else (f"{number:02d}.bmp", "BMP")
        (folder / name).write_bytes(encode(pixels, kind))
    return folder.parent


@pytest.fixture(scope="module")
def ingests(tmp_path_factory) -> Iterator[Worker]:
    """The process that runs `feedline ingest`, with a directory of its own for temporary files."""
    with pytest.MonkeyPatch.context() as patch, worker() as found:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        yield found


@pytest.fixture(scope="module")
def clean(source, ingests, tmp_path_factory) -> dict[tuple[str, ...], Files]:
    """What nothing came in the way of leaves around its output, by the further arguments."""
    return {further: built(ingests, source, tmp_path_factory, *further) for further in ((), UNKNOWN)}


@pytest.fixture(scope="module")
def older(source, ingests, tmp_path_factory) -> Path:
    """A dataset that others replace: the images are in another order."""
    out = tmp_path_factory.mktemp("older") / "out"
    assert ingests.ingest(source, out, *ARGUMENTS, "--seed", 1).code == 0
    return out


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[int], Path]]:
    """Makes a disk of so many bytes, or changes the one there is."""
    with small_disk(tmp_path / "disk") as make:
        yield make


def built(ingests: Worker, source: Path, factory: pytest.TempPathFactory, *further: str) -> Files:
    out = factory.mktemp("clean") / "out"
    assert ingests.ingest(source, out, *ARGUMENTS, *further).code == 0
    return around(out)


@pytest.fixture
def quotas(tmp_path) -> Iterator[quota.Quotas]:
    """A file system whose directories have quotas."""
    if reason := quota.missing():
        pytest.skip(f"{OVER_QUOTA}: {reason}")
    with quota.mounted(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def ingest(ingests, source, clean, older) -> Callable[..., Ingest]:
    """Makes ingests of the source: output, further arguments, and whether it replaces a dataset."""

    def make(out: Path, further: tuple[str, ...] = (), *, over: bool = False) -> Ingest:
        older_ = older if over else None
        return Ingest(worker=ingests, source=source, out=out, wanted=clean[further], further=further, older=older_)

    return make


@pytest.fixture
def place(kind, request, tmp_path) -> Path:
    """A disk of one's own for the kinds of `MOUNTED`, for the others a directory."""
    if kind not in MOUNTED:
        return tmp_path
    if os.geteuid():
        pytest.skip(f"{ROWS[kind][0]}: {NOT_ROOT}")
    return request.getfixturevalue("disk")(LARGE)


def size_of(files: Files) -> int:
    return sum(len(data or b"") for data in files.values())


@needs_root(TOO_SMALL)
def test_a_disk_that_is_too_small(fault, ingest, clean, older, disk, tries):
    told = "one line with the free and, when known, the needed bytes; with enough space, a rerun succeeds"
    row = fault("disk", TOO_SMALL, told)
    choose = random.Random(SEED)
    before = 0
    for index in range(tries(20, 4)):
        further = UNKNOWN if index % 3 else ()
        over = index % 4 == 3
        size = choose.randrange(64 << 10, size_of(clean[further]), 4096)
        place = disk(size + (size_of(around(older)) if over else 0))
        one = ingest(place / f"{index}/out", further, over=over)
        said = ("free", "make room, then run the same command again")
        first = one.judge(row, f"{size} bytes", *said, mend=lambda: disk(LARGE))
        before += "enough room for the dataset, about" in first.error
        shutil.rmtree(one.out.parent)
    assert before, "no try was stopped before it began"


@needs_root(ROWS["filled"][0])
def test_a_disk_that_others_fill(fault, ingest, disk, tries):
    row = fault("disk", *ROWS["filled"])
    for index in range(tries(4, 1)):
        place = disk(LARGE)
        one = ingest(place / f"{index}/out")
        said = (os.strerror(errno.ENOSPC), "are needed", "0 bytes are free")
        how = filled(place, one)
        between = (2 - index % 2, how.command)
        one.judge(row, f"before job {2 - index % 2}", *said, mend=how.mend, between=between)


def test_a_limit_of_files(fault, ingests, ingest, tmp_path, tries):
    told = "one line names the limit and, when known, the needed bytes; a rerun without the limit succeeds"
    row = fault("disk", "a limit on the size of files", told)
    choose = random.Random(SEED)
    for index in range(tries(6, 1)):
        size = choose.randrange(2000, 200_000)
        one = ingest(tmp_path / f"{index}/out")
        before = resource.prlimit(ingests._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(ingests._process.pid, resource.RLIMIT_FSIZE, (size, before[1]))

        def lift(before: tuple[int, int] = before) -> None:
            resource.prlimit(ingests._process.pid, resource.RLIMIT_FSIZE, before)

        one.judge(row, f"{size} bytes", os.strerror(errno.EFBIG), "ulimit -f", mend=lift)


@needs_root(ROWS["read-only"][0])
def test_a_disk_that_becomes_read_only(fault, ingest, disk, tries):
    row = fault("disk", *ROWS["read-only"])
    for index in range(tries(4, 1)):
        place = disk(LARGE)
        one = ingest(place / f"{index}/out")
        how = read_only(place, one)
        if index == 3:
            remount(place, "ro")
        between = None if index == 3 else (2 - index % 2, how.command)
        one.judge(row, f"try {index}", *how.said, mend=how.mend, between=between)


@pytest.fixture(scope="module")
def moments(ingest, tmp_path_factory) -> dict[bool, int]:
    """How many moments an ingest in peace has; by whether it replaces a dataset."""
    found = {}
    for over in (False, True):
        out = tmp_path_factory.mktemp("moments") / "0/out"
        one = ingest(out, over=over)
        trial = one.run(at=(0, 0.0, ""))
        assert trial.code == 0
        assert around(out) == one.wanted
        found[over] = trial.moments
    return found


@pytest.mark.parametrize("kind", [*MOUNTED, "forbidden", "removed"])
def test_at_a_random_moment(fault, ingest, moments, tries, kind, place):
    """Half of the tries replace a dataset, and of each half one in two is struck up to 30 ms after the moment."""
    row = fault("disk", *ROWS[kind])
    choose = random.Random(f"{SEED} {kind}")
    struck = 0
    for over in (False, True):
        last = moments[over] - choose.randrange(PUBLISHING)
        for index, moment in enumerate([*chosen(choose, moments[over], tries(5, 1)), last]):
            out = place / f"{over}{index}/out"
            one = ingest(out, over=over)
            how = HOW[kind](place, one)
            late = choose.uniform(0.0, LATE_S) if index % 2 else 0.0
            about = (
                f"moment {moment} of {moments[over]}, {late:.3f} s late, {'replaces, ' if over else ''}{how.command}"
            )
            first = one.judge(row, about, *how.said, mend=how.mend, codes=(0, 1, 2, 3), at=(moment, late, how.command))
            struck += first.struck and first.code != 0
    assert struck, "every ingest was faster"


def checkpoint(step: int) -> Checkpoint:
    """Returns a checkpoint of 800,000 bytes."""
    from trainer.input.position import Position
    from trainer.training.checkpoint import Checkpoint

    values = np.arange(200_000, dtype=np.float32)
    return Checkpoint(arrays={"model/00000/w": values}, state={"step": step}, position=Position.after(0, 1))


@needs_root(CHECKPOINT)
def test_a_checkpoint_that_does_not_fit(fault, disk):
    from trainer.training.checkpoint import Checkpoints

    row = fault("disk", CHECKPOINT, "one line with the needed bytes; the previous checkpoint is used")
    saved = Checkpoints(str(disk(1_000_000) / "checkpoints"))
    saved.save(1, checkpoint(1))
    said = ""
    try:
        saved.save(2, checkpoint(2))
    except DiskError as error:
        said = str(error)
    told = "about 800.0 kB are needed" in said and "are free" in said and "\n" not in said
    found = saved.latest()
    row.tried(said, lost=found is None, wrong=not told or found is None or found.state != {"step": 1})
    disk(LARGE)
    saved.save(2, checkpoint(2))
    row.tried("again, with room", lost=saved.latest().state != {"step": 2})


def test_a_quota(fault, ingest, clean, older, quotas, tries):
    told = "one line names the quota and, when known, the needed bytes; with a larger quota, a rerun succeeds"
    row = fault("disk", OVER_QUOTA, told)
    choose = random.Random(SEED)
    for index in range(tries(10, 2)):
        further = UNKNOWN if index % 2 else ()
        over = index % 4 == 3
        limit = choose.randrange(64 << 10, size_of(clean[further]), 4096)
        place = quotas.directory(str(index), None)
        one = ingest(place / "0/out", further, over=over)
        quotas.limit(place, limit + (size_of(around(older)) if over else 0))
        said = (os.strerror(errno.EDQUOT), QUOTA_HELP)
        one.judge(row, f"{limit} bytes", *said, mend=lambda place=place: quotas.limit(place, None))


@needs_root(FULL_RUN)
def test_a_run_on_a_full_disk(fault, source, short, disk, tmp_path):
    if short:
        pytest.skip(f"{FULL_RUN}: full form only: it imports TFX, which takes half a minute")
    row = fault("disk", FULL_RUN, "one line with the free bytes; nothing is published")
    root = disk(600 << 10) / "root"
    found = feedline("run", "--images", source, "--root", root, "--splits", "train=0.7,eval=0.3", "--epochs", 1)
    told = found.err.count("feedline: error: ") == 1 and "free" in found.err.splitlines()[-1]
    good = found.code == 1 and told and not found.shows_traceback and not list(root.rglob("dataset.json"))
    row.tried(f"{found.code}, {found.err[-600:]!r}", hang=found.hang, wrong=not good or bool(found.left))


@needs_root(FULL_TEMPORARY)
def test_a_full_disk_of_temporary_files(fault, source, clean, short, disk, tmp_path):
    if short:
        pytest.skip(f"{FULL_TEMPORARY}: full form only: the program itself has to start, which takes ten seconds")
    row = fault("disk", FULL_TEMPORARY, "the ingest does not use this disk and ends with the same bytes")
    place = disk(64 << 10)
    subprocess.run(["dd", "if=/dev/zero", f"of={place / 'filler'}", "bs=4k"], stderr=subprocess.DEVNULL)
    out = tmp_path / "dataset" / "out"
    command = ("ingest", source, "--out", out, "--splits", "all=1", *ARGUMENTS)
    found = feedline(*command, env={"TMPDIR": str(place)})
    good = found.code == 0 and around(out) == clean[()]
    row.tried(f"{found.code}, {found.err[-300:]!r}", hang=found.hang, wrong=not good or bool(found.left))

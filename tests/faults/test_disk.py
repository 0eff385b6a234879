"""Disks that are too small, become full, read-only or forbidden, or whose directories are removed, under an ingest.

The small disks are memory disks, and directories with a quota come from `quota`; only root may mount either. Commands
run by `trials`, where file modes bind root too.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from beam_jobs.errors import DiskError
from tests.beam_jobs.runs import files_under
from tests.faults import quota
from tests.faults.matrix import Row
from tests.faults.process import feedline
from tests.faults.trials import Trial
from tests.make_images import class_folders, encode

if TYPE_CHECKING:  # it imports Keras
    from trainer.checkpoint import Checkpoint

pytestmark = pytest.mark.timeout(900)

SEED = 22
IMAGES = 30
LARGE = 64 << 20
ARGUMENTS = ("--shards", 2, "--threads", 2)
# What is full, for the arguments that leave the room for the dataset to be found out by writing it.
UNKNOWN = ("--duplicates", "drop")
QUOTA_HELP = "raise the quota or remove what counts against it, then run the same command again"
# Bytes with which `feedline run` comes no further than the database of its root, or the first checkpoint.
AT_THE_START, IN_THE_TRAINING = 96 << 10, 2 << 20

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


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
def clean(source, ingests, tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """The files of datasets that nothing came in the way of, by their further arguments."""
    found = {}
    for arguments in ((), UNKNOWN):
        out = tmp_path_factory.mktemp("clean") / "out"
        assert ingests.ingest(source, out, *ARGUMENTS, *arguments).code == 0
        found[arguments] = files_under(out)
    return found


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[int], Path]]:
    """Makes a disk of so many bytes, or changes the one there is."""
    place = tmp_path / "disk"
    place.mkdir()

    def make(size: int) -> Path:
        again = ["-o", f"remount,size={size}"] if os.path.ismount(place) else ["-t", "tmpfs", "-o", f"size={size}"]
        subprocess.run(["mount", *again, "feedline-test", place], check=True)
        return place

    yield make
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", place], check=True)


def judge(
    row: Row,
    about: str,
    first: Trial,
    again: Trial,
    wanted: dict[str, bytes],
    *said: str,
    codes: tuple[int, ...] = (1, 2),
) -> None:
    """Enters a try: it had to end with one line that says something, and the run after it with the whole dataset."""
    lines = first.error.splitlines()
    told = len(lines) == 1 and all(part in lines[0] for part in said)
    unexpected = "Traceback" in first.err or "--debug" in first.err
    published = first.code == 0
    kept = files_under(again.out)
    good = first.code in codes and told and not unexpected and not published and again.code == 0
    lost = sorted(wanted.keys() - kept.keys())
    about = f"{about}: {first.code}, {first.err[-400:]!r}; then {again.code}, {again.err[-300:]!r}, lost {lost[:3]}"
    wrong = not good or kept != wanted
    row.tried(about, hang=first.hang or again.hang, lost=again.code == 0 and bool(lost), wrong=wrong)


@pytest.fixture
def quotas(tmp_path) -> Iterator[quota.Quotas]:
    """A file system whose directories have quotas."""
    if reason := quota.missing():
        pytest.skip(reason)
    with quota.mounted(tmp_path) as found:
        yield found


@needs_root
def test_a_disk_that_is_too_small(fault, ingests, source, clean, disk, tries):
    row = fault("disk", "a disk with too little room", "one line with the bytes needed; with room, a rerun ends")
    choose = random.Random(SEED)
    for index in range(tries(16, 3)):
        arguments = UNKNOWN if index % 3 else ()
        size = choose.randrange(64 << 10, sum(map(len, clean[arguments].values())), 4096)
        out = disk(size) / f"out{index}"
        first = ingests.ingest(source, out, *ARGUMENTS, *arguments)
        published = (out / "dataset.json").exists()
        disk(LARGE)
        again = ingests.ingest(source, out, *ARGUMENTS, *arguments)
        said = ["free", "make room, then run the same command again"]
        assert not published or first.code == 0
        judge(row, f"{size} bytes, {arguments}", first, again, clean[arguments], *said)
        subprocess.run(["rm", "-rf", out], check=True)


@needs_root
def test_a_disk_that_others_fill(fault, ingests, source, clean, disk, tries):
    row = fault("disk", "a disk that others fill meanwhile", "one line with the bytes free; a rerun with room ends")
    for index in range(tries(4, 1)):
        place = disk(LARGE)
        out, filler = place / f"out{index}", place / "filler"
        fill = f"dd if=/dev/zero of={shlex.quote(str(filler))} bs=64k 2>/dev/null || true"
        first = ingests.ingest(source, out, *ARGUMENTS, between=(2 - index % 2, fill))
        filler.unlink()
        again = ingests.ingest(source, out, *ARGUMENTS)
        said = (os.strerror(errno.ENOSPC), "0 bytes are free")
        judge(row, f"before job {2 - index % 2}", first, again, clean[()], *said)


def test_a_limit_of_files(fault, ingests, source, clean, tmp_path, tries):
    row = fault("disk", "a limit of the size of files", "one line names the limit; a rerun without it ends")
    choose = random.Random(SEED)
    for index in range(tries(6, 1)):
        size, out = choose.randrange(2000, 200_000), tmp_path / str(index)
        pid = ingests._process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
        first = ingests.ingest(source, out, *ARGUMENTS)
        resource.prlimit(ingests._process.pid, resource.RLIMIT_FSIZE, before)
        again = ingests.ingest(source, out, *ARGUMENTS)
        judge(row, f"{size} bytes", first, again, clean[()], os.strerror(errno.EFBIG), "ulimit -f")


@needs_root
def test_a_disk_that_becomes_read_only(fault, ingests, source, clean, disk, tries):
    row = fault("disk", "a disk that becomes read-only", "one line says so; a rerun ends when it can be written again")
    for index in range(tries(4, 1)):
        place = disk(LARGE)
        out = place / f"out{index}"
        lock = f"mount -o remount,ro {shlex.quote(str(place))}"
        if index == 3:
            subprocess.run(["sh", "-c", lock], check=True)
        first = ingests.ingest(source, out, *ARGUMENTS, between=None if index == 3 else (2 - index % 2, lock))
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        again = ingests.ingest(source, out, *ARGUMENTS)
        judge(row, f"try {index}", first, again, clean[()], os.strerror(errno.EROFS))


def test_a_right_that_is_lost(fault, ingests, source, clean, tmp_path, tries):
    row = fault("disk", "the right to write is lost half way", "one line names the file; a rerun ends with the right")
    for index in range(tries(4, 1)):
        out = tmp_path / str(index)
        forbid = f"find {shlex.quote(str(out))} -type d -exec chmod a-w {{}} +"
        first = ingests.ingest(source, out, *ARGUMENTS, between=(2 - index % 2, forbid))
        subprocess.run(["find", out, "-type", "d", "-exec", "chmod", "u+w", "{}", "+"], check=True)
        again = ingests.ingest(source, out, *ARGUMENTS)
        judge(row, f"before job {2 - index % 2}", first, again, clean[()], os.strerror(errno.EACCES), str(out))


def test_a_directory_that_is_removed(fault, ingests, source, clean, tmp_path, tries):
    row = fault("disk", "the output is removed half way", "one line names what is gone; a rerun begins anew and ends")
    choose = random.Random(SEED)
    for index in range(tries(8, 1)):
        out = tmp_path / str(index)
        late = choose.uniform(0.0, 0.3) if index > 1 else 0.0
        remove = f"rm -rf {shlex.quote(str(out))}"
        between = f"(sleep {late}; {remove}) > /dev/null 2>&1 &" if late else remove
        first = ingests.ingest(source, out, *ARGUMENTS, between=(2 - index % 2, between))
        if first.code == 0:  # it was faster, or nothing that was removed was needed any more
            subprocess.run(["sh", "-c", f"sleep 1; {remove}"], check=True)
            continue
        subprocess.run(["sleep", "0.5"], check=True)
        again = ingests.ingest(source, out, *ARGUMENTS)
        about = f"before job {2 - index % 2}, {late:.2f} s later"
        # 3: a shard was written and is not there when it is looked at.
        judge(row, about, first, again, clean[()], str(out), codes=(1, 2, 3))


def checkpoint(step: int) -> Checkpoint:
    """Returns a checkpoint of 800,000 bytes."""
    from trainer.checkpoint import Checkpoint
    from trainer.position import Position

    values = np.arange(200_000, dtype=np.float32)
    return Checkpoint(arrays={"model/00000/w": values}, state={"step": step}, position=Position.after(0, 1))


@needs_root
def test_a_checkpoint_that_does_not_fit(fault, disk):
    from trainer.checkpoint import Checkpoints

    row = fault("disk", "a checkpoint that does not fit", "one line with the bytes needed; the one before counts")
    saved = Checkpoints(str(disk(1_000_000) / "checkpoints"))
    saved.save(1, checkpoint(1))
    said = ""
    try:
        saved.save(2, checkpoint(2))
    except DiskError as error:
        said = str(error)
    told = "about 800,000 bytes are needed" in said and "are free" in said and "\n" not in said
    found = saved.latest()
    row.tried(said, lost=found is None, wrong=not told or found is None or found.state != {"step": 1})
    disk(LARGE)
    saved.save(2, checkpoint(2))
    row.tried("again, with room", lost=saved.latest().state != {"step": 2})


def test_a_quota(fault, ingests, source, clean, quotas, tries):
    row = fault("disk", "a quota that is used up", "one line names the quota; with a larger one, a rerun ends")
    choose = random.Random(SEED)
    for index in range(tries(10, 2)):
        arguments = UNKNOWN if index % 2 else ()
        limit = choose.randrange(64 << 10, sum(map(len, clean[arguments].values())), 4096)
        place = quotas.directory(str(index), limit)
        out = place / "out"
        first = ingests.ingest(source, out, *ARGUMENTS, *arguments)
        assert not (out / "dataset.json").exists() or first.code == 0
        quotas.limit(place, None)
        again = ingests.ingest(source, out, *ARGUMENTS, *arguments)
        said = (os.strerror(errno.EDQUOT), QUOTA_HELP)
        judge(row, f"{limit} bytes, {arguments}", first, again, clean[arguments], *said)


def test_a_checkpoint_over_the_quota(fault, quotas):
    from trainer.checkpoint import Checkpoints

    row = fault("disk", "a checkpoint over the quota", "one line names the quota; the one before counts")
    place = quotas.directory("training", 1_000_000)
    saved = Checkpoints(str(place / "checkpoints"))
    saved.save(1, checkpoint(1))
    said = ""
    try:
        saved.save(2, checkpoint(2))
    except DiskError as error:
        said = str(error)
    told = f"{os.strerror(errno.EDQUOT)} while writing a checkpoint (about 800,000 bytes are needed)" in said
    found = saved.latest()
    wrong = not told or QUOTA_HELP not in said or "\n" in said or found is None or found.state != {"step": 1}
    row.tried(said, lost=found is None, wrong=wrong)
    quotas.limit(place, None)
    saved.save(2, checkpoint(2))
    row.tried("again, with a larger one", lost=saved.latest().state != {"step": 2})


def test_a_run_over_the_quota(fault, short, quotas, tmp_path):
    if short:
        pytest.skip("full form only: it imports TFX, which takes half a minute")
    row = fault("disk", "`feedline run` over the quota", "one line names the quota; with a larger one, a rerun ends")
    source = class_folders(tmp_path / "photos", per_class=24)
    place = quotas.directory("run", AT_THE_START)
    root = place / "root"
    shape = ("--splits", "train=0.7,eval=0.3", "--epochs", 1, "--image-side", 32)
    arguments = ("--images", source, "--root", root, *shape)
    for limit, found in ((AT_THE_START, 0), (IN_THE_TRAINING, 1)):
        quotas.limit(place, limit)
        outcome = feedline("run", *arguments, timeout=600)
        last = outcome.err.splitlines()[-1]
        told = outcome.err.count("feedline: error: ") == 1 and os.strerror(errno.EDQUOT) in last and QUOTA_HELP in last
        whole = len(list(root.rglob("dataset.json"))) == found and not (root / "serving").exists()
        good = outcome.code == 1 and told and whole and not outcome.shows_traceback
        about = f"{limit} bytes: {outcome.code}, {outcome.err[-600:]!r}"
        row.tried(about, hang=outcome.hang, wrong=not good or bool(outcome.left))
    quotas.limit(place, None)
    outcome = feedline("run", *arguments, timeout=600)
    pushed = list(root.glob("serving/*/saved_model.pb"))
    about = f"again: {outcome.code}, {outcome.err[-600:]!r}"
    row.tried(about, hang=outcome.hang, lost=not pushed, wrong=outcome.code != 0 or outcome.shows_traceback)


@needs_root
def test_a_run_on_a_full_disk(fault, source, short, disk, tmp_path):
    if short:
        pytest.skip("full form only: it imports TFX, which takes half a minute")
    row = fault("disk", "`feedline run` on a full disk", "one line with the bytes free; nothing is published")
    root = disk(600 << 10) / "root"
    found = feedline("run", "--images", source, "--root", root, "--splits", "train=0.7,eval=0.3", "--epochs", 1)
    told = found.err.count("feedline: error: ") == 1 and "free" in found.err.splitlines()[-1]
    good = found.code == 1 and told and not found.shows_traceback and not list(root.rglob("dataset.json"))
    row.tried(f"{found.code}, {found.err[-600:]!r}", hang=found.hang, wrong=not good or bool(found.left))


@needs_root
def test_a_full_disk_of_temporary_files(fault, source, clean, short, disk, tmp_path):
    if short:
        pytest.skip("full form only: the program itself has to start, which takes ten seconds")
    row = fault("disk", "a full disk of temporary files", "the ingest needs none of it and ends with the same bytes")
    place = disk(64 << 10)
    subprocess.run(["dd", "if=/dev/zero", f"of={place / 'filler'}", "bs=4k"], stderr=subprocess.DEVNULL)
    out = tmp_path / "out"
    command = ("ingest", source, "--out", out, "--max-reject-ratio", 1, "--splits", "all=1", *ARGUMENTS)
    found = feedline(*command, env={"TMPDIR": str(place)})
    good = found.code == 0 and files_under(out) == clean[()]
    row.tried(f"{found.code}, {found.err[-300:]!r}", hang=found.hang, wrong=not good or bool(found.left))

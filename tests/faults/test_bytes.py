"""Torn, flipped, lost, added and exchanged bytes: of a published dataset, and of what an interrupted ingest leaves.

`verify` names every one of a dataset, and training ends; an ingest that is run again never publishes other bytes.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import tfrecord
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import FeedlineError
from beam_jobs.options import IngestOptions
from tests.beam_jobs import kill
from tests.beam_jobs.runs import KilledAfterWriting, files_under
from tests.faults.bounded import Ended, bounded
from tests.faults.dataset_files import Files
from tests.faults.process import feedline
from tests.make_images import class_folders

pytestmark = pytest.mark.timeout(900)

_SECONDS = 120.0  # what takes longer hangs; all of it takes well under one
_HEAD, _TAIL = 12, 4  # of the framing around a record
# Where in a record a shard may end: length, its checksum, payload, its checksum.
_CUTS = {"length": 3, "checksum of the length": 10, "start of the data": _HEAD, "data": 200}
_CUTS_FROM_END = {"checksum of the data": -2, "end of the data": -_TAIL}


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A dataset of 24 photographs and a reject: two splits, two shards each."""
    folder = tmp_path_factory.mktemp("bytes")
    source = class_folders(folder / "source")
    (source / "china" / "broken.jpg").write_bytes(b"no image")
    ingest.run(IngestOptions(source=str(source), out=str(folder / "out"), splits={"train": 0.7, "eval": 0.3}, shards=2))
    return folder / "out"


@pytest.fixture
def files(published, tmp_path) -> Files:
    return Files(Path(shutil.copytree(published, tmp_path / "dataset")))


def judge(row, files: Files, about: str, name: str, offset: int | None = None) -> None:
    """Verifies a damaged dataset: a line must name the file, and the offset of the record where there is one."""
    ended = bounded(lambda: _problems(files.root), _SECONDS)
    if ended.error:
        raise ended.error
    lines = ended.value or []
    named = [line for line in lines if name in line]
    right = named if offset is None else [line for line in named if re.search(rf"offset {offset}\b", line)]
    row.tried(about, hang=ended.hang, lost=not ended.hang and not lines, wrong=bool(lines) and not right)
    files.restore()


def _problems(root: Path) -> list[str]:
    try:
        return verify(str(root)).problems
    except FeedlineError as error:
        return [str(error)]


def test_a_shard_that_is_cut_anywhere(fault, files):
    row = fault("bytes", "shards truncated in any part", "verify names shard and offset, or the missing records")
    for name in files.shards:
        starts = files.starts[name]
        records = list(itertools.pairwise(starts))
        for start, end in {records[0], records[len(records) // 2], records[-1]}:
            places = {what: start + place for what, place in _CUTS.items()}
            places |= {what: end + place for what, place in _CUTS_FROM_END.items()}
            for what, place in places.items():
                files.change(name, files[name][:place])
                judge(row, files, f"{name} cut in the {what} at {place}", name, start)
            files.change(name, files[name][:start])
            judge(row, files, f"{name} cut between records at {start}", name)


def test_a_file_beside_the_shards_that_is_cut(fault, files):
    row = fault("bytes", "other files of a dataset truncated or emptied", "verify names the file")
    for name in set(files.names) - set(files.shards):
        size = len(files[name])
        for place in {0, 1, size // 3, size // 2, size - 4, size - 1}:
            files.change(name, files[name][:place])
            judge(row, files, f"{name} cut at {place}", name)


def test_a_file_that_is_gone_zeroed_or_grown(fault, files):
    lost = fault("bytes", "files removed", "verify names the file")
    zeroed = fault("bytes", "files that contain only zeros, as after a power failure", "verify names the file")
    grown = fault("bytes", "bytes added to the end of files", "verify names the file")
    record = b"".join(tfrecord.frame(b"more"))
    for name in files.names:
        (files.root / name).unlink()
        judge(lost, files, f"{name} removed", name if name != "dataset.json" else str(files.root))
        files.change(name, bytes(len(files[name])))
        judge(zeroed, files, f"{name} zeroed", name)
        for more in (b"\n", b" ", b"\0" * 16, record, files[name]):
            files.change(name, files[name] + more)
            judge(grown, files, f"{name} and {len(more)} bytes", name)


def test_shards_in_each_others_place_and_shards_too_many(fault, files):
    swapped = fault("bytes", "two shards exchanged", "verify names both shards")
    for one, other in itertools.combinations(files.shards, 2):
        for place in (one, other):
            files.change(one, files[other])
            files.change(other, files[one])
            judge(swapped, files, f"{one} and {other} swapped", place, 0)
    extra = fault("bytes", "shards that do not belong to the dataset", "verify names the file or the split")
    for name in files.shards:
        for copy in (name.replace("data-", "more-"), name.replace("of-00002", "of-00003"), name + ".bak"):
            files.change(copy, files[name])
            judge(extra, files, f"{copy} added", copy)
        files.change("Split-test/" + Path(name).name, files[name])
        judge(extra, files, "a split added", "Split-test")


def test_flipped_bits_of_all_files(fault, files, tries):
    row = fault("bytes", "single flipped bits, all files", "verify names the file, and the offset in a shard")
    for name, position, bit in _flips(files, files.names, tries(1000, 60)):
        files.change(name, _flipped(files[name], position, bit))
        judge(row, files, f"{name} byte {position} bit {bit}", name, files.record_at(name, position))


def test_flipped_bits_by_the_command_line(fault, files, tries):
    row = fault("bytes", "single flipped bits, command line", "exit code 3, a line that names the file, no traceback")
    for name, position, bit in _flips(files, files.names, tries(3, 1)):
        files.change(name, _flipped(files[name], position, bit))
        done = feedline("verify", files.root)
        named = done.code == 3 and name in done.out + done.err and not done.shows_traceback
        row.tried(f"{name} byte {position} bit {bit}", hang=done.hang, lost=done.code == 0, wrong=not named)
        files.restore()


def test_training_on_flipped_bits_ends_and_is_told_where(fault, files, tries):
    row = fault("bytes", "training on single flipped bits", "the input ends with an error that names shard and offset")
    shards = [name for name in files.shards if "train" in name]
    for name, position, bit in _flips(files, shards, tries(60, 4)):
        files.change(name, _flipped(files[name], position, bit))
        _judge_training(row, files, f"{name} byte {position} bit {bit}", name, files.record_at(name, position))


def test_training_on_a_cut_shard_ends_and_is_told_where(fault, files, tries):
    row = fault("bytes", "training on truncated shards", "the input ends with an error that names shard and offset")
    for name in [name for name in files.shards if "train" in name]:
        start, end = files.starts[name][-3:-1]
        for what, place in list(_CUTS.items())[: tries(9, 1)]:
            files.change(name, files[name][: start + place])
            _judge_training(row, files, f"{name} cut in the {what}", name, start)
        for place in (0, end)[: tries(2, 1)]:
            files.change(name, files[name][:place])
            _judge_training(row, files, f"{name} cut between records at {place}", name, place)


@pytest.mark.parametrize("name", ["dataset.json", "images/part-train-00000.parquet"])
def test_training_with_a_table_that_is_not_of_the_shards(fault, files, tries, name):
    subject = "file of the image table" if name.startswith("images/") else name
    row = fault("bytes", f"training on a damaged {subject}", "an error that names the file, or exactly the same epoch")
    whole = _read(files.root)
    assert len({key for key, _ in whole}) == len(whole) > 10
    for _, position, bit in _flips(files, [name], tries(40, 3)):
        files.change(name, _flipped(files[name], position, bit))
        ended = bounded(lambda: _read(files.root), _SECONDS)
        right = ended.value == whole or _names(files, ended.error, name)
        row.tried(
            f"byte {position} bit {bit}: {ended.error!r:.300}", hang=ended.hang, wrong=not ended.hang and not right
        )
        files.restore()


# Of the files that an interrupted ingest leaves, those of one kind, by a pattern.
LEFT = {
    "what is done of a bucket": "_work/examined/done-*",
    "facts": "_work/examined/facts-*",
    "rejects": "_work/examined/rejects-*",
    "images that were changed": "_work/examined/spool-*",
    "what is known of a shard": "_work/written/*",
    "shards": "Split-*/*",
    "parts of the image table": "images/*",
    "references": "_work/refs/*",
    "plans": "_work/plan/*",
    "the mark": "_work/feedline.json",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    """Images of which four are changed and one is rejected, and the dataset that becomes of them."""
    folder = tmp_path_factory.mktemp("resumed")
    source = kill.make_source(folder / "source")
    (source / "china" / "broken.jpg").write_bytes(b"no image")
    ingest.run(_resumable(source, folder / "out"))
    return source, files_under(folder / "out")


@pytest.fixture
def interrupted(undisturbed, tmp_path) -> Files:
    """What an ingest leaves that ends half way through writing its shards."""
    source, _ = undisturbed
    with pytest.raises(KeyboardInterrupt):
        ingest.run(_resumable(source, tmp_path / "out"), KilledAfterWriting())
    unfinished = ("_work/written/*-00001-*", "Split-*/*-00001-*", "images/*-00001.*")
    for path in itertools.chain.from_iterable((tmp_path / "out").glob(pattern) for pattern in unfinished):
        path.unlink()
    return Files(tmp_path / "out")


@pytest.mark.parametrize("kind", LEFT)
def test_an_ingest_goes_on_from_what_is_damaged(fault, undisturbed, interrupted, tries, kind):
    row = fault(
        "bytes",
        "corrupted and truncated files of an interrupted ingest",
        "a rerun ends with the same bytes, or with one line; in that case the next rerun does",
    )
    source, wanted = undisturbed
    names = [name for name in interrupted.names if Path(name).match(LEFT[kind])]
    assert names
    draw = random.Random(kind)
    for number in range(tries(6, 1)):
        name = draw.choice(names)
        data = interrupted[name]
        place = draw.randrange(len(data))
        damaged = data[:place] if number % 3 == 2 else _flipped(data, place, draw.randrange(8))
        interrupted.change(name, damaged)
        first = _again(source, interrupted.root)
        second = _again(source, interrupted.root) if isinstance(first.error, FeedlineError) else first
        told = not first.error or (isinstance(first.error, FeedlineError) and len(str(first.error).splitlines()) == 1)
        right = told and not second.error and files_under(interrupted.root) == wanted
        about = (
            f"{name} {'cut' if number % 3 == 2 else 'flipped'} at {place}: {first.error!r:.300} {second.error!r:.300}"
        )
        hang = first.hang or second.hang
        row.tried(about, hang=hang, wrong=not hang and not right)
        shutil.rmtree(interrupted.root)
        interrupted.root.mkdir()
        interrupted.restore()


def _resumable(source: Path, out: Path) -> IngestOptions:
    splits = {"train": 0.6, "eval": 0.4}
    return IngestOptions(source=str(source), out=str(out), splits=splits, shards=2, bucket_images=10, threads=2)


def _again(source: Path, out: Path) -> Ended:
    return bounded(lambda: ingest.run(_resumable(source, out)), _SECONDS)


def _flips(files: Files, names: list[str], count: int) -> Iterator[tuple[str, int, int]]:
    """Yields file, byte and bit: half of the files drawn alike, half by their size."""
    draw = random.Random(0)
    sizes = [len(files[name]) for name in names]
    for number in range(count):
        name = draw.choice(names) if number % 2 else draw.choices(names, sizes)[0]
        yield name, draw.randrange(len(files[name])), draw.randrange(8)


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def _judge_training(row, files: Files, about: str, name: str, offset: int) -> None:
    ended = bounded(lambda: _read(files.root), _SECONDS)
    named = _names(files, ended.error, name, offset)
    row.tried(about, hang=ended.hang, lost=ended.value is not None, wrong=not ended.hang and not named)
    files.restore()


def _names(files: Files, error: BaseException | None, name: str, offset: int | None = None) -> bool:
    import tensorflow as tf  # takes seconds, in each of the workers that collect

    from trainer.input.corrupt_records import explain

    if isinstance(error, tf.errors.OpError):
        error = explain(str(files.root), "train", error)  # as `feedline train` does
    found = isinstance(error, FeedlineError) and str(files.root / name) in str(error)
    return found and (offset is None or re.search(rf"offset {offset}\b", str(error)) is not None)


def _read(root: Path) -> list[tuple[str, int]]:
    """Returns key and label of every image of an epoch of training, in its order."""
    from trainer.input_fn import make_dataset
    from trainer.options import InputOptions

    options = InputOptions(image_side_px=8, batch_size=4, threads=2, cache="none")
    dataset = make_dataset(str(root), "train", options, training=True)
    return [
        (key.decode(), int(label))
        for features, labels in dataset.as_numpy_iterator()
        for key, label in zip(features["key"], labels, strict=True)
        if key
    ]

"""Two attempts at one unit of work at the same time: a worker that is taken for dead, and its replacement."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import google_crc32c
import pytest

from beam_jobs import ingest, storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages import transforms, write
from beam_jobs.stages.examine import ExamineTask, examine_bucket, facts_path, rejects_path
from beam_jobs.stages.scan import Bucket, scan
from beam_jobs.stages.write import load_sidecar, write_shard
from tests.beam_jobs import gcs_server, kill, s3_server
from tests.beam_jobs.make_rows import make_ref
from tests.beam_jobs.runs import files_under
from tests.beam_jobs.turns import Turns, on_every_request
from tests.make_images import crop, encode, jpeg, png

FILES = {
    "1.jpg": jpeg(1),
    "2.png": png(2),
    "3.webp": encode(crop(3), "WEBP", quality=80),  # is changed, so it passes through the spool
    "4.jpg": jpeg(4),
    "5.jpg": jpeg(5),
    "6.png": png(6),
}
LOCAL = range(10)
REMOTE = range(2)  # orders a store: a request takes a hundred times as long as a file


@pytest.fixture(params=["local", "s3", "gs"])
def place(request, monkeypatch, tmp_path) -> Iterator[str]:
    """A folder, or a bucket of each kind of store."""
    if request.param == "local":
        yield str(tmp_path / "out")
        return
    on_every_request(monkeypatch)
    if request.param == "s3":
        yield f"{s3_server.new_bucket(monkeypatch)}/out"
        return
    with gcs_server.serving(monkeypatch, tmp_path):
        yield "gs://bucket/out"


def seeds_of(place: str) -> range:
    return REMOTE if storage.is_remote(place) else LOCAL


def two_sources(folder: Path) -> list[str]:
    """Makes the images twice; the second time one of them is damaged."""
    for name, data in FILES.items():
        for source in ("good", "damaged"):
            path = folder / source / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"no image" if (source, name) == ("damaged", "4.jpg") else data)
    return [str(folder / "good"), str(folder / "damaged")]


def attempt(bucket: Bucket, base: str, work: str) -> partial:
    limits = ImageLimits()
    reader = Reader(base=base, max_bytes=limits.max_bytes, work=work)
    task = ExamineTask(reader=reader, limits=limits, pixels=PixelOptions(), facts="all", threads=1)
    return partial(examine_bucket, bucket, task)


def test_two_attempts_at_a_bucket_leave_the_result_of_one(place, tmp_path):
    bases = two_sources(tmp_path)
    refs = [make_ref(name, bytes=len(data)) for name, data in FILES.items()]
    (bucket,) = scan(refs, str(tmp_path / "refs"), 100, {}, "").buckets
    counted = Counter()
    for seed in seeds_of(place):
        work = storage.join(place, str(seed))
        outcomes = Turns(seed, work).run(*(attempt(bucket, base, work) for base in bases))
        facts = schemas.read(facts_path(work, bucket)).to_pylist()
        rejects = schemas.read(rejects_path(work, bucket)).to_pylist()
        assert sorted(row["key"] for row in (*facts, *rejects)) == sorted(FILES), seed
        # Both attempts tell of the same result, which is the one that is there.
        assert {(one.good, one.rejected) for one in outcomes} == {(len(facts), len(rejects))}, seed
        assert sum(not one.resumed for one in outcomes) == 1, seed
        reader = Reader(base=bases[0], max_bytes=1 << 20, work=work)
        assert all(google_crc32c.value(reader.read(row["uri"], row["slice"])) == row["crc32c"] for row in facts)
        names = storage.list_files(storage.join(work, "examined"))
        assert [name.partition("-")[0] for name in names] == ["done", "facts", "rejects", "spool"], seed
        counted[len(facts)] += 1
    assert storage.is_remote(place) or set(counted) == {5, 6}  # each of the two counts in some order


@pytest.mark.parametrize("place", ["local", "gs"], indirect=True)
def test_two_attempts_at_a_shard_leave_the_file_of_one(place, stages):
    shard, folders = stages.shards[0], []
    for seed in seeds_of(place):
        out = storage.join(place, str(seed))
        one = replace(stages.task, out=out, reader=replace(stages.task.reader, work=storage.join(out, "_work")))
        other = replace(one, channel_statistics=False)  # as of a worker with other code: its records are not the same
        folder = storage.join(out, "Split-train")

        def look(folder: str = folder) -> None:
            if not storage.is_remote(folder):
                folders.append(storage.list_files(folder))

        written = Turns(seed, out, look).run(*(partial(write_shard, shard, task) for task in (one, other)))
        assert sorted(written) == [False, True], seed
        sidecar = load_sidecar(one.work, shard)
        for file, path in sidecar.files(out, shard):
            assert (storage.checksum(path), storage.size(path)) == (file.crc32c, file.bytes), seed
        assert storage.list_files(folder) == [shard.name], seed
        assert storage.list_files(storage.join(out, "images")) == [shard.part_name], seed
        assert [name.rpartition(".")[2] for name in storage.list_files(storage.join(one.work, "written"))] == ["json"]
    assert all(names in ([], [shard.name]) for names in folders), "no folder holds a second attempt at any moment"


@pytest.mark.parametrize("place", ["local", "s3"], indirect=True)
def test_a_job_that_does_everything_twice_at_once_loses_nothing(place, monkeypatch, tmp_path):
    source = kill.make_source(tmp_path / "source")
    (source / "china" / "broken.jpg").write_bytes(b"no image")
    clean = kill.options_of(str(source), tmp_path / "clean")
    ingest.run(clean)
    seeds = itertools.count()
    twice(monkeypatch, transforms, "examine_bucket", seeds, place)
    twice(monkeypatch, write, "write_shard", seeds, place)
    counts = ingest.run(IngestOptions(source=str(source), out=place, **kill.OPTIONS)).counts
    assert counts.found == counts.written + sum(counts.rejects.values()) + counts.duplicates_dropped == 29
    names = [name for name, *_ in storage.list_objects(place)] if storage.is_remote(place) else files_under(Path(place))
    found = {name: storage.read_bytes(storage.join(place, name)) for name in names}
    assert found == files_under(Path(clean.out))
    assert manifest.load(place).digest == manifest.load(clean.out).digest


def twice(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, seeds: Iterator[int], place: str) -> None:
    """Has a worker do each unit of work twice at the same time."""
    real = getattr(module, name)

    def run(unit, task):
        outcomes = Turns(next(seeds), place).run(partial(real, unit, task), partial(real, unit, task))
        return outcomes[0]

    monkeypatch.setattr(module, name, run)

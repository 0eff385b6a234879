"""Training from object stores: the batches of the local dataset, byte for byte, and every file fetched once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import ingest, storage
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, DatasetChanged, OptionError, SourceError
from beam_jobs.options import IngestOptions
from tests.make_images import encode, flipped
from tests.stores.digest import digest
from tests.trainer.batches import options, read, together
from trainer.input import download
from trainer.input.faults import cause_of
from trainer.input.position import Host, Position
from trainer.input_fn import epoch_records, make_dataset
from trainer.training.checkpoint import Checkpoint, Checkpoints

pytestmark = pytest.mark.stores

SMALL = {"train_ops": "decode|resize(24)|random_crop(8)|flip", "eval_ops": "decode|resize(8)", "shuffle_mb": 0.02}
SPAWN_SECONDS = 200
ROOT = Path(__file__).parent.parent.parent
# Reads a split in a process of its own and prints a digest of all it delivers.
READER = """
import json, sys
from tests.trainer.batches import options, read
from tests.stores.digest import digest
print(digest(read(sys.argv[1], options(**json.loads(sys.argv[2])), epochs=2)))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "_locks", {})
    return tmp_path / "cache" / "feedline" / "datasets"


@pytest.fixture
def there(dataset, s3_bucket) -> str:
    return s3_bucket.put_tree("dataset", dataset)


def fetched(bucket) -> list[str]:
    """The shards that were read, a request each, sorted."""
    return sorted(asked.path for asked in bucket.tap.asked if asked.method == "GET" and ".tfrecord" in asked.path)


def copies(cache: Path) -> list[str]:
    """The files of all copies."""
    return sorted("/".join(path.relative_to(cache).parts[1:]) for path in cache.rglob("*") if path.is_file())


def start_reader(path: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", READER, path, json.dumps(SMALL)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def finish(reader: subprocess.Popen[str]) -> str:
    out, err = reader.communicate(timeout=SPAWN_SECONDS)
    assert reader.returncode == 0, err
    return out.splitlines()[-1]


@pytest.mark.parametrize("shuffle", ["window", "global"])
def test_the_batches_of_a_bucket_are_those_of_the_folder(dataset, there, shuffle):
    given = options(**SMALL, shuffle=shuffle)
    assert read(there, given, epochs=2) == read(dataset, given, epochs=2)
    assert read(there, given, training=False, split="eval") == read(dataset, given, training=False, split="eval")


def test_a_start_in_the_middle_and_several_hosts_deliver_the_same(dataset, there):
    given = options(**SMALL, lanes=2)
    start = Position(epoch=1, records=5)
    assert read(there, given, epochs=2, start=start) == read(dataset, given, epochs=2, start=start)
    for index in range(2):
        host = Host(index=index, count=2)
        given = options(**{**SMALL, "batch_size": 2, "lanes": 2})
        assert read(there, given, epochs=2, host=host) == read(dataset, given, epochs=2, host=host)


def test_user_columns_and_caches_work_on_what_was_fetched(dataset, there, tmp_path):
    local, away = (options(**{**SMALL, "cache": "disk", "cache_dir": str(tmp_path / name)}) for name in ("a", "b"))
    assert read(there, away, epochs=2) == read(dataset, local, epochs=2)
    assert (tmp_path / "b" / "datasets").is_dir()
    assert not (tmp_path / "cache").exists()


def test_every_shard_is_fetched_once_and_only_those_of_the_split(dataset, there, s3_bucket):
    read(there, options(**SMALL), epochs=2)
    read(there, options(**SMALL))
    (folder,) = {Path(path).parent.name for path in fetched(s3_bucket)}
    assert folder == "Split-train"
    train = manifest.load(str(dataset)).split("train")
    assert len(fetched(s3_bucket)) == len(train.shards)
    assert sum(size for path, size in s3_bucket.tap.sent.items() if ".tfrecord" in path) == train.bytes
    read(there, options(**SMALL), split="eval", training=False)
    assert {Path(path).parent.name for path in fetched(s3_bucket)} == {"Split-train", "Split-eval"}


def test_a_fetch_that_breaks_off_goes_on_where_it_was(dataset, there, s3_bucket, cache):
    shards = manifest.load(str(dataset)).splits["train"].shards
    s3_bucket.tap.refuse = lambda asked: 503 * asked.path.endswith(shards[-1].name)
    with pytest.raises(SourceError, match="cannot be read: .*; try again, downloaded files are kept") as told:
        read(there, options(**SMALL, readers=1))
    assert "\n" not in str(told.value)
    assert not [name for name in copies(cache) if shards[-1].name in name]
    s3_bucket.tap.refuse = lambda _: 0
    s3_bucket.tap.asked.clear()
    assert read(there, options(**SMALL)) == read(dataset, options(**SMALL))
    assert [Path(path).name for path in fetched(s3_bucket)] == [shards[-1].name]


def test_processes_that_start_together_fetch_together(dataset, there, s3_bucket):
    readers = [start_reader(there) for _ in range(2)]
    expected = digest(read(dataset, options(**SMALL), epochs=2))
    assert [finish(reader) for reader in readers] == [expected, expected]
    assert len(fetched(s3_bucket)) == len(manifest.load(str(dataset)).splits["train"].shards)


def test_a_copy_whose_manifest_is_still_to_come_is_finished(dataset, there, s3_bucket, cache):
    expected = read(there, options(**SMALL))
    (written,) = Path(cache).rglob(manifest.MANIFEST_NAME)
    written.unlink()
    s3_bucket.tap.asked.clear()
    assert read(there, options(**SMALL)) == expected
    assert written.is_file()
    assert fetched(s3_bucket) == []


def test_a_process_that_is_killed_while_it_fetches_leaves_nothing_half(dataset, there, s3_bucket, cache):
    stop = time.monotonic() + SPAWN_SECONDS
    started: list[str] = []

    def hold(asked) -> int:
        """Keeps the first shard on its way until the process is dead."""
        if asked.path.endswith(".tfrecord") and not started:
            started.append(asked.path)
            victim.kill()
            victim.wait(SPAWN_SECONDS)
        return 0

    s3_bucket.tap.refuse = hold
    victim = start_reader(there)
    victim.wait(stop - time.monotonic())
    assert started, "the process died before it fetched anything"
    victim.communicate()
    whole = {shard.name: shard.bytes for shard in manifest.load(str(dataset)).splits["train"].shards}
    assert all(path.stat().st_size == whole[path.name] for path in cache.rglob("*.tfrecord"))
    assert len(list(cache.rglob("*.tfrecord"))) < len(whole)
    assert read(there, options(**SMALL)) == read(dataset, options(**SMALL))
    assert list(cache.glob("tmp/*")) == []


def test_a_shard_that_changed_in_the_store_is_refused(there, cache):
    path = manifest.load(there).shard_paths(there, "train")[0]
    storage.write_bytes(path, flipped(storage.read_bytes(path), 100))
    with pytest.raises(
        CorruptDataset, match=rf"^{path} has changed since it was published: .* write the dataset again$"
    ):
        read(there, options(**SMALL))
    storage.remove(path)
    with pytest.raises(CorruptDataset, match=rf"^{path} is missing; write the dataset again$"):
        read(there, options(**SMALL))
    assert not [name for name in copies(cache) if Path(path).name in name]


def test_too_little_room_is_told_before_anything_is_fetched(there, s3_bucket, monkeypatch):
    monkeypatch.setattr(download, "_RESERVED_BYTES", shutil.disk_usage("/").total * 2)
    with pytest.raises(OptionError, match=r"^split train of s3://.* needs .* more in .* XDG_CACHE_HOME$"):
        read(there, options(**SMALL))
    assert fetched(s3_bucket) == []


def test_copies_that_nobody_reads_make_room_and_others_do_not(there, cache, monkeypatch):
    unused, used = cache / "unused", cache / "used"
    for place in (unused, used):
        place.mkdir(parents=True)
        (place / "shard").write_bytes(b"x")
        Path(f"{place}.used").touch()
        os.utime(f"{place}.used", (1, 1))
    room = iter([0, 0, 1 << 40, 1 << 40])
    monkeypatch.setattr(download, "_free_bytes", lambda _: next(room))
    with open(f"{used}.used", "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        read(there, options(**SMALL))
    assert not unused.exists()
    assert used.exists()


def test_a_directory_that_cannot_be_written_is_told(there, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OptionError, match=r"cannot be written: Not a directory; .* XDG_CACHE_HOME$"):
        read(there, options(**SMALL))


def test_workers_of_a_service_cannot_read_what_lies_here(there):
    with pytest.raises(OptionError, match=r"^service is 'grpc://127.0.0.1:9' and TensorFlow cannot open s3://"):
        make_dataset(there, "train", options(**SMALL, service="grpc://127.0.0.1:9"), training=True)


def asked_for_shards(bucket) -> list[int]:
    """The bytes of each request for a part of a shard."""
    ranges = [asked.range for asked in bucket.tap.asked if asked.method == "GET" and ".tfrecord" in asked.path]
    bounds = [map(int, text.removeprefix("bytes=").split("-")) for text in ranges]
    return [last + 1 - first for first, last in bounds]


@pytest.mark.parametrize("shuffle", ["none", "global"])
def test_google_storage_gives_the_batches_of_the_folder(dataset, gs_bucket, cache, shuffle):
    there, given = gs_bucket.put_tree("dataset", dataset), options(**SMALL, shuffle=shuffle)
    assert read(there, given, epochs=2) == read(dataset, given, epochs=2)
    assert read(there, given, training=False, split="eval") == read(dataset, given, training=False, split="eval")
    # The hosts share the records, and each asks for no byte outside of its part.
    gs_bucket.tap.asked.clear()
    parts = [read(there, given, training=False, host=Host(index=index, count=2)) for index in range(2)]
    assert [*parts[0], *parts[1]] == read(dataset, given, training=False)
    assert sum(asked_for_shards(gs_bucket)) == manifest.load(str(dataset)).split("train").bytes
    assert not cache.exists(), "nothing is copied that can be read where it is"


def test_windows_of_google_storage_hold_each_record_once_for_any_start_and_hosts(dataset, gs_bucket):
    there = gs_bucket.put_tree("dataset", dataset)
    given = options(**{**SMALL, "batch_size": 4, "lanes": 4, "readers": 3})
    whole = read(there, given, epochs=2)
    epoch = epoch_records(there, "train", given, training=True)
    assert len({seen.key for seen in whole[:epoch]}) == epoch
    start = Position(epoch=1, records=8)
    expected = whole[epoch + 8 :]
    assert len(expected) > 8
    assert read(there, given, epochs=2, start=start)[: len(expected)] == expected
    assert together(there, given, 2) == together(there, given, 1)


@pytest.fixture
def megabytes(tmp_path, gs_bucket) -> tuple[str, Manifest]:
    """A dataset of 47 MB in Google Storage, in four shards."""
    noise = np.random.default_rng(0)
    for number in range(600):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(noise.integers(0, 256, (256, 256, 3), np.uint8), "JPEG", quality=95))
    ingested = IngestOptions(
        source=str(tmp_path / "photos"), out=str(tmp_path / "out"), splits={"train": 1}, shard_mb=8
    )
    dataset = ingest.run(ingested)
    assert dataset.split("train").bytes > 45e6
    return gs_bucket.put_tree("dataset", tmp_path / "out"), dataset


@pytest.mark.parametrize("shuffle", ["window", "none"])
def test_an_epoch_of_google_storage_asks_for_its_bytes_in_few_requests(megabytes, gs_bucket, shuffle):
    there, dataset = megabytes
    given = options(image_side_px=8, train_ops="decode_random_crop(8)", shuffle=shuffle, shuffle_mb=16, lanes=2)
    gs_bucket.tap.asked.clear()
    assert len(read(there, given)) == dataset.split("train").records
    asked, records = asked_for_shards(gs_bucket), dataset.split("train").bytes
    assert sum(asked) == records
    assert len(asked) <= records / 2e6
    at_the_start = [asked for asked in gs_bucket.tap.asked if "dataset.json" in asked.path or "/images/" in asked.path]
    assert 0 < len(at_the_start) <= 5 + 3 * len(dataset.images), "of each table its size, its end and two columns"


def test_what_the_store_denies_while_it_is_read_is_one_line(dataset, gs_bucket):
    there = gs_bucket.put_tree("dataset", dataset)
    batches = make_dataset(there, "train", options(**SMALL), training=True)
    gs_bucket.tap.refuse = lambda asked: 403 * (".tfrecord" in asked.path)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(batches)
    cause = cause_of(caught.value)
    assert isinstance(cause, SourceError)
    assert re.fullmatch(rf"{there}/Split-train/.*tfrecord cannot be read: .*; try again", str(cause))


def test_a_dataset_that_is_replaced_in_the_store_is_noticed(dataset, gs_bucket):
    there = gs_bucket.put_tree("dataset", dataset)
    batches = make_dataset(there, "train", options(**SMALL), training=True)
    values = json.loads(storage.read_bytes(f"{there}/dataset.json"))
    storage.write_bytes(f"{there}/dataset.json", json.dumps(values, indent=3).encode())
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(batches)
    assert isinstance(cause_of(caught.value), DatasetChanged)


def test_a_damaged_record_in_google_storage_is_named(dataset, gs_bucket):
    there = gs_bucket.put_tree("dataset", dataset)
    path = manifest.load(there).shard_paths(there, "train")[0]
    storage.write_bytes(path, flipped(storage.read_bytes(path), 100))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path} has a corrupt record at offset 0"):
        read(there, options(**SMALL))


def test_a_process_that_ends_while_it_reads_ahead_does_not_hang(dataset, gs_bucket):
    there = gs_bucket.put_tree("dataset", dataset)
    gs_bucket.tap.refuse = lambda asked: time.sleep(0.2 * (".tfrecord" in asked.path)) or 0
    program = (
        "import sys; from trainer import FOREVER, make_dataset; from tests.trainer.batches import options\n"
        f"given = options(**{SMALL!r})\n"
        f"batches = iter(make_dataset({there!r}, 'train', given, training=True, epochs=FOREVER))\n"
        "print(len(next(batches)))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, timeout=100, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr


def test_the_next_run_finds_the_checkpoints_that_a_killed_training_left_in_a_store(bucket):
    place, position = f"{bucket.url}/training/checkpoints", Position(epoch=1, records=16)
    arrays = {"model/kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}
    killed = Checkpoints(place)
    with killed.exclusive():
        for step in (1, 2, 10):
            killed.save(step, Checkpoint(arrays=arrays, state={"step": step}, position=position))
    storage.write_bytes(f"{place}/checkpoint-00000011/variables.npz", b"killed before its end")
    found = Checkpoints(place).latest()
    assert (found.state, found.position) == ({"step": 10}, position)
    np.testing.assert_array_equal(found.arrays["model/kernel"], arrays["model/kernel"])
    Checkpoints(place).clear()
    assert Checkpoints(place).latest() is None

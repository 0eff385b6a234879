from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, PixelOptions
from tests.make_images import flipped
from tests.trainer.batches import RANDOM, index_of, options, read
from trainer.input.cache import CacheChoice, _code_fingerprint, choose_cache, find_fixed_prefix, write_on_disk
from trainer.input.index import RecordIndex
from trainer.input.parse import adapt_ops_to_records
from trainer.input.position import Position
from trainer.ops import parse_ops

FIXED = "decode|resize(8)"


def chosen(directory: Path, spec: str = RANDOM, once: bool = False, **values) -> CacheChoice:
    return choose_cache(options(**values), parse_ops(spec), index_of(directory), once)


def cached(kind: str, directory: Path, **values):
    place = {"cache_dir": str(directory / "cache")} if kind == "disk" else {}
    return options(cache=kind, **place, **values)


# --- the same batches


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("disk", {"train_ops": "decode_random_crop(8)|flip"}),
        # Image by image behind what is kept.
        ("memory", {"train_ops": "decode|resize(100)|rotate(20)|random_crop(8)"}),
    ],
)
def test_a_cache_gives_the_same_batches_as_none(noise, tmp_path, kind, change):
    plain, given = options(batch_size=4, **change), cached(kind, tmp_path, batch_size=4, **change)
    expected = read(noise, plain, epochs=3)
    assert len(expected) == 180
    assert read(noise, given, epochs=3) == expected
    start = Position(epoch=1, records=30)
    assert read(noise, given, epochs=2, start=start) == read(noise, plain, epochs=2, start=start)


@pytest.mark.parametrize(("kind", "training"), [("disk", True), ("memory", False)])
def test_a_cache_of_images_of_many_sizes_gives_the_same_batches(dataset, tmp_path, kind, training):
    change = {"train_ops": "decode|resize(10)|random_crop(8)|flip", "eval_ops": FIXED}
    expected = read(dataset, options(**change), training, epochs=2)
    assert read(dataset, cached(kind, tmp_path, **change), training, epochs=2) == expected


@pytest.mark.parametrize(("kind", "spec", "side"), [("memory", "decode|random_crop(8)", 12), ("disk", "decode", 8)])
def test_a_cache_of_raw_pixels_gives_the_same_batches(photos, tmp_path, kind, spec, side):
    out = tmp_path / "raw"
    pixels = PixelOptions(policy="raw", side_px=side)
    run(IngestOptions(source=str(photos), out=str(out), splits={"train": 1}, pixels=pixels))
    given = {"train_ops": spec, **({"eval_ops": spec} if spec == "decode" else {})}
    assert read(out, cached(kind, tmp_path, **given), epochs=2) == read(out, options(**given), epochs=2)


# --- it really keeps


def test_a_disk_cache_is_used_again_without_the_shards(noise, tmp_path):
    directory = Path(shutil.copytree(noise, tmp_path / "copy"))
    given = cached("disk", tmp_path, train_ops=RANDOM)
    first = read(directory, given)
    shutil.rmtree(directory / "Split-train")
    assert read(directory, given) == first


# --- what auto decides


def test_auto_keeps_what_fits_and_says_how_much_it_takes(noise):
    choice = chosen(noise, cache="auto", cache_mb=1)
    assert dataclasses.replace(choice, reason="") == CacheChoice(
        kind="memory", reason="", ops=3, size=(12, 12), bytes=61 * 12 * 12 * 3
    )
    assert "0 MB, and twice as much while it is filled; the limit is 1 MB" in choice.reason


@pytest.mark.parametrize(("spare", "kind"), [(1e-6, "memory"), (-1e-6, "none")])
def test_auto_caches_nothing_above_its_limit(noise, spare, kind):
    assert chosen(noise, cache="auto", cache_mb=2 * 61 * 12 * 12 * 3 / 1e6 + spare).kind == kind


def test_auto_without_a_limit_takes_a_quarter_of_the_free_memory(shades):
    index = index_of(shades)
    quarter = psutil.virtual_memory().available / 4
    for share, kind in ((0.25, "memory"), (1, "none")):
        count = int(quarter * share / (12 * 12 * 3))
        many = dataclasses.replace(index, shard=np.broadcast_to(np.int32(0), (count,)))
        choice = choose_cache(options(cache="auto"), parse_ops(RANDOM), many, single_pass=False)
        assert (choice.kind, choice.reason.startswith("it would take")) == (kind, kind == "none")


@pytest.mark.parametrize(
    ("values", "once", "reason"),
    [
        ({"cache": "none"}, False, "cache is none"),
        ({"cache": "auto"}, True, "a single pass reads each record once"),
        ({"cache": "auto", "service": "grpc://localhost:1"}, False, "a tf.data service reads the shards"),
    ],
)
def test_nothing_is_kept_where_it_would_not_help(noise, values, once, reason):
    choice = chosen(noise, once=once, **values)
    assert choice.kind == "none"
    assert choice.reason.startswith(reason)


def test_auto_leaves_local_files_to_the_system_when_no_op_makes_images_of_one_size(noise):
    choice = chosen(noise, "decode_random_crop(8)|flip", cache="auto")
    assert (choice.kind, choice.reason) == (
        "none",
        "images differ in size before a random op; local files need no cache",
    )
    remote = dataclasses.replace(index_of(noise), files=("gs://bucket/shard",))
    choice = choose_cache(options(cache="auto"), parse_ops("decode_random_crop(8)"), remote, single_pass=False)
    assert (choice.kind, choice.ops, choice.size) == ("memory", 0, None)


@pytest.mark.parametrize(
    ("spec", "ops", "size"),
    [
        ("decode|resize(8)|flip", 2, (8, 8)),
        ("decode|resize_short(10)|center_crop(8)|flip|resize(8)", 3, (8, 8)),
        ("decode|resize_short(10)|flip", 0, None),  # images of many sizes
        ("decode_random_crop(8)|resize(4)", 0, None),
        ("decode|resize(8)|normalize", 2, (8, 8)),  # floats would take four times the space
    ],
)
def test_what_can_be_kept_ends_before_the_first_random_op_at_images_of_one_size(spec, ops, size):
    assert find_fixed_prefix(parse_ops(spec)) == (ops, size)


def test_images_that_are_of_one_size_when_stored_can_be_kept_decoded(noise):
    ops = adapt_ops_to_records(parse_ops("decode|random_crop(8)"), manifest.load(str(noise)), (12, 12))
    assert find_fixed_prefix(ops) == (1, (12, 12))


# --- the file on disk


def kept(directory: Path, cache: Path, spec: str = FIXED, identity: str = "") -> RecordIndex:
    return write_on_disk(index_of(directory), parse_ops(spec), identity, str(cache), threads=2)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_another_dataset_split_or_op_gets_a_cache_of_its_own(noise, shades, tmp_path):
    given = {"batch_size": 4, "eval_ops": FIXED}
    for expected, change in [
        (1, {}),
        (1, {"batch_size": 5}),  # nothing that is kept depends on it
        (2, {"eval_ops": "decode|resize(10)|center_crop(8)"}),
        (3, {"eval_ops": "decode|center_crop(8)"}),
    ]:
        read(noise, cached("disk", tmp_path, **{**given, **change}), False, epochs=2)
        assert len(folders(tmp_path / "cache")) == expected
    read(shades, cached("disk", tmp_path, **given), False, epochs=2)
    assert len(folders(tmp_path / "cache")) == 4


def test_a_damaged_record_left_out_makes_another_cache(noise, tmp_path):
    for budget in (0, 1):
        directory = Path(shutil.copytree(noise, tmp_path / f"copy{budget}"))
        if budget:
            shard = min((directory / "Split-train").iterdir())
            shard.write_bytes(flipped(shard.read_bytes(), 100))
        given = cached("disk", tmp_path, eval_ops=FIXED, max_corrupt_records=budget)
        assert len(read(directory, given, False, epochs=2)) == 2 * (61 - budget)
    assert len(folders(tmp_path / "cache")) == 2


def test_what_an_interrupted_run_left_is_never_used(noise, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", _killed)  # the last thing that is written
        with pytest.raises(KeyboardInterrupt):
            kept(noise, cache)
    assert folders(cache) == []
    name = Path(kept(noise, cache).files[0]).parent.name
    shutil.rmtree(cache / name)
    # After a SIGKILL nothing is tidied up: half of the file lies under a name of its own.
    left = cache / f"{name}-abc"
    left.mkdir()
    (left / "records.tfrecord").write_bytes(b"half")
    given = cached("disk", tmp_path, eval_ops=FIXED)
    assert read(noise, given, False, epochs=2) == read(noise, options(eval_ops=FIXED), False, epochs=2)


def test_all_of_a_cache_is_on_the_disk_before_it_gets_its_name(noise, tmp_path, monkeypatch):
    done = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.readlink(f"/proc/self/fd/{file}")) or sync(file))
    monkeypatch.setattr(os, "replace", lambda old, new: done.append("renamed") or rename(old, new))
    kept(noise, tmp_path / "cache")
    assert [os.path.basename(path) for path in done] == ["records.tfrecord", "index.npz", "renamed", "cache"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2))


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        ("records.tfrecord", _flip, "records.tfrecord has changed"),
        ("records.tfrecord", Path.unlink, "records.tfrecord is missing"),
        ("index.npz", _cut, "it cannot be read: "),
        ("index.npz", Path.unlink, "index.npz is missing"),
    ],
)
def test_a_damaged_cache_is_named_and_written_anew(noise, tmp_path, caplog, name, harm, reason):
    whole = Path(kept(noise, tmp_path).files[0])
    expected = whole.read_bytes()
    harm(whole.with_name(name))
    index = kept(noise, tmp_path)
    assert f"the cache {whole.parent} is damaged: {reason}" in caplog.text
    assert (whole.read_bytes(), len(index), sorted(path.name for path in whole.parent.iterdir())) == (
        expected,
        61,
        ["index.npz", "records.tfrecord"],
    )
    caplog.clear()
    kept(noise, tmp_path)
    assert not caplog.text
    assert folders(tmp_path) == [whole.parent.name]


def test_another_decoder_makes_another_cache(noise, tmp_path, monkeypatch):
    kept(noise, tmp_path)
    _code_fingerprint.cache_clear()
    monkeypatch.setattr(tf, "__version__", "2.0.0")
    kept(noise, tmp_path)
    _code_fingerprint.cache_clear()
    assert len(folders(tmp_path)) == 2


def _killed(*_args, **_named):
    raise KeyboardInterrupt


def _keep(noise: str, cache: str, barrier) -> None:
    barrier.wait(timeout=120)
    kept(Path(noise), Path(cache))


def test_two_processes_may_write_the_same_cache_at_once(noise, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    given = (str(noise), str(tmp_path / "cache"), barrier)
    other = spawn.Process(target=_keep, args=given)
    other.start()
    _keep(*given)
    other.join(timeout=200)
    assert other.exitcode == 0
    assert len(folders(tmp_path / "cache")) == 1  # and nothing temporary is left
    assert len(kept(noise, tmp_path / "cache")) == 61


def test_a_cache_directory_that_is_a_file_is_an_error(noise, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"cache_dir .*file cannot be written: File exists; name another"):
        kept(noise, tmp_path / "file")

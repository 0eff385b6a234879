from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.batches import RANDOM, options
from trainer.input.order import Order
from trainer.input.plan import describe, make_plan, measure_shuffle, memory_bytes
from trainer.input.position import Host


def lines(
    directory: Path, training: bool = True, epochs: int = 2, host: Host | None = None, **values
) -> dict[str, str]:
    """Stage -> what is said of it."""
    text = describe(str(directory), "train", options(**values), training, epochs, host)
    return dict(line.split(maxsplit=1) for line in text.splitlines())


def memory(directory: Path, **values) -> dict[str, float]:
    return memory_bytes(make_plan(str(directory), "train", options(**values), True, epochs=2))


def test_records_are_counted_with_their_size_and_their_files(noise, tmp_path):
    assert re.fullmatch(r"61 of \d\.\d kB in 3 files", lines(noise)["records"])
    said = lines(noise, False, host=Host(index=1, count=2))["records"]
    assert said.startswith("31 of ")
    assert said.endswith(", host 1 of 2")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, r"windows of 64 records from 64 runs of 1; a record moves by \d\d% of an epoch"),
        ({"shuffle_mb": 0.25, "lanes": 1}, r"windows of \d\d records from \d+ runs of \d+; a record moves"),
        ({"shuffle": "global"}, r"all records shuffled together, read one by one; a record moves by \d\d%"),
        ({"shuffle": "none"}, "the order of the shards$"),
        ({"balance": "uniform"}, "balanced: .*of 61 an epoch; records are read one by one$"),
        ({"balance": {"cat": 0.5, "owl": 0.5}}, "balanced: cat 31, owl 30 of 61 an epoch|balanced: cat 30, owl 31"),
    ],
    ids=str,
)
def test_the_order_is_explained(noise, values, said):
    assert re.match(said, lines(noise, **values)["order"])


def test_the_description_has_the_reason_for_the_cache(noise):
    cache = lines(noise, cache="auto", cache_mb=0.001, train_ops=RANDOM)["cache"]
    assert cache == "none: it would take 0 MB, and twice as much while it is filled; the limit is 0 MB"


def test_ops_batches_and_device_are_named(noise):
    said = lines(noise, train_ops=RANDOM, threads=3, batch_size=16, prefetch_batches=5, device_ops="flip")
    assert said["images"] == f"{RANDOM} on 3 threads"
    assert said["batch"] == "16 images, uint8, 3.1 kB; 5 buffered"
    assert said["device"] == "flip"
    assert lines(noise)["device"] == "normalisation only"
    shared = lines(noise, host=Host(index=0, count=2), batch_size=16)["batch"]
    assert shared.startswith("8 images of 16 over all hosts, ")
    kept = lines(noise, cache="memory", train_ops="decode|resize(8)", threads=3)["images"]
    assert kept == "decode|resize(8), in batches on 3 threads"


def test_the_bytes_of_every_buffer_are_described(noise):
    plan = make_plan(str(noise), "train", options(train_ops=RANDOM), True, epochs=2)
    image, stored = 8 * 8 * 3, 12 * 12 * 3
    assert memory_bytes(plan) == {
        "windows": pytest.approx(2 * 61 * plan.index.record_bytes),  # the whole split is less than the budget
        "parsed": pytest.approx(3 * 64 * plan.index.record_bytes),
        "images": 2 * (stored + image) + image,
        "batches": 4 * 1 * image,
        "cache": 0,
        "index": 61 * 64,
    }


@pytest.mark.parametrize(
    ("change", "buffer", "bytes_"),
    [
        ({"shuffle_mb": 0.01}, "windows", 0.01e6),
        ({"cache": "memory", "train_ops": RANDOM}, "cache", 2 * 61 * 8 * 8 * 3),
        ({"cache": "memory", "train_ops": RANDOM}, "windows", 0),
    ],
    ids=str,
)
def test_a_buffer_follows_its_option(noise, change, buffer, bytes_):
    assert memory(noise, **change)[buffer] == pytest.approx(bytes_)


def test_the_memory_line_adds_up_and_names_each_part(shades):
    values = {"batch_size": 2000, "train_ops": RANDOM, "parse_batch": 2000, "cache": "none"}
    parts = memory(shades, **values)
    said = lines(shades, **values)["memory"]
    total = re.match(r"at most ([\d,]+) MB: ", said)
    assert abs(int(total[1]) - sum(parts.values()) / 1e6) <= 0.5
    assert re.findall(r"([a-z]+) \d+", said.split(": ")[1]) == [name for name, value in parts.items() if value]


def test_the_measure_distinguishes_a_perfect_shuffle_from_none():
    def order(kind: str, window: int = 64) -> Order:
        return Order(records=512, lanes=8, window=window, run=max(1, window // 8), seed=0, kind=kind)

    assert measure_shuffle(order("none")) == (0, 1 / 512)
    assert measure_shuffle(order("global")) == pytest.approx((1 / 3, 1 / 3), abs=0.05)
    assert measure_shuffle(order("window")) == pytest.approx((1 / 3, 1 / 3), abs=0.05)
    # Small windows leave neighbours close, even where every record moves far.
    assert measure_shuffle(order("window", 16))[1] < 0.25

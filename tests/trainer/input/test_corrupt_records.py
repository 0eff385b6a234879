from __future__ import annotations

import functools
import logging
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest, record
from beam_jobs.errors import CorruptDataset
from tests import image_table
from tests.make_images import flipped
from tests.rewrite_records import framed
from tests.trainer.conftest import rows_of
from trainer.input.corrupt_records import explain, find_damage, find_excluded

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def copied(shades: Path, tmp_path: Path) -> Path:
    """96 records of one grey each in four shards. A copy of one's own."""
    return Path(shutil.copytree(shades, tmp_path / "copied"))


def shard_of(directory: Path, index: int) -> Path:
    return sorted((directory / "Split-train").iterdir())[index]


def rewrite(directory: Path, number: int, change: Callable[[bytes], bytes]) -> dict:
    """Changes the bytes of one record, framing and all, and returns its row; `number` counts over the split."""
    rows = rows_of(directory, "train")
    row = rows[number]
    shard = shard_of(directory, row["shard"])
    data = shard.read_bytes()
    later = [other["offset"] for other in rows if other["shard"] == row["shard"] and other["offset"] > row["offset"]]
    end = min(later, default=len(data))
    shard.write_bytes(data[: row["offset"]] + change(data[row["offset"] : end]) + data[end:])
    return {**row, "path": str(shard)}


def inverted(position: int) -> Callable[[bytes], bytes]:
    return functools.partial(flipped, position=position)


def renamed(data: bytes) -> bytes:
    example = tf.train.Example.FromString(data[12:-4])
    name = example.features.feature[record.FILENAME].bytes_list.value[0]
    example.features.feature[record.FILENAME].bytes_list.value[0] = b"x" + name[1:]
    return framed(example.SerializeToString(deterministic=True))


def unpainted(data: bytes) -> bytes:
    """The same record, sound to the last checksum, with an image that no decoder takes."""
    example = tf.train.Example.FromString(data[12:-4])
    encoded = example.features.feature[record.ENCODED].bytes_list
    encoded.value[0] = encoded.value[0][:30] + b"?" * (len(encoded.value[0]) - 30)
    changed = framed(example.SerializeToString(deterministic=True))
    assert len(changed) == len(data)
    return changed


CHANGED = "has changed: its checksum is not the one that was written"


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (40, inverted(9), "has a damaged length"),
        (95, inverted(12), CHANGED),
        (40, lambda data: bytes(len(data)), "has a damaged length"),
        (95, lambda data: framed(b"\xff" * (len(data) - 16)), "is not a tf.train.Example"),
        (40, renamed, "has the key b'x"),
        (5, lambda data: struct.pack("<Q", 1 << 60) + data[8:], "has a damaged length"),  # for which no memory is taken
    ],
)
def test_one_damaged_record_is_named_and_no_other(copied, number, change, reason):
    row = rewrite(copied, number, change)
    (found,) = find_damage(str(copied), "train")
    assert (found.number, found.shard, found.offset, found.key) == (number, row["path"], row["offset"], row["key"])
    assert found.reason.startswith(reason)
    assert str(found) == f"{row['path']} offset {row['offset']}: the record of {row['key']!r} {found.reason}"


def test_every_damaged_record_is_found_in_order_of_the_shards(copied):
    for number in (90, 3, 41, 4):
        rewrite(copied, number, inverted(0))
    assert [damage.number for damage in find_damage(str(copied), "train")] == [3, 4, 41, 90]


def test_a_shard_that_was_cut_off_loses_the_records_past_its_end(copied):
    rows = rows_of(copied, "train")
    lost = [number for number, row in enumerate(rows) if row["shard"] == 2][-3:]
    shard = shard_of(copied, 2)
    shard.write_bytes(shard.read_bytes()[: rows[lost[0]]["offset"] + 20])
    found = find_damage(str(copied), "train")
    assert [damage.number for damage in found] == lost
    assert {damage.reason for damage in found} == {"is cut off: the file ends inside it"}


@pytest.mark.parametrize(
    ("stand_in", "reason"), [(None, "the shard does not exist"), ("directory", "cannot be read: Is a")]
)
def test_every_record_of_a_shard_that_is_not_there_is_named(copied, stand_in, reason):
    shard = shard_of(copied, 1)
    shard.unlink()
    if stand_in:
        shard.mkdir()
    found = find_damage(str(copied), "train")
    assert [damage.key for damage in found] == [row["key"] for row in rows_of(copied, "train") if row["shard"] == 1]
    assert all(reason in damage.reason for damage in found)


def test_an_image_without_pixels_is_found_on_demand(copied):
    row = rewrite(copied, 17, unpainted)
    assert find_damage(str(copied), "train") == []
    (found,) = find_damage(str(copied), "train", decode=True)
    assert (found.number, found.key) == (17, row["key"])
    assert found.reason.startswith("cannot be decoded: ")


def test_other_splits_count_for_nothing(dataset):
    shard = min((dataset / "Split-eval").iterdir())
    shard.write_bytes(inverted(0)(shard.read_bytes()))
    assert find_damage(str(dataset), "train") == []
    assert [damage.number for damage in find_damage(str(dataset), "eval")] == [0]


def test_what_names_the_records_must_be_sound_itself(copied):
    table = image_table.files(copied)[0]
    table.write_bytes(table.read_bytes()[:200])
    with pytest.raises(CorruptDataset, match=rf"{re.escape(str(table))} cannot be read"):
        find_damage(str(copied), "train")


def test_a_changed_table_condemns_no_record(copied, dataset):
    shutil.copytree(dataset / "images", copied / "images", dirs_exist_ok=True)
    with pytest.raises(CorruptDataset, match=r"images/part-.*\.parquet has changed since it was published"):
        find_damage(str(copied), "train")


def test_records_within_the_budget_are_left_out_with_a_warning_each(copied, caplog):
    rows = [rewrite(copied, number, inverted(20)) for number in (7, 60)]
    with caplog.at_level(logging.WARNING, "trainer.input.corrupt_records"):
        assert find_excluded(str(copied), "train", 2) == {7, 60}
    assert [message.split(" has changed")[0] for message in caplog.messages] == [
        f"left out: {row['path']} offset {row['offset']}: the record of {row['key']!r}" for row in rows
    ]


def test_one_over_the_budget_is_an_error_that_names_the_first(copied, caplog):
    rows = [rewrite(copied, number, inverted(20)) for number in (2, 3, 50, 51, 52)]
    with pytest.raises(CorruptDataset) as caught:
        find_excluded(str(copied), "train", 4)
    message = str(caught.value)
    assert message.startswith("5 records of train are damaged, max_corrupt_records allows 4: ")
    assert [row["key"] in message for row in rows] == [True, True, True, False, False]
    assert "\n" not in message
    assert caplog.messages == []


def failure_of(directory: Path) -> tf.errors.OpError:
    """What TensorFlow raises when it reads the split and decodes it."""
    paths = manifest.load(str(directory)).shard_paths(str(directory), "train")
    stream = tf.data.TFRecordDataset(paths)
    parse = tf.io.parse_single_example
    stream = stream.map(
        lambda data: tf.io.decode_png(parse(data, record.feature_spec([record.ENCODED]))[record.ENCODED])
    )
    with pytest.raises(tf.errors.OpError) as caught:
        list(stream)
    return caught.value


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (inverted(0), tf.errors.DataLossError, "corrupted record at"),
        (lambda data: data[:-9], tf.errors.DataLossError, "record"),
        (lambda data: framed(b"\n" * (len(data) - 16)), tf.errors.InvalidArgumentError, "Could not parse example"),
    ],
)
def test_a_failed_training_is_told_shard_offset_key_and_what_to_do(copied, change, error, said):
    row = rewrite(copied, 95, change)
    failure = failure_of(copied)
    assert isinstance(failure, error)
    explained = explain(str(copied), "train", failure)
    assert isinstance(explained, CorruptDataset)
    message = str(explained)
    assert message.startswith(f"{row['path']} offset {row['offset']}: the record of {row['key']!r} ")
    assert said in message
    assert f"see `feedline verify {copied}`, ingest again, or leave them out with max_corrupt_records=1" in message
    assert "\n" not in message
    assert "{{" not in message


def test_a_missing_shard_is_explained_by_the_number_of_its_records(copied):
    rows = [row for row in rows_of(copied, "train") if row["shard"] == 3]
    shard_of(copied, 3).unlink()
    failure = failure_of(copied)
    assert isinstance(failure, tf.errors.NotFoundError)
    message = str(explain(str(copied), "train", failure))
    assert f"is missing: the shard does not exist, and {len(rows) - 1} more" in message
    assert message.endswith(f"max_corrupt_records={len(rows)}")


def test_an_undecodable_image_is_explained_and_cannot_be_left_out(copied):
    row = rewrite(copied, 30, unpainted)
    message = str(explain(str(copied), "train", failure_of(copied)))
    assert f"{row['path']} offset {row['offset']}: the record of {row['key']!r} cannot be decoded: " in message
    assert message.endswith("ingest again")


def test_bytes_after_the_last_record_are_explained(copied):
    shard = shard_of(copied, 0)
    size = shard.stat().st_size
    with shard.open("ab") as stream:
        stream.write(b"junk" * 10)
    message = str(explain(str(copied), "train", failure_of(copied)))
    assert message.startswith(f"{shard} has {size + 40} bytes instead of the {size} in dataset.json; training ")


def test_an_error_that_is_not_of_the_data_is_not_explained_by_it(copied):
    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2,3] vs. [4,5]")
    assert explain(str(copied), "train", error) is None


def test_a_dataset_that_is_gone_explains_the_error_too(copied):
    (copied / "dataset.json").unlink()
    message = str(explain(str(copied), "train", tf.errors.NotFoundError(None, None, "no such file")))
    assert "is not a dataset" in message


def test_small_and_large_reads_see_the_same(copied, monkeypatch):
    rewrite(copied, 11, inverted(25))
    whole = find_damage(str(copied), "train")
    monkeypatch.setattr("trainer.input.corrupt_records._READ_BYTES", 1)
    assert find_damage(str(copied), "train") == whole
    assert [damage.number for damage in whole] == [11]

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import SplitConflict
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.stages.upgrade import upgrade
from beam_jobs.storage import parquet
from tests import image_table
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.make_images import flipped, forged_png, jpeg, png
from tests.rewrite_records import edit_manifest, rewrite_shard, set_value

NAME = "Split-train/data-00001-of-00002.tfrecord"


def edit_rows(dataset: Path, edit) -> None:
    rows = edit(image_table.read(dataset).to_pylist())
    image_table.write(dataset, pa.Table.from_pylist(rows, schemas.IMAGES))
    image_table.seal(dataset)


def test_a_sound_dataset_has_no_problem(dataset):
    loaded: Manifest = manifest.load(str(dataset))
    result = verify(str(dataset), 3)
    assert (result.shards, result.records, result.problems) == (4, 24, [])
    assert result.bytes == sum(info.bytes for info in loaded.splits.values())


@pytest.mark.parametrize("position", [0, -1])
def test_the_error_for_a_flipped_byte_names_its_shard(dataset, position):
    data = (dataset / NAME).read_bytes()
    (dataset / NAME).write_bytes(flipped(data, position))
    problems = verify(str(dataset)).problems
    changed = f"{dataset / NAME} has changed since it was published: its sha256 is not the one in dataset.json"
    assert problems[0] == changed
    assert f"{dataset / NAME} has a corrupt " in problems[1]
    assert all(NAME in problem for problem in problems)


@pytest.mark.parametrize("position", [2, 40], ids=["length", "payload"])
def test_damaged_records_hide_no_other_and_are_named_with_their_images(dataset, position):
    rows = [row for row in image_table.read(dataset).to_pylist() if row["split"] == "train"]
    rows = sorted((row for row in rows if row["shard"] == 1), key=lambda row: row["offset"])
    data = (dataset / NAME).read_bytes()
    for row in (rows[0], rows[2]):
        data = flipped(data, row["offset"] + position)
    (dataset / NAME).write_bytes(data)
    result = verify(str(dataset))
    assert [(problem.split(" (the image ")[1:]) for problem in result.problems] == [
        [],  # the checksum of the file
        [f"{rows[0]['key']!r})"],
        [f"{rows[2]['key']!r})"],
    ]
    assert result.records == 22


def test_a_cut_shard_is_named_with_its_sizes_and_images_beyond_its_end_are_counted(dataset):
    data = (dataset / NAME).read_bytes()
    offsets = [offset for offset, _ in tfrecord.read_records(io.BytesIO(data), "x")]
    size = offsets[1] + 20
    (dataset / NAME).write_bytes(data[:size])
    problems = verify(str(dataset)).problems
    assert problems[0] == f"{dataset / NAME} has {size} bytes instead of {len(data)} as in dataset.json"
    assert any(problem.startswith(f"{dataset / NAME} ends inside the record at offset ") for problem in problems)
    ends = f"{dataset / NAME} ends before the last {len(offsets) - 2} of its records in the image table"
    assert problems[-1] == ends


@pytest.mark.parametrize("offset", [None, -5])
def test_a_row_without_a_place_is_a_problem_like_any_other(dataset, offset):
    edit_rows(dataset, lambda rows: [{**row, "offset": offset if row["shard"] else row["offset"]} for row in rows])
    (dataset / NAME).write_bytes(flipped((dataset / NAME).read_bytes(), 2))
    assert any("has a corrupt length at offset 0" in problem for problem in verify(str(dataset)).problems)


def test_past_a_damaged_payload_all_is_read_without_the_image_table_too(dataset):
    with (dataset / NAME).open("rb") as stream:
        offsets = [offset for offset, _ in tfrecord.read_records(stream, "x")]
    data = (dataset / NAME).read_bytes()
    for offset in (offsets[0], offsets[2]):
        data = flipped(data, offset + 40)
    (dataset / NAME).write_bytes(data)
    image_table.files(dataset)[1].unlink()
    result = verify(str(dataset))
    assert [int(found) for found in re.findall(r"corrupt record at offset (\d+)", " ".join(result.problems))] == [
        offsets[0],
        offsets[2],
    ]
    assert result.records == 22


def test_past_damage_nothing_is_read_when_nobody_knows_where_records_begin(dataset):
    (dataset / NAME).write_bytes(flipped((dataset / NAME).read_bytes(), 2))
    image_table.files(dataset)[1].unlink()
    assert verify(str(dataset)).problems[-1].startswith(f"{dataset / NAME} has a corrupt length at offset 0; ")


def test_a_shard_cut_between_records_has_too_few(dataset):
    with (dataset / NAME).open("rb") as stream:
        offsets = [offset for offset, _ in tfrecord.read_records(stream, "x")]
    (dataset / NAME).write_bytes((dataset / NAME).read_bytes()[: offsets[-1]])
    count = len(offsets)
    short = f"{dataset / NAME} has {count - 1} records instead of {count} as in dataset.json"
    assert short in verify(str(dataset)).problems


def test_all_problems_are_named_in_one_run(dataset):
    (dataset / "Split-eval" / "notes.txt").write_text("mine")
    (dataset / "images" / "more.parquet").write_text("mine")
    (dataset / "Split-test").mkdir()
    (dataset / NAME).unlink()
    image_table.files(dataset)[1].unlink()
    result = verify(str(dataset))
    assert result.shards == 4
    assert f"{dataset / NAME} cannot be read: No such file or directory" in result.problems
    assert "Split-eval/notes.txt is not part of the dataset, but readers that glob would read it" in result.problems
    assert any(problem.startswith("Split-test is not a split of the dataset") for problem in result.problems)
    assert "images/more.parquet is not part of the dataset, but readers that glob would read it" in result.problems
    assert any("images/part-train-00001.parquet cannot be read: " in problem for problem in result.problems)
    assert len(result.problems) == 5


def not_utf8(path: Path) -> None:
    table = schemas.read(str(path))
    broken = pa.array([b"\xffrain"] * len(table), pa.binary()).view(pa.string())
    schemas.write_table(str(path), table.set_column(table.schema.get_field_index("split"), "split", broken))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (Path.unlink, "cannot be read: "),
        (lambda path: path.write_bytes(b"not parquet"), "has changed since it was published: "),
        (not_utf8, "has changed since it was published: "),
    ],
    ids=["gone", "no parquet", "no UTF-8"],
)
def test_a_damaged_image_table_is_named_and_the_shards_are_still_read(dataset, damage, expected):
    damage(image_table.files(dataset)[0])
    result = verify(str(dataset))
    (problem,) = result.problems
    assert problem.startswith(f"{dataset / 'images' / 'part-train-00000.parquet'} {expected}")
    assert result.records == 24


def test_an_image_table_that_is_damaged_under_a_right_checksum_is_named(dataset):
    path = image_table.files(dataset)[0]
    path.write_bytes(b"not parquet")
    image_table.seal(dataset)
    (problem,) = verify(str(dataset)).problems
    assert problem.startswith(f"{path} cannot be read: ")


def test_an_image_table_that_unpacks_to_far_more_than_an_honest_one_is_named(dataset):
    path = image_table.files(dataset)[0]
    table = schemas.read(str(path))
    uris = pa.array(["x" * 30_000_000] * len(table))
    schemas.write_table(str(path), table.set_column(table.schema.get_field_index("uri"), "uri", uris))
    image_table.seal(dataset)
    (problem,) = verify(str(dataset)).problems
    size = path.stat().st_size
    assert problem == (
        f"{path} cannot be read: its {size} bytes unpack to more than the limit of {(256 << 20) + 100 * size}; "
        "write the dataset again"
    )


def test_no_byte_of_the_image_table_can_break_the_verification(dataset):
    # A damaged table must become a problem or go unseen, never an exception; every 397th byte keeps this short.
    path = image_table.files(dataset)[0]
    data = path.read_bytes()
    for position in range(0, len(data), 397):
        path.write_bytes(flipped(data, position))
        assert any(str(path) in problem for problem in verify(str(dataset)).problems)


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: [row for row in rows if row["key"] != "china/000.jpg"],
        lambda rows: [{**row, "key": row["key"] + "x" * (row["key"] == "china/000.jpg")} for row in rows],
        lambda rows: [{**row, "offset": row["offset"] + (row["key"] == "china/000.jpg")} for row in rows],
        lambda rows: [{**row, "sha256": "0" * 64 if row["key"] == "china/000.jpg" else row["sha256"]} for row in rows],
        lambda rows: [*rows, {**rows[0], "key": "china/000.jpg", "offset": 10**9}],
        lambda rows: [{**row, "extra": '{"age": 7}' if row["key"] == "china/000.jpg" else "{}"} for row in rows],
    ],
    ids=["row lost", "key changed", "offset changed", "sha256 changed", "row added", "user column added"],
)
def test_an_image_table_that_does_not_match_its_records_is_named(dataset, edit):
    edit_rows(dataset, edit)
    problems = verify(str(dataset)).problems
    assert problems
    assert all("the image table" in problem for problem in problems)


def test_edited_counts_order_hashes_and_rows_of_the_image_table_are_named(dataset):
    path = image_table.files(dataset)[1]

    def edit(values):
        values["images"][1] |= {"rows": 1, "order_hashes": ["0" * 16, "1" * 16]}
        values["counts"]["written"] = 23

    edit_manifest(dataset, edit)
    assert verify(str(dataset)).problems == [
        "dataset.json has 23 written images, its shards have 24",
        "the image table has 16 rows, dataset.json has 23 written or dropped images",
        "dataset.json has 24 found images, which is not written + rejected + dropped",
        f"{path} has 9 rows instead of 1 as in dataset.json",
        f"{path} has keys that do not match order_hashes in dataset.json",
    ]


def test_an_edited_class_histogram_is_named(dataset):
    def edit(values):
        values["splits"]["eval"]["classes"] = {"china": 1, "flower": 99}

    edit_manifest(dataset, edit)
    assert verify(str(dataset)).problems == ["eval: the class histogram in dataset.json does not match the records"]


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda data: data + b"\n", "after byte {size}"),
        (lambda data: data[:-1], "after byte {less}"),
        (lambda data: data.replace(b"  ", b" \t", 1), "at byte 3"),
    ],
    ids=["line end more", "line end less", "tab"],
)
def test_bytes_of_the_manifest_that_say_nothing_must_be_as_they_were_written(dataset, edit, where):
    path = dataset / "dataset.json"
    data = path.read_bytes()
    path.write_bytes(edit(data))
    where = where.format(size=len(data), less=len(data) - 1)
    said = f"{path} has changed since it was published: it differs from the output of Feedline {where}"
    assert verify(str(dataset)).problems == [said]


def set_image(data: bytes):
    def change(feature):
        set_value(record.ENCODED, data)(feature)
        set_value(record.SHA256, hashlib.sha256(data).hexdigest().encode())(feature)

    return change


WRONG_RECORDS = {
    "label": (set_value(record.LABEL, 77), "label 77 is not"),
    "text": (set_value(record.TEXT, b"dog"), r"label \d is not 'dog'"),
    "sha256": (set_value(record.SHA256, b"0" * 64), "the image of '.*' does not have the sha256"),
    "height": (set_value(record.HEIGHT, 3), r"'.*' decodes to \d+x\d+ pixels instead of \d+x\d+ as in its record"),
    "image": (set_image(jpeg()[:-50]), "'.*' cannot be decoded: "),
    "bomb": (set_image(forged_png(30_000)), "'.*' cannot be decoded: 30000x30000 pixels; max_side_px is 178956970"),
    "no image": (lambda feature: feature.pop(record.ENCODED), "not a record of this format: KeyError"),
    "no label": (lambda feature: feature[record.LABEL].Clear(), "it has 0 labels instead of one"),
    "no text": (lambda feature: feature.pop(record.TEXT), r"label \d is not None"),
    "no value": (lambda feature: feature[record.HEIGHT].Clear(), "not a record of this format: IndexError"),
    "height that is text": (
        lambda feature: feature[record.HEIGHT].bytes_list.value.append(b"60"),
        "not a record of this format: feature 'image/height' holds bytes, it must hold int",
    ),
    "name": (set_value(record.FILENAME, b"\xff"), "not a record of this format: UnicodeDecodeError"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_a_wrong_record_is_named_even_when_every_checksum_is_right(dataset, change, message):
    rewrite_shard(dataset, change)
    problems = verify(str(dataset)).problems
    assert re.fullmatch(rf"{dataset / NAME} offset 0: ({message}).*", problems[0]), problems[0]


def test_an_image_that_breaks_its_decoder_is_named_and_the_others_are_read(dataset, tmp_path):
    rewrite_shard(dataset, set_image(png() + b"<segv>"))
    with broken_decoders(tmp_path):
        found = verify(str(dataset))
    (problem,) = (line for line in found.problems if "cannot be decoded" in line)
    assert problem.endswith("cannot be decoded: the decoder failed: SIGSEGV, 3 times")
    assert found.records == manifest.load(str(dataset)).counts.written


def test_a_negative_label_does_not_count_from_the_end(dataset):
    # -1 would be the last class to Python, and out of range to the trainer.
    def last(feature):
        feature[record.LABEL].int64_list.value[:] = [feature[record.LABEL].int64_list.value[0] - 2]

    rewrite_shard(dataset, last)
    assert any("offset 0: " in problem and "label -" in problem for problem in verify(str(dataset)).problems)


def test_copies_that_a_split_column_parts_are_reported_by_ingest_and_verify_or_refused(tmp_path):
    for number, name in enumerate(("one", "copy", "dog", "hound")):
        (tmp_path / f"{name}.png").write_bytes(png(max(0, number - 1)))
    rows = ["one.png,cat,train", "copy.png,cat,eval", "dog.png,dog,train", "hound.png,dog,eval"]
    (tmp_path / "table.csv").write_text("\n".join(["image,label,split", *rows]))
    options = IngestOptions(source=f"{tmp_path}/table.csv", out=f"{tmp_path}/out", columns=TableColumns(split="split"))
    lines: list[str] = []
    leak = "copies: copy.png in eval and one.png in train"
    with pytest.raises(SplitConflict, match=f"{leak}; correct the split column"):
        ingest.run(replace(options, split_conflicts="refuse", out=f"{tmp_path}/refused"))
    assert not manifest.is_published(f"{tmp_path}/refused")
    ingest.run(options, report=lines.append)
    assert any(line.startswith("warning ") and "copy.png in eval and one.png in train" in line for line in lines)
    found = verify(options.out)
    assert (found.problems, found.leaks) == ([], [leak])


def test_only_row_groups_with_rows_of_a_shard_are_read_for_it(dataset, monkeypatch):
    image_table.make_format_1(dataset)
    monkeypatch.setattr(schemas, "IMAGE_ROWS", 5)
    monkeypatch.setattr("beam_jobs.storage.parquet._BATCH_ROWS", 5)
    upgrade(str(dataset))
    read = parquet.table_batches
    groups = []

    def recording(stream, columns, of_file=None):
        groups.append(of_file)
        return read(stream, columns, of_file)

    monkeypatch.setattr(parquet, "table_batches", recording)
    assert verify(str(dataset)).problems == []
    selected = [one for one in groups if one]
    assert len(selected) == 4
    assert all(len(one) <= 3 for one in selected)
    assert sorted(set().union(*selected)) == [0, 1, 2, 3, 4]

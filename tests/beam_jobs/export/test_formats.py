"""What each format holds of a dataset: every feature of every record, nothing lost and nothing made up."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.export import parquet
from beam_jobs.export.formats import Sample
from beam_jobs.export.options import ExportOptions, safe_name
from beam_jobs.export.run import export
from tests.beam_jobs.runs import records_under


def run(dataset: Path, to: str, out: Path, **given) -> Path:
    export(ExportOptions(dataset=str(dataset), to=to, out=str(out), **given))
    return out


def members_of(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
                assert (member.mode, member.type) == (0o644, tarfile.REGTYPE)
                assert member.name not in found
                found[member.name] = tar.extractfile(member).read()
    return found


# --- WebDataset


def test_a_tar_file_has_image_class_and_features_of_every_sample(dataset, tmp_path):
    members = members_of(run(dataset, "webdataset", tmp_path / "out"))
    records = records_under(dataset)
    assert len(members) == 3 * len(records)
    for key, values in records.items():
        name = safe_name(key)
        suffix = "png" if values[record.FORMAT] == [b"png"] else "jpg"
        assert members[f"{name}.{suffix}"] == values[record.ENCODED][0]
        assert members[f"{name}.cls"] == str(values[record.LABEL][0]).encode()
        described = json.loads(members[f"{name}.json"])
        assert described.keys() == values.keys() - {record.ENCODED}
        assert described[record.FILENAME] == key
        assert described[record.HEIGHT] == values[record.HEIGHT][0]
        assert described[record.MEAN_RGB] == values[record.MEAN_RGB]
        assert described[record.TEXT] == [key.split("/")[0]]


def test_many_labels_masks_weights_and_columns_go_along(rich, tmp_path):
    members = members_of(run(rich, "webdataset", tmp_path / "out"))
    assert not [name for name in members if ".." in name or name.startswith("/") or name.endswith(".cls")]
    found = [json.loads(value) for name, value in members.items() if name.endswith(".json")]
    described = {value["image/filename"]: value for value in found}
    assert described.keys() == records_under(rich).keys()
    fifth = described["../../5 é.x"]
    assert (fifth["image/weight"], fifth["extra/age"], fifth["extra/note"]) == (2.5, [5], ["note 5"])
    assert described["../../3 é.x"]["image/class/text"] == ["cat", "dog", "line\u2028break"]
    assert described["../../0 é.x"]["image/class/text"] == []
    mask = members[f"{safe_name('../../3 é.x')}.mask.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask))), np.arange(4800).reshape(60, 80) % 5)


def test_objects_and_their_masks_go_along(objects, tmp_path):
    members = members_of(run(objects, "webdataset", tmp_path / "out"))
    assert json.loads(members["0.json"])["image/object/class/text"] == ["cat", "dog"]
    assert [name for name in members if "object" in name] == ["0.object-00000.png"]
    assert np.asarray(Image.open(io.BytesIO(members["0.object-00000.png"])))[20, 20] == 1


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_raw_pixels_become_a_png_that_loses_nothing(raw, tmp_path, to):
    out = run(raw, to, tmp_path / "out")
    if to == "parquet":
        files = {row["key"]: row["image"]["bytes"] for row in rows_of(out)}
    else:
        members = members_of(out)
        files = {key: members[f"{safe_name(key)}.png"] for key in records_under(raw)}
    for key, values in records_under(raw).items():
        assert Image.open(io.BytesIO(files[key])).tobytes() == values[record.ENCODED][0]


# --- Parquet


def rows_of(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("data/*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def test_a_row_has_the_image_its_label_and_its_facts(dataset, tmp_path):
    out = run(dataset, "parquet", tmp_path / "out")
    records = records_under(dataset)
    rows = {row["key"]: row for row in rows_of(out)}
    assert rows.keys() == records.keys()
    for key, row in rows.items():
        values = records[key]
        suffix = "png" if values[record.FORMAT] == [b"png"] else "jpg"
        assert row["image"] == {"bytes": values[record.ENCODED][0], "path": f"{safe_name(key)}.{suffix}"}
        assert row["label"] == values[record.LABEL][0]
        assert (row["height"], row["width"]) == (values[record.HEIGHT][0], values[record.WIDTH][0])
        assert (row["mean_rgb"], row["sha256"]) == (values[record.MEAN_RGB], values[record.SHA256][0].decode())


def test_the_schema_says_what_hugging_face_wants_to_know(dataset, tmp_path):
    out = run(dataset, "parquet", tmp_path / "out")
    schema = pq.read_schema(out / "data" / "train-00000-of-00002.parquet")
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features.keys() == set(schema.names)
    assert features["image"] == {"_type": "Image"}
    assert features["label"] == {"_type": "ClassLabel", "names": ["china", "flower"]}
    head = (out / "README.md").read_text().split("---")[1]
    files = json.loads(head)["configs"][0]["data_files"]
    assert [one["split"] for one in files] == ["train", "eval"]
    assert [len(list(out.glob(one["path"]))) for one in files] == [2, 2]


def test_rows_of_many_labels_masks_weights_and_columns(rich, tmp_path):
    out = run(rich, "parquet", tmp_path / "out")
    rows = {row["key"]: row for row in rows_of(out)}
    third = rows["../../3 é.x"]
    assert (third["labels"], third["weight"], third["extra_age"], third["extra_note"]) == (
        [0, 1, 2],
        1.5,
        [3],
        ["note 3"],
    )
    assert rows["../../0 é.x"]["extra_age"] == []
    assert third["mask"]["bytes"] == records_under(rich)["../../3 é.x"][record.MASK][0]
    assert json.loads((out / "README.md").read_text().split("---")[1])["configs"][0]["data_files"] == [
        {"split": "all_images", "path": "data/all-*.parquet"}
    ]


def test_rows_of_objects(objects, tmp_path):
    rows = {row["key"]: row["objects"] for row in rows_of(run(objects, "parquet", tmp_path / "out"))}
    assert rows["0.jpg"]["label"] == [0, 1]
    assert rows["0.jpg"]["xmax"] == [0.375, 0.5]
    assert [bool(mask) for mask in rows["0.jpg"]["mask"]] == [True, False]
    assert rows["1.jpg"]["area"] == []


@pytest.mark.parametrize(("name", "value"), [("ROW_GROUP_IMAGES", 3), ("ROW_GROUP_BYTES", 8000)])
def test_row_groups_are_bounded_by_images_and_by_bytes(dataset, tmp_path, monkeypatch, name, value):
    monkeypatch.setattr(parquet, name, value)
    out = run(dataset, "parquet", tmp_path / "out", splits=("train",))
    for path in out.glob("data/*.parquet"):
        groups = [pq.ParquetFile(path).read_row_group(n) for n in range(pq.ParquetFile(path).num_row_groups)]
        assert len(groups) > 1
        if name == "ROW_GROUP_IMAGES":
            assert max(map(len, groups)) == value
        else:  # the one that crosses the limit is the last
            assert all(sum(len(cell["bytes"]) for cell in group["image"].to_pylist()[:-1]) < value for group in groups)


# --- ArrayRecord


def test_array_records_are_the_examples_as_they_are(dataset, tmp_path):
    from array_record.python.array_record_module import ArrayRecordReader

    out = run(dataset, "array_record", tmp_path / "out")
    found = {}
    for path in sorted(out.glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        for payload in reader.read_all():
            found[record.decode(payload)[record.FILENAME][0].decode()] = record.decode(payload)
        reader.close()
    assert found == records_under(dataset)


def test_tfds_opens_array_records_at_any_place(dataset, tmp_path):
    import tensorflow_datasets as tfds

    out = run(dataset, "array_record", tmp_path / "out", shard_mb=0.02, splits=("train",))
    source = tfds.builder_from_directory(str(out)).as_data_source(split="train")
    assert len(source) == manifest.load(str(dataset)).splits["train"].records
    assert len(list(out.glob("*.array_record"))) > 2
    keys = [source[place]["image"]["filename"].decode() for place in (5, 0, 3)]
    assert set(keys) < records_under(dataset).keys()
    assert len(set(keys)) == 3


def test_a_missing_package_is_one_line_before_anything_is_written(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(
        OptionError, match=re.escape("exports to array_record need a package: pip install array-record")
    ):
        run(dataset, "array_record", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset"]


# --- DALI


def test_an_index_has_offset_and_size_of_every_record(dataset, tmp_path):
    out = run(dataset, "dali", tmp_path / "out")
    for path in sorted(dataset.rglob("*.tfrecord")):
        index = out / path.relative_to(dataset).with_suffix(".idx")
        lines = [tuple(map(int, line.split())) for line in index.read_text().splitlines()]
        with open(path, "rb") as stream:
            expected = [(offset, len(payload) + 16) for offset, payload in tfrecord.read_records(stream, str(path))]
        assert lines == expected


# --- Croissant


def described(path: Path) -> dict:
    return json.loads((path / "croissant.json").read_text(encoding="utf-8"))


def test_croissant_names_every_file_with_size_and_hash_and_leaves_the_dataset_as_it_was(dataset, tmp_path):
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    run(dataset, "croissant", dataset)
    assert {path: path.read_bytes() for path in before} == before
    assert verify(str(dataset)).problems == []
    *files, parts = described(dataset)["distribution"]
    files = {one["contentUrl"]: one for one in files}
    assert len(files) == 2 + 4 + 4
    assert (parts["@type"], parts["includes"]) == ("cr:FileSet", "images/*.parquet")
    for url, said in files.items():
        data = (dataset / url).read_bytes()
        assert (said["sha256"], said["contentSize"]) == (hashlib.sha256(data).hexdigest(), f"{len(data)} B")
    run(dataset, "croissant", dataset)  # once more, as after an append


def test_croissant_of_a_directory_of_its_own_points_to_the_dataset(dataset, tmp_path):
    out = run(dataset, "croissant", tmp_path / "deep" / "out")
    *files, parts = described(out)["distribution"]
    assert len(list(out.glob(parts["includes"]))) == 4
    for one in files:
        assert hashlib.sha256((out / one["contentUrl"]).read_bytes()).hexdigest() == one["sha256"]


def test_croissant_has_the_columns_the_splits_and_the_labels(dataset, tmp_path):
    sets = {one["@id"]: one for one in described(run(dataset, "croissant", tmp_path / "out"))["recordSet"]}
    assert [field["name"] for field in sets["images"]["field"]] == schemas.IMAGES.names
    assert sets["splits"]["data"] == [
        {"splits/name": "train", "splits/role": "cr:TrainingSplit", "splits/images": 20},
        {"splits/name": "eval", "splits/role": "cr:ValidationSplit", "splits/images": 4},
    ]
    assert [row["labels/name"] for row in sets["labels"]["data"]] == list(manifest.load(str(dataset)).labels)


def test_raw_pixels_of_another_size_are_damage():
    values = {record.FILENAME: [b"a/x.jpg"], record.FORMAT: [b"raw"], record.ENCODED: [b"pixels"]}
    sample = Sample(b"", "x offset 0")
    sample.values = {**values, record.HEIGHT: [1 << 31], record.WIDTH: [1 << 31]}
    with pytest.raises(CorruptDataset, match="'a/x.jpg' has 6 bytes of pixels, its record has 2147483648x2147483648"):
        _ = sample.image

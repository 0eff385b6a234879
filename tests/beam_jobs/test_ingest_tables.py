from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest, record, schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import Float32Loss, TooManyRejects
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions, TableColumns
from tests import image_table
from tests.beam_jobs.runs import records_under
from tests.make_images import decode_mask, encode, jpeg

COLUMNS = TableColumns(
    image="file", label="class", key="id", group="patient", split="fold", extra=("age", "dose", "site")
)
HEADER = "id,file,class,patient,fold,age,dose,site"


@pytest.fixture
def write_table(tmp_path):
    folder = tmp_path / "images, raw"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))

    def write(*lines: str, header: str = HEADER, encoding: str = "utf-8-sig") -> IngestOptions:
        table = tmp_path / "table.csv"
        table.write_bytes("\r\n".join([header, *lines, ""]).encode(encoding))
        splits = {"train": 1, "eval": 1}
        return IngestOptions(source=str(table), out=str(tmp_path / "out"), columns=COLUMNS, splits=splits)

    return write


def test_every_column_of_a_table_reaches_its_place(write_table):
    options = write_table(
        'a1,"images, raw/0.jpg","cat, tabby",p1,train,30,0.5,Zürich',
        'a2,"images, raw/1.jpg",dog,p2,eval,31,1,"a, b"',
        'a3,"images, raw/2.jpg",dog,p3,eval,,,',
    )
    result = ingest.run(options)
    assert result.labels == ("cat, tabby", "dog")
    splits = {row["key"]: row["split"] for row in image_table.read(options.out).to_pylist()}
    assert splits == {"a1": "train", "a2": "eval", "a3": "eval"}
    assert verify(options.out).problems == []  # each row has the split and the offset of its record
    found = records_under(options.out)
    first = found["a1"]
    assert first["image/source_uri"] == [b"images, raw/0.jpg"]
    assert first["image/encoded"] == [jpeg(0)]
    assert first["image/class/text"] == [b"cat, tabby"]
    assert (first["extra/age"], first["extra/dose"], first["extra/site"]) == ([30], [0.5], ["Zürich".encode()])
    assert (found["a2"]["extra/dose"], found["a2"]["extra/site"]) == ([1.0], [b"a, b"])
    assert not any(name.startswith("extra/") for name in found["a3"])


def test_bad_rows_are_rejected_and_good_ones_published(write_table):
    options = write_table(
        'a,"images, raw/0.jpg",cat,,train,,,',
        'b,"images, raw/1.jpg",cat,,eval,,,',
        'c,"images, raw/none.jpg",cat,,eval,,,',
        'd,"images, raw/2.jpg",,,eval,,,',
        'e,"images, raw/3.jpg",cat,,evla,,,',
        'a,"images, raw/4.jpg",cat,,eval,,,',
        'f,"images, raw",cat,,eval,,,',
    )
    with pytest.raises(TooManyRejects, match=r"^5 of 7 images are bad .*1 duplicate_key"):
        ingest.run(replace(options, max_reject_ratio=0.6))
    assert os.listdir(f"{options.out}/_work/plan") == ["rejects.parquet"]  # nothing was planned before
    result = ingest.run(replace(options, max_reject_ratio=0.8))
    assert (result.counts.found, result.counts.written) == (7, 2)
    rows = schemas.read(f"{options.out}/rejects.parquet").to_pylist()
    assert [(row["key"], row["stage"], row["reason"]) for row in rows] == [
        ("a", "plan", "duplicate_key"),
        ("c", "scan", "unreadable"),
        ("d", "scan", "no_label"),
        ("e", "scan", "unknown_split"),
        ("f", "scan", "not_a_file"),
    ]


IDENTIFIERS = [123456700.0 + number for number in range(5)]


def test_identifiers_that_pandas_wrote_with_a_point_reach_the_records_as_they_are(write_table):
    lines = [f'{n},"images, raw/{n}.jpg",cat,,{("train", "eval")[n % 2]},{age},,' for n, age in enumerate(IDENTIFIERS)]
    options = write_table(*lines, '5,"images, raw/5.jpg",cat,,train,,,')
    result = ingest.run(options)
    found = records_under(options.out)
    assert [found[str(n)]["extra/age"] for n in range(5)] == [[int(age)] for age in IDENTIFIERS]
    assert "extra/age" not in found["5"]
    assert (result.remarks.float32_changes, result.remarks.warnings) == ({}, ())
    assert verify(options.out).problems == []


def test_numbers_that_float32_changes_are_counted_said_and_refused_on_demand(write_table):
    options = write_table(
        'a,"images, raw/0.jpg",cat,,train,123456701.0,1e39,', 'b,"images, raw/1.jpg",cat,,eval,0.5,0.25,'
    )
    with pytest.raises(
        Float32Loss, match="^float32, in which .* changes 1 of 2 numbers of the user column 'age'.*'dose'"
    ):
        ingest.run(replace(options, float32_loss="refuse"))
    assert not manifest.is_published(options.out)
    lines = []
    result = ingest.run(options, report=lines.append)
    assert result.remarks.float32_changes == {"age": 1, "dose": 1}
    assert [f"warning   {warning}" for warning in result.remarks.warnings] == lines[2:4]
    assert "such as 123456701.0 to 123456704.0; " in lines[2]
    assert manifest.load(options.out) == result
    assert verify(options.out).problems == []


def test_an_append_counts_what_float32_changes_in_the_whole_dataset(write_table):
    first = 'a,"images, raw/0.jpg",cat,,train,,1e39,', 'b,"images, raw/1.jpg",cat,,eval,,0.25,'
    ingest.run(write_table(*first))
    options = write_table(*first, 'c,"images, raw/2.jpg",cat,,eval,,1e39,')
    assert ingest.run(replace(options, append=True)).remarks.float32_changes == {"dose": 2}


@pytest.mark.parametrize(
    ("values", "limits", "warning"),
    [
        ((0, 20, 255), {}, "255 counts as a class of the masks, in addition to 0 to 20: write 1 for 255"),
        ((0, 1, 255), {"mask_ignore": 255, "mask_classes": 2}, ""),
        ((0, 254, 255), {}, ""),  # so many classes there may be
    ],
)
def test_masks_that_look_as_if_255_were_no_class_are_warned_of(tmp_path, values, limits, warning):
    lines = ["image,label,mask"]
    for number, value in enumerate(values):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
        (tmp_path / f"{number}.png").write_bytes(encode(np.full((60, 80), value, np.uint8), "PNG"))
        lines.append(f"{number}.jpg,cat,{number}.png")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    options = IngestOptions(
        source=str(tmp_path / "table.csv"),
        out=str(tmp_path / "out"),
        columns=TableColumns(mask="mask"),
        splits={"all": 1},
        limits=ImageLimits(**limits),
    )
    warnings = ingest.run(options).remarks.warnings
    assert len(warnings) == bool(warning)
    assert all(one.startswith(warning) for one in warnings)
    assert "mask_values" not in image_table.read(options.out).column_names


@pytest.mark.parametrize("policy", ["resize", "raw"])
def test_labels_weight_and_mask_reach_the_record(tmp_path, policy):
    indices = np.tile(np.repeat(np.arange(4, dtype=np.uint8), 20), (60, 1))  # four stripes of 20 columns
    shapes = {"a": indices, "b": indices[:, ::-1], "c": indices[:, :7]}
    for name, mask in shapes.items():
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(ord(name)))
        (tmp_path / f"{name}.png").write_bytes(encode(mask, "PNG"))
    rows = ["a.jpg,dog|cat,0.5,a.png", "b.jpg,,2,b.png", "c.jpg,cat,1,c.png"]
    (tmp_path / "table.csv").write_text("\n".join(["image,tags,w,m", *rows]))
    options = IngestOptions(
        source=str(tmp_path / "table.csv"),
        out=str(tmp_path / "out"),
        columns=TableColumns(labels="tags", weight="w", mask="m"),
        pixels=PixelOptions(policy=policy, side_px=30),
        splits={"train": 1},
        max_reject_ratio=0.5,
    )
    assert ingest.run(options).labels == ("cat", "dog")
    found = records_under(options.out)
    assert (found["a.jpg"][record.LABEL], found["a.jpg"][record.TEXT]) == ([0, 1], [b"cat", b"dog"])
    assert (found["b.jpg"][record.LABEL], found["b.jpg"][record.WEIGHT]) == ([], [2.0])
    for key, mask in (("a.jpg", shapes["a"]), ("b.jpg", shapes["b"])):
        stored = decode_mask(found[key][record.MASK][0])
        assert list(stored.shape) == found[key][record.HEIGHT] + found[key][record.WIDTH]
        expected = {"resize": mask[::2, ::2], "raw": mask[::2, 10:70:2]}[policy]
        np.testing.assert_array_equal(stored, expected)
    (reject,) = schemas.read(f"{options.out}/rejects.parquet").to_pylist()
    assert (reject["key"], reject["stage"], reject["reason"]) == ("c.jpg", "examine", "bad_mask")
    assert reject["detail"] == "mask: 7x60 pixels; the image has 80x60"

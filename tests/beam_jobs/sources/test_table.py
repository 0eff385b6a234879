from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources import table as lines
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.row_reader import RowReader
from beam_jobs.sources.table import CsvTable, JsonlTable
from beam_jobs.types import Annotations, ImageRef
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.object_store import SCHEME


@pytest.fixture
def table(tmp_path):
    """Writes a table beside the images 1.jpg, 2.jpg and `a, b.jpg` and returns its source."""
    for name in ("1.jpg", "2.jpg", "a, b.jpg"):
        (tmp_path / name).write_bytes(name.encode())

    def write(text: str | bytes, **columns) -> CsvTable:
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return CsvTable(str(path), TableColumns(**columns))

    return write


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffimage,label\n1.jpg,grün\n",
        "image,label\r\n1.jpg,grün\r\n",
        'image,label\n"1.jpg","grün"\n',
        "image,label\n 1.jpg , grün \n",
        "image,label\n\n1.jpg,grün\n\n",
    ],
    ids=["bom", "crlf", "quoted", "spaces", "blank lines"],
)
def test_the_ways_to_write_a_table_do_not_matter(table, text):
    source = table(text)
    source.check()
    assert [(ref.key, ref.label) for ref in source.entries()] == [("1.jpg", "grün")]


def test_quoted_commas_and_lines_are_part_of_a_cell(table):
    (ref,) = table('image,label,note\n"a, b.jpg",cat,"two\nlines, said ""he"""\n', extra=("note",)).entries()
    assert (ref.uri, ref.extra) == ("a, b.jpg", {"note": 'two\nlines, said "he"'})


def test_every_role_is_read_from_its_column(table):
    source = table(
        "id,path,class,patient,fold\n7,1.jpg,cat,p1,eval\n,2.jpg,dog,,\n",
        image="path",
        label="class",
        key="id",
        group="patient",
        split="fold",
    )
    assert [(ref.key, ref.uri, ref.label, ref.group, ref.split) for ref in source.entries()] == [
        ("7", "1.jpg", "cat", "p1", "eval"),
        ("2.jpg", "2.jpg", "dog", "", ""),  # without a key the path stands for it
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2"], [1, -2]),
        (["2.5", "1"], [2.5, 1.0]),
        (["x", "1"], ["x", "1"]),
        (["1", "2.5", "x"], ["1", "2.5", "x"]),
        (["1e3", "5"], [1000.0, 5.0]),
        (["1", "", "3"], [1, None, 3]),
        (["", ""], [None, None]),
        (["9223372036854775807"], [9223372036854775807]),
        (["9223372036854775808", "1"], ["9223372036854775808", "1"]),  # over int64, which is all a record holds
        (["123456701.0", "", "8.0"], [123456701, None, 8]),  # as pandas writes ids of which one is missing
        (["16777217", "5.0", "1e3"], [16777217, 5, 1000]),
        (["7.0", "", "8.0"], [7.0, None, 8.0]),  # a float32 holds these
        (["123456701.0", "0.5"], [123456701.0, 0.5]),
        (["9007199254740993.0", "1.0"], [9007199254740992.0, 1.0]),  # no whole number can be told from this text
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),  # only text holds both
    ],
)
def test_an_extra_column_has_the_narrowest_type_that_fits_all(table, cells, expected):
    lines = "".join(f"1.jpg,cat,{cell}\n" for cell in cells)
    found = [ref.extra.get("x") for ref in table("image,label,x\n" + lines, extra=("x",)).entries()]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([123456701.0, math.nan], [{"x": 123456701}, {}]),  # as pandas has a missing number
        ([[123456701.0, 2], [3.0]], [{"x": [123456701, 2]}, {"x": [3]}]),
        ([[123456701.0, math.nan]], [{"x": [123456701.0, math.nan]}]),
        ([0.5, math.nan], [{"x": 0.5}, {"x": math.nan}]),
    ],
)
def test_whole_numbers_of_other_tables_stay_whole_where_a_float32_would_change_them(tmp_path, cells, expected):
    (tmp_path / "1.jpg").write_bytes(b"1")
    rows = [json.dumps({"image": "1.jpg", "label": "cat", "x": cell}) for cell in cells]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    source = JsonlTable(str(tmp_path / "t.jsonl"), TableColumns(extra=("x",)))
    assert repr([dict(ref.extra) for ref in source.entries()]) == repr(expected)


@pytest.mark.parametrize(("row", "cells"), [("1.jpg", 1), ("1.jpg,a,b", 3), ("a, b.jpg,cat", 3)])
def test_a_row_of_another_length_than_the_header_is_rejected_with_its_line(table, row, cells):
    first, reject = table(f"image,label\n2.jpg,dog\n{row}\n").entries()
    assert first.label == "dog"
    assert (reject.stage, reject.reason) == ("scan", "bad_annotation")
    assert re.match(rf"line \d: the row has {cells} cells, the header 2; quote cells that hold commas$", reject.detail)


def test_a_reject_without_a_path_is_named_after_its_line(table):
    (reject,) = table("image,label\n\n,cat\n").entries()
    assert (reject.key, reject.stage, reject.reason) == ("line 3", "scan", "not_a_file")
    assert reject.detail == "line 3: the cell of column 'image' is empty"


def test_a_table_of_one_column_lists_images_without_labels(table):
    source = table("image\n1.jpg\n\n2.jpg\n", label="")
    source.check()
    assert [(ref.key, ref.label, ref.bytes, ref.annotations) for ref in source.entries()] == [
        ("1.jpg", "", 5, None),
        ("2.jpg", "", 5, None),
    ]
    assert source.label_kind == "none"


@pytest.mark.parametrize(
    ("cell", "columns", "labels"),
    [
        (" dog | cat|dog|", {}, ("cat", "dog")),
        ('"cat, tabby|dog"', {}, ("cat, tabby", "dog")),
        ("", {}, ()),
        ("cat|x; dog", {"label_separator": ";"}, ("cat|x", "dog")),
    ],
)
def test_a_cell_of_several_labels_is_taken_apart(table, cell, columns, labels):
    source = table(f"image,tags\n1.jpg,{cell}\n", labels="tags", **columns)
    source.check()
    (ref,) = source.entries()
    assert (ref.label, ref.annotations) == ("", Annotations(labels=labels))
    assert source.label_kind == "multi"


@pytest.mark.parametrize(("cell", "weight"), [("0", 0.0), (" 2.5e-3 ", 0.0025)])
def test_a_weight_is_a_number(table, cell, weight):
    (ref,) = table(f"image,label,w\n1.jpg,cat,{cell}\n", weight="w").entries()
    assert ref.annotations == Annotations(weight=weight)


@pytest.mark.parametrize("cell", ["", "-1", "nan", "1e39", "1_0"])
def test_what_is_no_weight_is_rejected(table, cell):
    (reject,) = table(f"image,label,w\n1.jpg,cat,{cell}\n", weight="w").entries()
    assert (reject.key, reject.reason) == ("1.jpg", "bad_annotation")
    assert reject.detail == f"line 2: the weight is {cell!r}; it must be a finite number of at least 0"


def test_a_mask_is_a_path_like_that_of_the_image_and_its_change_is_one_of_the_image(table, tmp_path):
    (tmp_path / "1.png").write_bytes(b"mask")
    source = table("image,label,m\n1.jpg,cat,1.png\n", mask="m")
    os.utime(tmp_path / "1.jpg", ns=(1, 1000))
    os.utime(tmp_path / "1.png", ns=(1, 2000))
    fields = {"key": "1.jpg", "uri": "1.jpg", "label": "cat", "bytes": 5, "annotations": Annotations(mask="1.png")}
    assert list(source.entries()) == [ImageRef(**fields, mtime_ns=2000)]
    os.utime(tmp_path / "1.png", ns=(1, 500))
    assert list(source.entries()) == [ImageRef(**fields, mtime_ns=1000)]


@pytest.mark.parametrize(
    ("cell", "reason", "detail"),
    [
        ("", "bad_annotation", "the cell of column 'm' is empty"),
        ("none.png", "unreadable", "mask none.png: No such file or directory"),
        ("masks", "not_a_file", "mask masks: it is a directory, pipe, socket or device"),
    ],
)
def test_an_image_without_its_mask_is_rejected(table, tmp_path, cell, reason, detail):
    (tmp_path / "masks").mkdir()
    (reject,) = table(f"image,label,m\n1.jpg,cat,{cell}\n", mask="m").entries()
    assert (reject.key, reject.reason, reject.detail) == ("1.jpg", reason, f"line 2: {detail}")


@pytest.mark.parametrize("uri", ["https://host/a b.jpg?x=1", "gs://bucket/a.jpg"])
def test_what_lies_elsewhere_is_not_looked_at(table, uri):
    source = replace(table(f"image,label,m\n{uri},cat,{uri}.png\n", mask="m"), buckets={"gs://bucket"})
    (ref,) = source.entries()
    assert ref == ImageRef(key=uri, uri=uri, label="cat", annotations=Annotations(mask=f"{uri}.png"))


def test_a_table_may_lie_in_an_object_store(table, tmp_path):
    local = table("\ufeffimage,label\n1.jpg,grün\nhttp://host/a.jpg,cat\n")
    source = CsvTable(f"{SCHEME}://{local.path}", TableColumns())
    source.check()
    assert source.base == f"{SCHEME}://{tmp_path}"
    assert [(ref.uri, ref.label, ref.bytes) for ref in source.entries()] == [
        ("1.jpg", "grün", 0),
        ("http://host/a.jpg", "cat", 0),
    ]


def test_a_table_that_an_object_store_does_not_have_is_refused():
    with pytest.raises(SourceError, match="cannot be read as a CSV table"):
        CsvTable(f"{SCHEME}:///nowhere/table.csv", TableColumns()).check()


def test_a_path_may_be_absolute_or_a_link_and_lead_anywhere(table, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.jpg").symlink_to(tmp_path / "1.jpg")
    source = table(f"image,label\n{tmp_path}/2.jpg,cat\nsub/link.jpg,cat\nsub/../1.jpg,cat\n")
    assert [ref.bytes for ref in source.entries()] == [5, 5, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,label\n1.jpg,cat\n",
            "has no column 'image' for the image; it has 'path', 'label'; name the right column with --image-column$",
        ),
        (
            "image\n1.jpg\n",
            "has no column 'label' for the label; it has 'image'; name the right column with --label-column, ",
        ),
        ("", "has no column 'image' for the image; it has none; name the right column with --image-column$"),
        ("image,label\n", "has columns and no row; add one row per image$"),
        (b"image,label\n\xff,cat\n", "cannot be read as a CSV table: .*0xff.*; save it as UTF-8$"),
        ("sep=;\r\nimage;label\r\n1.jpg;cat\r\n", "begins with 'sep=;', which only Excel reads; remove that line$"),
        ("image,label\n1.jpg,\0\n", "cannot be read past line 1: .*NUL"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(table, text, message):
    source = table(text)
    with pytest.raises(SourceError, match=rf"table\.csv {message}"):
        source.check()


@pytest.mark.parametrize(("mark", "quote"), [(";", '"'), ("\t", "")])
def test_cells_may_be_parted_by_semicolons_or_tabs(table, mark, quote):
    def line(*cells: str) -> str:
        return mark.join(f"{quote}{cell}{quote}" for cell in cells) + "\r\n"

    source = table("\ufeff" + line("label", "image", "age") + line("a, b", "1.jpg", "7"), extra=("age",))
    source.check()
    (ref,) = source.entries()
    assert (ref.uri, ref.label, dict(ref.extra)) == ("1.jpg", "a, b", {"age": 7})


def test_other_marks_are_part_of_a_cell_where_commas_part_them(table):
    source = table("label;old,image\ncat;x,1.jpg\n", label="label;old")
    source.check()
    assert [(ref.uri, ref.label) for ref in source.entries()] == [("1.jpg", "cat;x")]


def test_rows_parted_by_semicolons_are_counted_and_not_swallowed(table):
    found = list(table("image;label\n1.jpg;cat;x\n").entries())
    assert found[0].detail == "line 2: the row has 3 cells, the header 2; quote cells that hold semicolons"
    with pytest.raises(SourceError, match="line.* a quote is not closed, or should be written twice"):
        list(table('image;label\n1.jpg;"cat\n2.jpg;dog\n1.jpg;"cat\n').entries())


def test_a_missing_extra_column_and_one_that_is_there_twice_are_refused(table):
    match = "has no column 'age' for the extra age; it has 'image', 'label'; name the right column with --extra-column$"
    with pytest.raises(SourceError, match=match):
        table("image,label\n1.jpg,cat\n", extra=("age",)).check()
    # Which of the two is meant nobody knows; the csv module takes the last.
    with pytest.raises(SourceError, match="label"):
        table("image,label,label\n1.jpg,cat,dog\n").check()


def test_a_table_that_breaks_off_is_refused_with_its_line(table):
    lines = b"".join(b"1.jpg,cat\n" for _ in range(2000))
    source = table(b"image,label\n" + lines + b"\xff,cat\n")
    source.check()
    with pytest.raises(SourceError, match=r"table\.csv cannot be read past line \d+: .*0xff"):
        list(source.entries())


@pytest.mark.parametrize(
    "text",
    [
        '1.jpg,"cat\n2.jpg,dog\n',  # nothing closes it
        '1.jpg,"cat\ngone,dog\n',  # and nobody can tell that the line is a row
        '1.jpg,"cat\n2.jpg,dog"\n',  # the next quote does
        '1.jpg,"cat\n2.jpg,",dog\n',
        '1.jpg,"cat\ngone.jpg,"\n',  # a row that would be a reject must not be lost either
        '1.jpg,"cat\nnosuffix,dog"\n',
        '1.jpg,"cat\n2.jpg",dog\n',  # the next one stands in the cell that names the image of the next row
        '1.jpg,"cat""\n2.jpg",dog\n',
        '"""1.jpg,cat\nnosuffix",dog\n',
    ],
)
def test_a_quote_out_of_place_swallows_no_row(table, tmp_path, text):
    (tmp_path / "nosuffix").write_bytes(b"an image by its place alone")
    source = table(f"image,label\n1.jpg,cat\n{text}")
    with pytest.raises(
        SourceError, match="table.csv .*lines? [23].* a quote is not closed, or should be written twice$"
    ):
        list(source.entries())


@pytest.mark.parametrize("caption", ["a cat, sitting\n\na dog, standing\n", "image,label"])
def test_a_text_of_several_lines_holds_no_row(table, caption):
    (entry,) = table(f'image,label,caption\n1.jpg,cat,"{caption}"\n', extra=("caption",)).entries()
    assert entry.extra == {"caption": caption.strip()}


def test_a_text_before_the_image_is_no_row_with_it(table):
    (entry,) = table('caption,image,label\n"a cat, a dog\n2.jpg, they say",1.jpg,cat\n', extra=("caption",)).entries()
    assert entry.extra == {"caption": "a cat, a dog\n2.jpg, they say"}


def test_a_line_without_end_is_not_read_to_it(table, monkeypatch):
    monkeypatch.setattr(lines, "_MAX_LINE", 100)
    source = table("image,label\n1.jpg,cat\n" + "x" * 101 + "\n")
    source.check()
    with pytest.raises(SourceError, match=r"table\.csv line 3 has more than 100 characters"):
        list(source.entries())
    assert len(list(table("image,label\n" + "2.jpg," + "x" * 93 + "\n").entries())) == 1


@pytest.mark.parametrize("cell", ["old", "7.5"])
def test_a_cell_that_is_no_longer_of_its_type_rejects_its_row(table, cell):
    source = table(f"image,label,age\n1.jpg,cat,{cell}\n", extra=("age",))
    # As the first pass over the table had found it.
    reader = RowReader(columns=source.columns, base=source.base, kinds={"age": int})
    (reject,) = (reader.entry(row, f"line {number}") for number, row in source.rows())
    assert (reject.key, reject.reason) == ("1.jpg", "bad_annotation")
    assert f"{cell!r}, other cells hold int" in reject.detail


def test_a_csv_file_is_guessed_by_its_name_and_starts_where_it_lies(table, tmp_path):
    upper = tmp_path / "TABLE.CSV"
    Path(table("image,label\n1.jpg,cat\n").path).rename(upper)
    source = open_source(make_options(source=str(upper)))
    assert source == CsvTable(str(upper), TableColumns())
    assert source.base == str(tmp_path)
    assert CsvTable("table.csv", TableColumns()).base == "."
    named = tmp_path / "table.txt"
    upper.rename(named)
    assert open_source(make_options(source=str(named), source_kind="csv")) == CsvTable(str(named), TableColumns())

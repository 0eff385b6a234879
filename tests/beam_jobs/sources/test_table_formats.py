from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.errors import SourceError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.table import JsonlTable, ParquetTable
from beam_jobs.stages import reject_table
from beam_jobs.types import Annotations
from tests.beam_jobs.make_rows import make_options
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import flipped, jpeg

ROWS = [
    {"image": "1.jpg", "label": "grün", "age": 3, "scores": [1, 2.5], "note": None},
    {"image": "2.jpg", "label": "blau", "age": 4, "scores": [], "note": "07"},
]
EXTRA = ("age", "scores", "note")


@pytest.fixture
def write(tmp_path):
    """Writes rows beside the images 1.jpg and 2.jpg as `table.SUFFIX` and returns the path."""
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / name).write_bytes(b"image")

    def writer(suffix, rows=ROWS):
        path = tmp_path / f"table.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif suffix == "csv":
            lines = [",".join(row.values()) for row in rows]
            path.write_text("\n".join([",".join(rows[0]), *lines]), encoding="utf-8")
        else:
            path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8-sig")
        return path

    return writer


@pytest.mark.parametrize(("suffix", "kind"), [("jsonl", JsonlTable), ("NDJSON", JsonlTable), ("parquet", ParquetTable)])
def test_rows_become_references_with_typed_columns(write, suffix, kind):
    source = open_source(make_options(source=str(write(suffix)), columns=TableColumns(extra=EXTRA)))
    assert isinstance(source, kind)
    first, second = source.entries()
    assert [(ref.key, ref.label, ref.bytes) for ref in (first, second)] == [("1.jpg", "grün", 5), ("2.jpg", "blau", 5)]
    assert first.extra == {"age": 3, "scores": [1.0, 2.5]}
    assert second.extra == {"age": 4, "note": "07"}


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 2.5], [1.0, 2.5]), ([True, 2], [1, 2]), ([[1, 2], 3.5], [[1.0, 2.0], 3.5])]
)
def test_a_column_of_mixed_values_gets_one_type(write, values, expected):
    rows = [{"image": "1.jpg", "label": "a", "x": value} for value in values]
    source = JsonlTable(str(write("jsonl", rows)), TableColumns(extra=("x",)))
    found = [ref.extra["x"] for ref in source.entries()]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_a_line_may_lack_what_the_first_has(write):
    source = JsonlTable(str(write("jsonl", [ROWS[0], {"image": "2.jpg"}])), TableColumns())
    assert [getattr(entry, "reason", "good") for entry in source.entries()] == ["good", "no_label"]


@pytest.mark.parametrize(
    ("suffix", "cell", "labels"),
    [
        ("jsonl", ["b", " a ", "b", ""], ("a", "b")),
        ("parquet", [], ()),
        ("jsonl", None, ()),
        ("jsonl", "b|a", ("a", "b")),
        ("parquet", [3, 1], ("1", "3")),
    ],
)
def test_labels_may_be_a_list(write, suffix, cell, labels):
    rows = [{"image": "1.jpg", "tags": cell}]
    source = open_source(make_options(source=str(write(suffix, rows)), columns=TableColumns(labels="tags")))
    (ref,) = source.entries()
    assert ref.annotations == Annotations(labels=labels)


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"image": {"bytes": "x"}}, "bad_annotation", "line 1: column 'image' holds {'bytes': 'x'}; "),
        ({"label": ["a"]}, "bad_annotation", r"line 1: column 'label' holds \['a'\]; "),
        ({"id": [1]}, "bad_annotation", "line 1: column 'id' holds "),
        ({"tags": [["a"]]}, "bad_annotation", "line 1: column 'tags' holds "),
        ({"w": True}, "bad_annotation", "line 1: the weight is True; "),
        ({"w": float("nan")}, "bad_annotation", "line 1: the weight is nan; "),
        ({"w": 10**400}, "bad_annotation", "line 1: the weight is 10000"),
        ({"image": "\ud800.jpg"}, "name_not_utf8", "line 1: column 'image' holds .*which cannot be stored as UTF-8"),
        ({"note": ["a", "\ud800"]}, "name_not_utf8", "line 1: column 'note' holds "),
        ({"image": "a\0b"}, "unreadable", "its path has a null character, which paths cannot contain"),
        ({"image": None}, "not_a_file", "line 1: the cell of column 'image' is empty"),
        ({"label": float("nan")}, "no_label", "its label is empty"),
    ],
)
def test_a_cell_that_cannot_be_used_rejects_its_row_alone(write, row, reason, detail):
    named = {"labels": "tags"} if "tags" in row else {"weight": "w"} if "w" in row else {}
    columns = TableColumns(key="id", extra=("note",), **named)
    good = {"image": "2.jpg", "label": "a", "id": "2", "tags": ["a"], "w": 1, "note": "x"}
    path = write("jsonl")
    path.write_text(json.dumps({**good, "image": "1.jpg", "id": "1", **row}) + "\n" + json.dumps(good))
    reject, ref = JsonlTable(str(path), columns).entries()
    assert (reject.stage, reject.reason) == ("scan", reason)
    assert re.search(detail, reject.detail)
    assert ref.key == "2"
    reject_table.from_rejects([reject])  # all of it is text


def test_what_no_record_can_hold_in_an_extra_column_is_refused(write):
    for cell in ({"a": 1}, [[1]], [1, None]):
        source = JsonlTable(
            str(write("jsonl", [{"image": "1.jpg", "label": "a", "x": cell}])), TableColumns(extra=("x",))
        )
        with pytest.raises(SourceError, match=r"table\.jsonl: an extra column holds .*; it must hold numbers, text"):
            list(source.entries())


def test_a_table_of_parquet_may_lie_in_an_object_store(write):
    source = ParquetTable(f"{SCHEME}://{write('parquet')}", TableColumns(extra=EXTRA))
    source.check()
    found = [(ref.key, ref.label, ref.extra["age"]) for ref in source.entries()]
    assert found == [("1.jpg", "grün", 3), ("2.jpg", "blau", 4)]


def test_a_row_of_parquet_is_named_by_its_number(write):
    rows = [{"image": "1.jpg", "label": "a"}] * 5000 + [{"image": None, "label": "a"}]
    *_, reject = ParquetTable(str(write("parquet", rows)), TableColumns()).entries()
    assert (reject.key, reject.detail) == ("row 5001", "row 5001: the cell of column 'image' is empty")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"image": "1.jpg"}',
            "has no column 'label' for the label; it has 'image'; name the right column with --label-column, ",
        ),
        (b"", "has no column 'image' for the image; it has none; name the right column with --image-column$"),
        (b"[1]", r"line 1 holds '\[1\]'; it must hold a JSON object$"),
        (b"{", "line 1 is not JSON: "),
        (b"[" * 100_000, "line 1 is not JSON: "),
        (b"\xff", "cannot be read past line 0: "),
    ],
)
def test_a_wrong_file_of_lines_is_refused(tmp_path, content, message):
    (tmp_path / "table.jsonl").write_bytes(content)
    with pytest.raises(SourceError, match=rf"table\.jsonl {message}"):
        open_source(make_options(source=str(tmp_path / "table.jsonl")))


def test_a_wrong_parquet_file_is_refused(tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"no parquet")
    with pytest.raises(SourceError, match=r"table\.parquet cannot be read as a PARQUET table: "):
        open_source(make_options(source=str(tmp_path / "table.parquet")))


def no_text() -> pa.Array:
    """Returns `a` and a byte that is not UTF-8; Arrow writes both without a look."""
    offsets = b"".join(place.to_bytes(4, "little") for place in (0, 1, 2))
    return pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"a\xff"))


@pytest.mark.parametrize(
    ("labels", "reason"), [(no_text(), "0xff"), (pa.array([1, 2**31 - 1], pa.date32()), "days=2147483647")]
)
def test_a_column_of_what_python_cannot_hold_is_refused(tmp_path, labels, reason):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"image": ["1.jpg", "2.jpg"], "label": labels}), path)
    with pytest.raises(SourceError, match=rf"table\.parquet cannot be read past row 0: .*{reason}"):
        list(open_source(make_options(source=str(path))).entries())


def test_damage_inside_a_parquet_file_is_told_in_one_line(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"image": ["1.jpg"], "label": ["a"]}), path)
    path.write_bytes(flipped(path.read_bytes(), 4))  # the first byte of the header of the first page
    with pytest.raises(SourceError, match=r"table\.parquet cannot be read past row 0: ") as raised:
        open_source(make_options(source=str(path)))
    assert len(str(raised.value).splitlines()) == 1


def test_a_broken_line_far_down_is_named_and_nothing_stays_behind(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg())
    good = json.dumps({"image": "1.jpg", "label": "a"})
    (tmp_path / "table.jsonl").write_text("\n".join([good, good, good, "{broken"]))
    before = sorted(tmp_path.iterdir())
    options = IngestOptions(source=str(tmp_path / "table.jsonl"), out=str(tmp_path / "out"), bucket_images=1)
    with pytest.raises(SourceError, match=r"table\.jsonl line 4 is not JSON"):
        run(options)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("suffix", "column"),
    [("csv", "image"), ("jsonl", "label"), ("parquet", "key"), ("csv", "group"), ("jsonl", "split")],
)
def test_a_path_or_a_name_has_at_most_4096_bytes(write, suffix, column):
    names = {"image": "1.jpg", "label": "cat", "key": "k", "group": "g", "split": "train"}
    rows = [{**names, column: "é" * 2048}, {**names, column: "é" * 2048 + "x"}]
    columns = TableColumns(key="key", group="group", split="split")
    allowed, refused = open_source(make_options(source=str(write(suffix, rows)), columns=columns)).entries()
    assert getattr(allowed, "reason", "unreadable") == "unreadable"  # there is no image of the longest path
    place = {"csv": "line 3", "jsonl": "line 2", "parquet": "row 2"}[suffix]
    shown = "'" + "é" * 60 + "'"
    assert (refused.reason, refused.detail) == (
        "bad_annotation",
        f"{place}: column {column!r} holds {shown}..., which has more than the 4096 bytes allowed",
    )
    assert len(refused.key) < 10


@pytest.mark.parametrize(
    ("suffix", "value"),
    [("parquet", "x" * (1 << 20)), ("jsonl", ["x" * (1 << 19)] * 2), ("parquet", [7] * (1 << 17))],
    ids=["text", "texts", "numbers"],
)
def test_a_cell_of_an_extra_column_has_at_most_a_mebibyte(write, suffix, value):
    more = [*value, value[0]] if isinstance(value, list) else value + "x"
    rows = [{"image": "1.jpg", "label": "cat", "note": cell} for cell in (value, more)]
    columns = TableColumns(extra=("note",))
    allowed, refused = open_source(make_options(source=str(write(suffix, rows)), columns=columns)).entries()
    assert allowed.extra == {"note": value}
    assert refused.reason == "bad_annotation"
    assert re.search(r"column 'note' holds 1\d{6} bytes; 1048576 are allowed \(max_value_bytes\)$", refused.detail)


def test_all_labels_of_an_image_have_at_most_a_mebibyte(write):
    rows = [{"image": "1.jpg", "names": ["x" * 4096] * count} for count in (256, 257)]
    columns = TableColumns(labels="names")
    allowed, refused = open_source(make_options(source=str(write("jsonl", rows)), columns=columns)).entries()
    assert allowed.annotations.labels == ("x" * 4096,)
    assert refused.detail == "line 2: column 'names' holds 1052672 bytes; 1048576 are allowed (max_value_bytes)"


@pytest.mark.parametrize("column", [{"labels": "names"}, {"extra": ("names",)}])
def test_the_bytes_of_a_cell_are_an_option(write, column):
    rows = [{"image": "1.jpg", "label": "cat", "names": "x" * count} for count in (8, 9)]
    options = make_options(source=str(write("jsonl", rows)), columns=TableColumns(max_value_bytes=8, **column))
    allowed, refused = open_source(options).entries()
    assert allowed.key
    assert refused.detail == "line 2: column 'names' holds 9 bytes; 8 are allowed (max_value_bytes)"


def test_a_table_of_a_text_that_every_row_repeats_is_read_without_holding_it_for_each(write):
    path = write("parquet", [{"image": "x" * 400_000, "label": "cat"}] * 1024)
    assert path.stat().st_size < 100_000  # of 410 MB
    before = pa.total_allocated_bytes()
    peak = 0
    for reject in open_source(make_options(source=str(path), columns=TableColumns())).entries():
        peak = max(peak, pa.total_allocated_bytes() - before)
        assert (reject.key, len(reject.detail) < 200) == (reject.uri, True)
    assert peak < 64 << 20

from __future__ import annotations

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.dataset import manifest, record, tfrecord
from pipeline.cli import execute as run
from tests.command import on_a_terminal
from tests.make_images import class_folders, jpeg, png
from tests.rewrite_records import framed

LONG = "a/name/of/a/feature/that/is/longer/than/most/of/them/are"


def example(index: int, image: bytes) -> bytes:
    boxes = {f"objects/bbox/{edge}": ("float", (0.1, 0.9)) for edge in ("xmin", "xmax", "ymin", "ymax")}
    caption = f"number {index}".encode()
    return record.encode_example(
        {"image": ("bytes", (image,)), "label": ("int64", (index % 3,)), "caption": ("bytes", (caption,)), **boxes}
    )


@pytest.fixture
def foreign(here):
    """A directory of two files of somebody else, one of them packed; every third image is broken."""
    folder = here / "foreign"
    folder.mkdir()
    payloads = [example(n, png(n, 20, 30) if n % 3 else b"\x89PNG\r\n\x1a\nbroken") for n in range(12)]
    (folder / "one.tfrecord").write_bytes(framed(*payloads[:7]))
    (folder / "two.tfrecord.gz").write_bytes(gzip.compress(framed(*payloads[7:])))
    return folder


def test_a_dataset_a_shard_and_one_image_can_be_looked_at(here, said):
    photos = class_folders(here / "photos", per_class=6)
    said("ingest", "photos", "--out", "dataset", "--splits", "train=0.5,eval=0.5", "--shards", "1")

    shown = said("inspect", "dataset", "-n", "1")
    assert "classes    2: china, flower" in shown
    assert re.search(r"\nrecord     min [\d,]+, median [\d,]+, max [\d,]+ bytes\n", shown)
    assert re.search(r"\n  image/encoded +bytes +1 +\d+ +image, \d", shown)
    assert "(features of Split-train/data-00000-of-00001.tfrecord)" in shown
    assert len(re.findall(r"\n  image/filename +\w+/\d+\.", shown)) == 1

    values = json.loads(said("inspect", "dataset/Split-train/data-00000-of-00001.tfrecord", "-n", "0", "--json"))
    assert values["compression"] == "none"
    assert values["guess"] == {
        "looks_like": "Feedline",
        "image": "image/encoded",
        "labels": ["image/class/label", "image/class/text"],
        "key": "image/filename",
    }
    mean = values["features"]["image/mean_rgb"]
    assert (mean["kind"], mean["records"], mean["least"], mean["most"]) == ("float", values["records"], 3, 3)
    assert values["bytes"] == values["payload_bytes"] + tfrecord.OVERHEAD * values["records"]

    values = json.loads(said("inspect", "dataset", "--json"))
    assert values == json.loads(json.dumps(manifest.load("dataset").to_json()))

    shown = said("inspect", "dataset", "--key", "china/002.png", "--export", "out")
    assert "image/class/text              china" in shown
    assert (here / "out" / "00000.png").read_bytes() == (photos / "china" / "002.png").read_bytes()


def test_files_of_others_are_summed_up_on_80_plain_columns(foreign, said):
    shown = said("inspect", "foreign", "-n", "1")
    size = sum(path.stat().st_size for path in foreign.iterdir())
    for line in (
        f"12 records in 2 files, {size:,} bytes, compression gzip, none",
        "looks like TFDS",
        "image      image",
        "label      label",
    ):
        assert line in shown.splitlines()
    assert re.search(r"\n  two\.tfrecord\.gz +5 +[\d,]+ +gzip\n", shown)
    assert re.search(r"\n  label +int64 +1 +12 +label, 0 to 2\n", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.isascii()
    assert "\x1b" not in shown


def test_long_names_break_in_no_column_of_80(here, said):
    (here / "x").write_bytes(framed(record.encode_example({LONG: ("int64", (1,)), "b": ("int64", (1,))})))
    shown = said("inspect", "x", "-n", "0")
    assert LONG in re.sub(r"\s+(int64\s+1\s+1\s+1)?", "", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_what_stands_before_the_damage_is_shown_and_the_exit_code_tells(foreign, capsys):
    path = foreign / "one.tfrecord"
    path.write_bytes(path.read_bytes()[:-9])
    assert run("inspect foreign -n 0".split()) == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("11 records in 2 files")
    assert re.search(r"\n  one\.tfrecord +6 +[\d,]+ +damaged\n", captured.out)
    assert re.fullmatch(
        r"feedline: error: foreign/one\.tfrecord ends inside the record at offset \d+: .*\n", captured.err
    )


def test_nothing_to_export_and_wrong_paths_are_one_line(here, refused):
    (here / "empty.tfrecord").write_bytes(b"")
    printed = "0 records, 0 bytes, compression none\nlooks like unknown: no feature has a known name of an image\n"
    assert "nothing can be exported" in refused("inspect", "empty.tfrecord", "--export", "out", printed=printed)
    assert not (here / "out").exists()
    assert refused("inspect", "nowhere") == "feedline: error: nowhere cannot be read: No such file or directory"


def test_rejects_are_counted_by_reason_and_shown_in_full(here, said):
    photos = class_folders(here / "photos", per_class=12)
    (photos / "china" / "note.jpg").write_text("no image")
    (photos / "china" / "tiny.png").write_bytes(png(1, 2, 2))
    (photos / "flower" / "note.jpg").write_text("no image either")
    said("ingest", "photos", "--out", "dataset", "--max-reject-ratio", "0.5")

    shown = said("inspect", "dataset/rejects.parquet", "-n", "1")
    assert re.match(r"3 rows, [\d,]+ bytes, Parquet\nreasons    2 not_an_image, 1 too_small\n", shown)
    assert re.search(r"\n  detail  string\n", shown)
    assert re.search(r"\n  key +china/note.jpg\n", shown)
    assert "flower" not in shown

    values = json.loads(said("inspect", "dataset/rejects.parquet", "-n", "9", "--json"))
    assert (values["rows"], values["reasons"]) == (3, {"not_an_image": 2, "too_small": 1})
    assert values["columns"]["bytes"] == "int64"
    assert [row["key"] for row in values["first"]] == ["china/note.jpg", "china/tiny.png", "flower/note.jpg"]


def test_any_parquet_table_is_shown_and_a_damaged_one_is_named(here, said, refused):
    pq.write_table(
        pa.table({"image": [b"\x89PNG\r\n", None], "note": ["a" * 60, ""], "box": [[1, 2], []]}), "t.parquet"
    )
    first = json.loads(said("inspect", "t.parquet", "--json"))["first"]
    assert first == [{"image": "<6 bytes>", "note": "a" * 60, "box": "[1, 2]"}, {"image": "", "note": "", "box": "[]"}]
    assert "note    string" in said("inspect", "t.parquet", "-n", "0")

    columns = ("key", "uri", "stage", "reason", "detail")
    like_rejects = {**{name: pa.array([b"x", None], pa.binary()) for name in columns}, "bytes": [1, 2]}
    pq.write_table(pa.table({**like_rejects, "key": [{"a": list(range(99))}, None]}), "odd.parquet")
    values = json.loads(said("inspect", "odd.parquet", "--json"))
    assert values["reasons"] == {}
    assert values["first"][0]["key"] == "{'a': [0, 1, 2, 3, 4, 5, 6, 7, '...']}"

    pq.write_table(pa.Table.from_arrays([pa.array([n]) for n in (1, 2, 3)], ["a", "a", "a (2)"]), "twice.parquet")
    values = json.loads(said("inspect", "twice.parquet", "--json"))
    assert values["columns"] == {"a": "int64", "a (2)": "int64", "a (2) (2)": "int64"}
    assert values["first"] == [{"a": "1", "a (2)": "2", "a (2) (2)": "3"}]

    data = (here / "t.parquet").read_bytes()
    (here / "cut.parquet").write_bytes(data[:-20])
    line = refused("inspect", "cut.parquet", code=3)
    assert line.startswith("feedline: error: cut.parquet cannot be read as Parquet: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect foreign/one.tfrecord --key 1.jpg", "one.tfrecord is a file; name the directory of the dataset"),
        ("inspect foreign --draw --json", "--draw and --json exclude each other"),
        ("inspect photos", "photos holds neither dataset.json nor a TFRecord file"),
    ],
)
def test_a_wrong_request_is_one_line(foreign, refused, line, message):
    (foreign.parent / "photos").mkdir()
    (foreign.parent / "photos" / "1.jpg").write_bytes(jpeg())
    assert message in refused(*line.split())


# --- on a terminal


def test_a_terminal_gets_a_ruled_table_and_drawings(foreign):
    code, shown = on_a_terminal("inspect", "foreign", "-n", 2, "--draw", COLORTERM="truecolor")
    assert code == 0, shown
    assert "╭" in shown
    assert "\x1b[1mfeature" in shown
    assert "(undecodable: " in shown or "(bad_header: " in shown
    drawn = [line for line in shown.split("\n") if "\x1b[38;2;" in line]
    assert len(drawn) == 20  # 20 x 30 pixels, enlarged to half of the room
    assert {line.count("▀") for line in drawn} == {60}


def test_no_color_is_respected(foreign):
    code, shown = on_a_terminal("inspect", "foreign", "-n", 1, "--draw", NO_COLOR="1", columns=60)
    assert code == 0, shown
    assert "\x1b[" not in shown
    assert "--draw: NO_COLOR is set; --export DIR writes the images" in shown
    table = [line for line in shown.split("\n") if "│" in line]
    assert table
    assert max(map(len, table)) <= 60


def test_a_pipe_gets_no_drawing_and_is_told_why(foreign, capsys):
    assert run("inspect foreign -n 1 --draw".split()) == 0
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out
    assert captured.err.startswith("--draw: standard output is not a terminal")

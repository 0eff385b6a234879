from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.dataset import manifest, record, tfrecord
from pipeline.cli import execute as run
from tests.make_images import class_folders, jpeg, png

LONG = "a/name/of/a/feature/that/is/longer/than/most/of/them/are"


def framed(*payloads: bytes) -> bytes:
    return b"".join(piece for payload in payloads for piece in tfrecord.frame(payload))


def example(index: int, image: bytes) -> bytes:
    boxes = {f"objects/bbox/{edge}": ("float", (0.1, 0.9)) for edge in ("xmin", "xmax", "ymin", "ymax")}
    caption = f"number {index}".encode()
    return record.encode_example(
        {"image": ("bytes", (image,)), "label": ("int64", (index % 3,)), "caption": ("bytes", (caption,)), **boxes}
    )


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A directory of two files of somebody else, one of them packed; every third image is broken."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "foreign"
    folder.mkdir()
    payloads = [example(n, png(n, 20, 30) if n % 3 else b"\x89PNG\r\n\x1a\nbroken") for n in range(12)]
    (folder / "one.tfrecord").write_bytes(framed(*payloads[:7]))
    (folder / "two.tfrecord.gz").write_bytes(gzip.compress(framed(*payloads[7:])))
    return folder


def test_a_dataset_a_shard_and_one_image_can_be_looked_at(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = class_folders(tmp_path / "photos", per_class=6)
    assert run("ingest photos --out dataset --splits train=0.5,eval=0.5 --shards 1".split()) == 0
    capsys.readouterr()

    assert run("inspect dataset -n 1".split()) == 0
    shown = capsys.readouterr().out
    assert "classes    2: china, flower" in shown
    assert re.search(r"\nrecord     min [\d,]+, median [\d,]+, max [\d,]+ bytes\n", shown)
    assert re.search(r"\n  image/encoded +bytes +1 +\d+ +image, \d", shown)
    assert "(features of Split-train/data-00000-of-00001.tfrecord)" in shown
    assert len(re.findall(r"\n  image/filename +\w+/\d+\.", shown)) == 1

    assert run("inspect dataset/Split-train/data-00000-of-00001.tfrecord -n 0 --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
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

    assert run("inspect dataset --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert values == json.loads(json.dumps(manifest.load("dataset").to_json()))

    assert run("inspect dataset --key china/002.png --export out".split()) == 0
    assert "image/class/text              china" in capsys.readouterr().out
    assert (tmp_path / "out" / "00000.png").read_bytes() == (photos / "china" / "002.png").read_bytes()


def test_files_of_others_are_summed_up_on_80_plain_columns(foreign, capsys):
    assert run("inspect foreign -n 1".split()) == 0
    shown = capsys.readouterr().out
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


def test_long_names_break_in_no_column_of_80(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_bytes(framed(record.encode_example({LONG: ("int64", (1,)), "b": ("int64", (1,))})))
    assert run("inspect x -n 0".split()) == 0
    shown = capsys.readouterr().out
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


def test_nothing_to_export_and_wrong_paths_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    assert run("inspect empty.tfrecord --export out".split()) == 2
    assert "nothing to export" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run("inspect nowhere".split()) == 2
    assert capsys.readouterr().err == "feedline: error: nowhere cannot be read: No such file or directory\n"


def test_rejects_are_counted_by_reason_and_shown_in_full(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = class_folders(tmp_path / "photos", per_class=12)
    (photos / "china" / "note.jpg").write_text("no image")
    (photos / "china" / "tiny.png").write_bytes(png(1, 2, 2))
    (photos / "flower" / "note.jpg").write_text("no image either")
    assert run("ingest photos --out dataset --max-reject-ratio 0.5".split()) == 0
    capsys.readouterr()

    assert run("inspect dataset/rejects.parquet -n 1".split()) == 0
    shown = capsys.readouterr().out
    assert re.match(r"3 rows, [\d,]+ bytes, Parquet\nreasons    2 not_an_image, 1 too_small\n", shown)
    assert re.search(r"\n  detail  string\n", shown)
    assert re.search(r"\n  key +china/note.jpg\n", shown)
    assert "flower" not in shown

    assert run("inspect dataset/rejects.parquet -n 9 --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["rows"], values["reasons"]) == (3, {"not_an_image": 2, "too_small": 1})
    assert values["columns"]["bytes"] == "int64"
    assert [row["key"] for row in values["first"]] == ["china/note.jpg", "china/tiny.png", "flower/note.jpg"]


def test_any_parquet_table_is_shown_and_a_damaged_one_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(
        pa.table({"image": [b"\x89PNG\r\n", None], "note": ["a" * 60, ""], "box": [[1, 2], []]}), "t.parquet"
    )
    assert run("inspect t.parquet --json".split()) == 0
    first = json.loads(capsys.readouterr().out)["first"]
    assert first == [{"image": "<6 bytes>", "note": "a" * 60, "box": "[1, 2]"}, {"image": "", "note": "", "box": "[]"}]
    assert run("inspect t.parquet -n 0".split()) == 0
    assert "note    string" in capsys.readouterr().out

    columns = ("key", "uri", "stage", "reason", "detail")
    like_rejects = {**{name: pa.array([b"x", None], pa.binary()) for name in columns}, "bytes": [1, 2]}
    pq.write_table(pa.table({**like_rejects, "key": [{"a": list(range(99))}, None]}), "odd.parquet")
    assert run("inspect odd.parquet --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["reasons"] == {}
    assert values["first"][0]["key"] == "{'a': [0, 1, 2, 3, 4, 5, 6, 7, '...']}"

    pq.write_table(pa.Table.from_arrays([pa.array([n]) for n in (1, 2, 3)], ["a", "a", "a (2)"]), "twice.parquet")
    assert run("inspect twice.parquet --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["columns"] == {"a": "int64", "a (2)": "int64", "a (2) (2)": "int64"}
    assert values["first"] == [{"a": "1", "a (2)": "2", "a (2) (2)": "3"}]

    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:-20])
    assert run("inspect cut.parquet".split()) == 3
    said = capsys.readouterr().err
    assert said.startswith("feedline: error: cut.parquet cannot be read as Parquet: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect foreign/one.tfrecord --key 1.jpg", "one.tfrecord is a file; name the directory of the dataset"),
        ("inspect foreign --draw --json", "--draw and --json exclude each other"),
        ("inspect photos", "photos holds neither dataset.json nor a TFRecord file"),
    ],
)
def test_a_wrong_request_is_one_line(foreign, capsys, line, message):
    (foreign.parent / "photos").mkdir()
    (foreign.parent / "photos" / "1.jpg").write_bytes(jpeg())
    assert run(line.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# --- on a terminal


def on_a_terminal(*arguments: str, columns: int = 100, **environ: str) -> str:
    """Returns what the command shows on a terminal of xterm's kind."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env={**plain, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **environ},
    )
    os.close(theirs)
    said = b""
    try:
        while block := os.read(ours, 1 << 16):
            said += block
    except OSError:  # what Linux says when the other side is gone
        pass
    os.close(ours)
    assert process.wait(60) == 0, said
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_ruled_table_and_drawings(foreign):
    shown = on_a_terminal("inspect", "foreign", "-n", "2", "--draw", COLORTERM="truecolor")
    assert "╭" in shown
    assert "\x1b[1mfeature" in shown
    assert "(undecodable: " in shown or "(bad_header: " in shown
    drawn = [line for line in shown.split("\n") if "\x1b[38;2;" in line]
    assert len(drawn) == 20  # 20 x 30 pixels, enlarged to half of the room
    assert {line.count("▀") for line in drawn} == {60}


def test_no_color_is_respected(foreign):
    shown = on_a_terminal("inspect", "foreign", "-n", "1", "--draw", NO_COLOR="1", columns=60)
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

"""Tables and annotations that are broken, cut, far too long or of the wrong types."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.trials import Trial, Worker
from tests.make_images import jpeg

_IMAGES = [f"{number}.jpg" for number in range(8)]
_LABELS = ["cat", "dog"] * 4
_TABLES = {f"t.{suffix}" for suffix in ("csv", "jsonl", "parquet", "json")}
_STRANGE = [
    *("..", "../../x", "/etc/passwd", "a/b", "a\\b", ".", "-", "new\nline", "nul\0byte", "\x1b[31m", " ", "ß" * 500),
    *("NaN",),
]


_FLAT_MIB = 64  # what the longest line that is read, and its copies, may take

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds eight images."""
    for number, name in enumerate(_IMAGES):
        (tmp_path / name).write_bytes(jpeg(number, 16, 24))
    return tmp_path


def _ingest(ingests: Worker, folder: Path, name: str, *arguments: object) -> Trial:
    found = ingests.ingest(folder / name, folder / "out" / str(len(list(folder.glob("out/*")))), *arguments)
    strays = {path.name for path in folder.iterdir()} - {*_IMAGES, *_TABLES, "out"}
    assert not strays, strays
    return found


def _csv(folder: Path, *rows: str, header: str = "image,label") -> str:
    (folder / "t.csv").write_text("\n".join([header, *rows, ""]), newline="")
    return "t.csv"


def test_unbalanced_quotes(fault, ingests: Worker, folder: Path, tries):
    row = fault("tables", "CSV with quotes that are not balanced", "one line with the line numbers; no row is lost")
    rows = [f"{image},{label}" for image, label in zip(_IMAGES, _LABELS, strict=True)]
    chance = random.Random(1)
    for number in range(tries(60, 10)):
        lines = list(rows)
        changed = sorted(chance.sample(range(len(lines)), chance.choice((1, 1, 2, 3))))
        for place in changed:
            cells = lines[place].split(",")
            at = chance.randrange(2)
            cells[at] = chance.choice(('"{}', '{}"', '"{}""', '"""{}', '{}"x"')).format(cells[at])
            lines[place] = ",".join(cells)
        found = _ingest(ingests, folder, _csv(folder, *lines))
        # A quote opens a cell only where one begins; anywhere else it is a sign like any other.
        opened = [place for place in changed if any(cell.startswith('"') for cell in lines[place].split(","))]
        if opened:
            last = opened[0] + 1  # line before, the header being the first
            places = (f"past line {last}: ", f"between the lines {last + 1} and ")
            told = "quote is not closed" in found.error and any(place in found.error for place in places)
        else:
            other = {place for place in changed if '"' in lines[place].split(",")[0]}
            told = found.images == {f"{place}.jpg" for place in set(range(8)) - other} and len(found.rejects) == len(
                other
            )
        # A cell that was changed names no image any more; what the rejects tell holds its old name.
        names = () if opened else _IMAGES
        found.judge(row, f"try {number}: {lines}", names, code=2 if opened else 0, wrong=not told)


def test_very_long_lines(fault, ingests: Worker, folder: Path, tries):
    row = fault("tables", "a line of 1 GB", "one line; memory does not grow")
    size = tries(1 << 30, 256 << 20)
    _ingest(ingests, folder, _csv(folder, "0.jpg,cat"))  # the first of a process grows by all that it imports
    starts = {
        "t.csv": [b"", b"image,label\n", b"image,label\n0.jpg,", b'image,label\n0.jpg,"'],
        "t.jsonl": [b"", b'{"image": "0.jpg", "label": "cat"}\n', b'{"image": "0.jpg", "label": "'],
    }
    for name, heads in starts.items():
        for head in heads:
            for filler in (b"", b"x")[: 2 if head is heads[-1] else 1]:
                with (folder / name).open("wb") as stream:
                    stream.write(head)
                    if filler:
                        for _ in range(size >> 20):
                            stream.write(filler * (1 << 20))
                    else:
                        stream.truncate(size)  # zeros that take no room
                found = _ingest(ingests, folder, name)
                about = f"{name} of {head[-20:]!r} and {filler!r}, {found.grown_mib:.0f} MiB"
                flat = found.grown_mib < _FLAT_MIB
                number = len(head.split(b"\n"))
                found.judge(row, about, code=2, says=f"line {number} has more than", wrong=not flat)
                (folder / name).unlink()


def test_bytes_that_are_no_text(fault, ingests: Worker, folder: Path):
    row = fault("tables", "NUL bytes and bytes that are not UTF-8", "a reject, or one line with the position")
    good = [{"image": "1.jpg", "label": "dog"}, {"image": "2.jpg", "label": "cat"}]
    for bad in (b"\0", b"a\0b", b"\xff", b"\xed\xa0\x80"):
        for cells in ((bad, b"cat"), (b"0.jpg", bad)):
            (folder / "t.csv").write_bytes(b"image,label\n" + b",".join(cells) + b"\n1.jpg,dog\n")
            found = _ingest(ingests, folder, "t.csv")
            found.judge(row, f"CSV {cells}", code=2, says="past line 1: " if b"\0" in bad else "in position ")
    for bad in ("\0", "a\0b", "\ud800", "\x7f"):
        for cells in ({"image": bad, "label": "cat"}, {"image": "0.jpg", "label": bad}):
            (folder / "t.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [cells, *good]))
            found = _ingest(ingests, folder, "t.jsonl")
            total = found.count("images") + found.count("rejects.parquet")
            found.judge(row, f"JSON {cells}", ["1.jpg", "2.jpg"], wrong=total != 3)


def _columns() -> Iterator[tuple[str, pa.Array]]:
    yield "numbers", pa.array(range(8))
    yield "floats", pa.array([0.5, float("nan"), float("inf"), None] * 2)
    yield "flags", pa.array([True, False] * 4)
    yield "bytes", pa.array([b"\xff", b"0.jpg"] * 4)
    yield "lists", pa.array([["0.jpg"], [], None, ["a", "b"]] * 2)
    yield "structs", pa.array([{"bytes": b"x", "path": "0.jpg"}] * 8)
    yield "maps", pa.array([[("a", 1)]] * 8, pa.map_(pa.string(), pa.int64()))
    yield "times", pa.array([1] * 8, pa.timestamp("us"))
    yield "dates beyond the calendar", pa.array([2**31 - 1] * 8, pa.date32())
    yield "decimals", pa.array([1] * 8, pa.decimal128(38))
    yield "nothing", pa.nulls(8)
    yield (
        "no text",
        pa.Array.from_buffers(
            pa.string(),
            8,
            [None, pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in range(9))), pa.py_buffer(b"\xff" * 8)],
        ),
    )
    yield "dictionary", pa.array(_IMAGES).dictionary_encode()


def test_parquet_of_wrong_types(fault, ingests: Worker, folder: Path, short: bool):
    row = fault("tables", "Parquet with columns of wrong types", "a reject per row, or one line")
    good = {"image": pa.array(_IMAGES), "label": pa.array(_LABELS)}
    roles = {"image": (), "label": (), "weight": ("--weight-column", "weight"), "note": ("--extra-column", "note")}
    roles |= {
        "labels": ("--labels-column", "labels"),
        "mask": ("--mask-column", "mask"),
        "split": ("--split-column", "split"),
    }
    for about, column in _columns():
        for role, arguments in list(roles.items())[: 2 if short else None]:
            pq.write_table(pa.table({**good, role: column}), folder / "t.parquet")
            found = _ingest(ingests, folder, "t.parquet", *arguments)
            total = found.count("images") + found.count("rejects.parquet")
            one_line = found.code == 2 and "t.parquet" in found.error
            # Of rejects alone there is no dataset, and exit code 3.
            found.judge(row, f"{about} for {role}", code=(0, 2, 3), wrong=not one_line and total != 8)


def test_damaged_parquet(fault, ingests: Worker, folder: Path, tries):
    row = fault("tables", "Parquet truncated anywhere, or with a flipped byte", "a reject, or one line")
    pq.write_table(pa.table({"image": _IMAGES, "label": _LABELS}), folder / "whole")
    data = (folder / "whole").read_bytes()
    (folder / "whole").unlink()
    chance = random.Random(2)
    for _ in range(tries(25, 4)):
        length = chance.randrange(len(data))
        (folder / "t.parquet").write_bytes(data[:length])
        found = _ingest(ingests, folder, "t.parquet")
        found.judge(row, f"cut at {length}", code=2, says="t.parquet")
        place = chance.randrange(len(data))
        (folder / "t.parquet").write_bytes(
            data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
        )
        found = _ingest(ingests, folder, "t.parquet")
        total = found.count("images") + found.count("rejects.parquet")
        found.judge(row, f"flipped at {place}", code=(0, 2), says="t.parquet", wrong=found.code == 0 and total != 8)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "",
        "[]",
        "null",
        "1",
        '"text"',
        '{"image": "0.jpg", "label"',
        "{'image': 1}",
        "[" * 100_000,
        "1" * 100_000,
        "{}{}",
    ],
    ids=lambda line: line[:12] or "empty",
)
def test_broken_lines_of_json(fault, ingests: Worker, folder: Path, short: bool, line: str):
    row = fault("tables", "JSON lines with a broken line", "one line with the line number")
    lines = [json.dumps({"image": image, "label": "cat"}) for image in _IMAGES]
    for place in (0, 8) if short else (0, 4, 8):
        (folder / "t.jsonl").write_text("\n".join([*lines[:place], line, *lines[place:]]))
        found = _ingest(ingests, folder, "t.jsonl")
        whole = bool(line) or found.images == set(_IMAGES)
        code = 2 if line else 0
        found.judge(row, f"{line[:20]} as line {place + 1}", code=code, says=f"line {place + 1} ", wrong=not whole)


def _coco() -> dict[str, Any]:
    return {
        "images": [{"id": number, "file_name": name, "height": 16, "width": 24} for number, name in enumerate(_IMAGES)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": number % 2, "bbox": [2, 2, 5, 6]} for number in range(8)
        ],
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }


_ODD: list[Any] = [
    *(None, "", "text", "../../x", -1, 0, 1.5, 10**400, 1e308, float("nan"), float("inf"), True, [], [1], {}, {"a": 1})
]
_BOXES = [[0, 0, 1e9, 1], [-50, 0, 5, 5], [0, 0, 0, 0], [0, 0, -3, 4], [23.9, 15.9, 9, 9], [1, 2, 3], ["a"] * 4]
_FIELDS = {
    "images": ["id", "file_name", "height", "width"],
    "annotations": ["id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"],
    "categories": ["id", "name"],
}


def _is_id(value: Any) -> bool:
    return type(value) in (int, str) and value not in ("gone", "double")


_BAD = {"1.jpg": "bad_annotation"}
_ORPHAN = {"annotation 1": "bad_annotation"}
_FINE: dict[str, list[Any]] = {  # what may stand in a field of an annotation, besides what it is
    "category_id": [0, "double"],
    "bbox": ["double"],
    "area": [0, 1.5, "gone"],
    "iscrowd": [0, True, "gone"],
    "segmentation": [None, "", 0, [], {}, "gone", "double"],
}


def _right(part: str, field: str, value: Any) -> tuple[str, dict[str, str]]:
    """Returns what the one line must say, if it must be one, and the rejects if it must not."""
    if part == "categories":
        return _right_category(field, value)
    return "", _right_annotation(field, value) if part == "annotations" else _right_image(field, value)


def _right_annotation(field: str, value: Any) -> dict[str, str]:
    if field == "image_id":
        return {} if value in (0, "double") else _ORPHAN
    fine = any(type(one) is type(value) and one == value for one in _FINE.get(field, ()))
    return {} if fine or field == "id" else _BAD


def _right_image(field: str, value: Any) -> dict[str, str]:
    if field == "id" and value in (0, "double"):
        return {"1.jpg": "duplicate_key", **_ORPHAN}
    if field == "id":
        return _ORPHAN if _is_id(value) else {"image 2": "bad_annotation", **_ORPHAN}
    if field == "file_name":
        return _right_name(value)
    return {} if value == "double" else _BAD


def _right_name(value: Any) -> dict[str, str]:
    if value in (None, "", "gone") or repr(value) == "nan":
        return {"image 2": "not_a_file"}
    if value == "double":
        return {"0.jpg": "duplicate_key"}
    return {"image 2": "bad_annotation"} if isinstance(value, (list, dict)) else {str(value): "unreadable"}


def _right_category(field: str, value: Any) -> tuple[str, dict[str, str]]:
    if value in (0, "double") and field == "id":
        return "has two categories with the id 0", {}
    if field == "name" and value in ("text", "../../x", "double"):
        return "", {}
    if field == "id" and _is_id(value):
        return "", {f"{number}.jpg": "bad_annotation" for number in (1, 3, 5, 7)}
    return "it must have an id and a name", {}


@pytest.mark.parametrize("part", _FIELDS)
def test_coco_of_wrong_values(fault, ingests: Worker, folder: Path, short: bool, part: str):
    row = fault("tables", "COCO JSON with missing, duplicate or invalid values", "a reject per image, or one line")
    odd = _ODD[::8] if short else _ODD
    for field in _FIELDS[part]:
        for value in [*odd, "gone", "double", *(_BOXES if field == "bbox" else [])]:
            document = _coco()
            item = document[part][1]
            if value == "gone":
                item.pop(field, None)
            else:
                item[field] = document[part][0].get(field) if value == "double" else value
            (folder / "t.json").write_text(json.dumps(document))
            found = _ingest(ingests, folder, "t.json")
            says, rejects = _right(part, field, value)
            # An image without a name or an id is called by its place among the images.
            gone = {"1.jpg"} if field == "file_name" or "image 2" in rejects else set(rejects)
            images = set() if says else set(_IMAGES) - gone
            right = (found.images, found.rejects) == (images, rejects)
            found.judge(row, f"{part}.{field} {value!r:.40}", code=2 if says else 0, says=says, wrong=not right)


def test_what_is_no_coco_json(fault, ingests: Worker, folder: Path):
    row = fault("tables", "JSON that is not COCO, truncated, or nested without end", "one line")
    whole = json.dumps(_coco())
    broken = ["", "{", "[" * 200_000, '{"images": ' + "[" * 200_000, whole[: len(whole) // 2], whole + "}", "\0" * 99]
    texts = dict.fromkeys(broken, "t.json is not JSON: ")
    texts |= dict.fromkeys(["[]", "null"], "t.json is not COCO instances json: it must have a list 'images'")
    for part in _FIELDS:
        for value in (None, {}, "x", 7):
            texts[json.dumps({**_coco(), part: value})] = f"it must have a list {part!r}"
    for value in ([[]], [None]):
        texts[json.dumps({**_coco(), "images": value})] = "has no image with a field 'file_name'"
        texts[json.dumps({**_coco(), "categories": value})] = "it must have an id and a name"
    for text, says in texts.items():
        (folder / "t.json").write_text(text)
        found = _ingest(ingests, folder, "t.json")
        found.judge(row, f"{text[:40]!r}", code=2, says=says)
    for value in ([[]], [None]):
        (folder / "t.json").write_text(json.dumps({**_coco(), "annotations": value}))
        found = _ingest(ingests, folder, "t.json")
        right = found.images == set(_IMAGES) and found.rejects == {"annotation number 1": "bad_annotation"}
        found.judge(row, f"annotations {value}", wrong=not right)


def test_class_names(fault, ingests: Worker, folder: Path):
    row = fault("tables", "class names with .., /, NUL or line ends", "stored as text, or a reject; never a path")
    named = list(zip(_IMAGES * 2, _STRANGE, strict=False))
    rows = [{"image": image, "label": label, "key": str(number)} for number, (image, label) in enumerate(named)]
    keys = [one["key"] for one in rows]
    (folder / "t.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = _ingest(ingests, folder, "t.jsonl", "--key-column", "key")
    found.judge(row, "JSON lines", keys, wrong=found.code != 0)
    made = {path.name for path in found.out.iterdir()}
    row.tried(f"the dataset holds {made}", wrong=bool(made & {"etc", "x", "a", "passwd"}))
    pq.write_table(pa.Table.from_pylist(rows), folder / "t.parquet")
    (folder / "t.jsonl").unlink()
    found = _ingest(ingests, folder, "t.parquet", "--key-column", "key")
    found.judge(row, "Parquet", keys, wrong=found.code != 0)
    (folder / "t.parquet").unlink()
    for name in _STRANGE:
        document = _coco()
        document["categories"][0]["name"] = name
        (folder / "t.json").write_text(json.dumps(document))
        found = _ingest(ingests, folder, "t.json")
        blank = not name.strip()
        found.judge(row, f"COCO {name!r:.20}", () if blank else _IMAGES, code=2 if blank else 0, says=repr(name))

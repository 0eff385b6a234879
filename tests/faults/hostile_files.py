"""Small hostile files of every kind that is read: each cheap to send and, without a limit, dear to read.

A maker writes its file into a folder, beside nothing or beside what it needs, and returns the path to be ingested.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.dataset import record, tfrecord
from tests.beam_jobs import make_hostile_images as make
from tests.beam_jobs.hostile_rows import REJECTED, SECTIONS
from tests.beam_jobs.make_archives import attributes, header_block, member, sparse_member
from tests.make_images import forged_png, jpeg

Maker = Callable[[Path], Path]
MAX_BYTES = 2 << 20  # of a hostile file
LONG = "x" * 400_000
DEEP = 100_000  # levels of nesting


def _file(name: str, data: Callable[[], bytes]) -> Maker:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data())
        return folder / name

    return write


def _image(data: Callable[[], bytes]) -> Maker:
    """A class folder of the image and a good one, so that there is a dataset."""

    def write(folder: Path) -> Path:
        for name, content in (("good.jpg", jpeg()), ("bad", data())):
            (folder / "images" / "all").mkdir(parents=True, exist_ok=True)
            (folder / "images" / "all" / name).write_bytes(content)
        return folder / "images"

    return write


def _images() -> dict[str, Maker]:
    rows = [(kind, row) for kind, rows in SECTIONS.items() for row in rows if row.outcome == REJECTED]
    return {f"{kind}: {row.name}": _image(row.make) for kind, row in rows if len(row.make()) <= MAX_BYTES}


def _tar(*members: bytes) -> bytes:
    return b"".join(members) + member("all/good.jpg", jpeg()) + bytes(1024)


def _sparse_pax() -> bytes:
    numbers = ",".join(map(str, range(60_000)))
    content = attributes(("GNU.sparse.map", numbers), ("GNU.sparse.size", "9"), ("GNU.sparse.numblocks", "30000"))
    return _tar(member("x", content, b"x"), member("all/sparse.jpg", b"x"))


def _xz_of_a_large_dictionary() -> bytes:
    """Returns the xz of a gibibyte of zeros that claims to need a dictionary of 1.5 GiB."""
    packer = lzma.LZMACompressor(preset=0)
    data = bytearray(packer.compress(header_block("all/zeros.jpg", b"0", 1 << 30)))
    for _ in range(1 << 6):
        data += packer.compress(bytes(1 << 24))
    data += packer.flush()
    # The header of the first block: its size, flags, the filter LZMA2 (0x21) with one byte of properties, a checksum.
    size = (data[12] + 1) * 4
    place = data.index(b"\x21\x01", 12) + 2
    data[place] = 37  # 3 << 29 bytes
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    return bytes(data)


def _zip(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


ZEROS = bytes(1 << 28)
ARCHIVES: dict[str, Maker] = {
    "sparse map of 1,000 blocks": _file("x.tar", lambda: _tar(sparse_member(1_000))),
    "sparse map of 600,000 blocks, gzip": _file("x.tar.gz", lambda: gzip.compress(_tar(sparse_member(600_000)), 6)),
    "sparse map in a PAX header": _file("x.tar", _sparse_pax),
    "global attributes, and members": _file(
        "x.tar.gz",
        lambda: gzip.compress(
            _tar(
                member("g", attributes(*((f"key{number}", "v") for number in range(20_000))), b"g"),
                *(header_block(f"all/{number}.jpg", b"0") for number in range(60_000)),
            )
        ),
    ),
    "global attributes before every member": _file(
        "x.tar.gz",
        lambda: gzip.compress(
            _tar(
                *itertools.chain(
                    *(
                        (
                            member("g", attributes((f"key{number}", "v" * 400)), b"g"),
                            header_block(f"all/{number}.jpg", b"0"),
                        )
                        for number in range(10_000)
                    )
                )
            )
        ),
    ),
    "a name of a megabyte": _file("x.tar", lambda: _tar(member("x", b"n" * (1 << 20), b"L"), header_block("x", b"0"))),
    "10,000 long names in a row": _file(
        "x.tar.gz", lambda: gzip.compress(_tar(*(member("x", b"n" * 30_000, b"L") for _ in range(10_000))))
    ),
    "a member that claims 2^60 bytes": _file("x.tar", lambda: header_block("all/a.jpg", b"0", 1 << 60) + bytes(1024)),
    "gzip of zeros": _file("x.tar.gz", lambda: gzip.compress(header_block("all/a.jpg", b"0", len(ZEROS)) + ZEROS)),
    "bzip2 of zeros": _file("x.tar.bz2", lambda: bz2.compress(header_block("all/a.jpg", b"0", len(ZEROS)) + ZEROS)),
    "xz with a dictionary of 1.5 GiB": _file("x.tar.xz", _xz_of_a_large_dictionary),
    "deflated zeros in zip": _file("x.zip", lambda: _zip(("all/a.jpg", ZEROS), ("all/good.jpg", jpeg()))),
    "10,000 empty members in zip": _file(
        "x.zip", lambda: _zip(*((f"all/{number}.jpg", b"") for number in range(10_000)), ("all/good.jpg", jpeg()))
    ),
    "sidecar of deep JSON": _file(
        "x.tar", lambda: _tar(member("a.jpg", jpeg()), member("a.json", b"[" * DEEP + b"]" * DEEP))
    ),
    "sidecar of a long number": _file(
        "x.tar", lambda: _tar(member("a.jpg", jpeg()), member("a.json", b'{"weight":%s}' % (b"9" * 900_000)))
    ),
}


def _table(name: str, text: Callable[[], str]) -> Maker:
    """A table whose first row is of a good image beside it."""

    def write(folder: Path) -> Path:
        (folder / "good.jpg").write_bytes(jpeg())
        (folder / name).write_text(text(), encoding="utf-8")
        return folder / name

    return write


def _parquet(rows: int, **columns: pa.Array) -> Maker:
    def write(folder: Path) -> Path:
        (folder / "good.jpg").write_bytes(jpeg())
        usual = {"image": same("good.jpg", rows), "label": same("all", rows)}
        pq.write_table(pa.table({**usual, **columns}), folder / "table.parquet", compression="zstd")
        return folder / "table.parquet"

    return write


def same(value: object, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


TABLES: dict[str, Maker] = {
    "4,096 rows of one label of 400 kB": _parquet(4096, label=same(LONG, 4096)),
    "4,096 rows of one path of 400 kB": _parquet(4096, image=same(LONG, 4096)),
    "100,000 rows of one label of 400 kB": _parquet(100_000, label=same(LONG, 100_000)),
    "a label that is a list of 4 million": _parquet(2, label=pa.array([["all"] * 4_000_000, ["all"]])),
    "a path of a megabyte in CSV": _table("t.csv", lambda: f"image,label\ngood.jpg,all\n{'x' * 1_000_000},all\n"),
    "a label of a megabyte in CSV": _table("t.csv", lambda: f"image,label\ngood.jpg,all\ngood.jpg,{'x' * 100_000}\n"),
    "100,000 columns": _table(
        "t.csv", lambda: ",".join(["image,label", *map(str, range(100_000))]) + "\ngood.jpg,all\n"
    ),
    "a quote that is not closed": _table("t.csv", lambda: 'image,label\ngood.jpg,all\n"' + "a.jpg,all\n" * 100_000),
    "NUL in CSV": _table("t.csv", lambda: "image,label\ngood.jpg,all\n\0.jpg,a\0ll\n"),
    "line feeds in names": _table(
        "t.jsonl",
        lambda: "\n".join(
            json.dumps({"image": name, "label": f"{name}\nimages  60 found", "key": f"\n{name}"})
            for name in ("good.jpg", "x\nimages  60 found, 60 written")
        ),
    ),
    "deep JSON in a line": _table("t.jsonl", lambda: '{"image":"good.jpg","label":' + "[" * DEEP + "]" * DEEP + "}"),
    "a number of a megabyte in JSON": _table("t.jsonl", lambda: '{"image":"good.jpg","label":' + "9" * 1_000_000 + "}"),
    "a key of a megabyte in JSON": _table(
        "t.jsonl", lambda: json.dumps({"image": "good.jpg", "label": "x" * 1_000_000})
    ),
}


def _coco(side: int, annotations: Callable[[], list[dict]], **more: object) -> Maker:
    """A COCO json of one large image and of what is said of it."""

    def write(folder: Path) -> Path:
        (folder / "a.png").write_bytes(make.bilevel_png(side))
        image = {"id": 1, "file_name": "a.png", "height": side, "width": side}
        values = {"images": [image], "annotations": annotations(), "categories": [{"id": 1, "name": "all"}], **more}
        (folder / "coco.json").write_text(json.dumps(values))
        return folder / "coco.json"

    return write


def _objects(count: int, segmentation: object) -> Callable[[], list[dict]]:
    usual = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 0, "segmentation": segmentation}
    return lambda: [{**usual, "id": number} for number in range(count)]


SIDE = 5000  # pixels; of one bit each the image is small
WHOLE = [[0, 0, SIDE, 0, SIDE, SIDE, 0, SIDE]]
ANNOTATIONS: dict[str, Maker] = {
    "100 masks of 25 megapixels": _coco(SIDE, _objects(100, WHOLE)),
    "10,000 masks of 25 megapixels": _coco(SIDE, _objects(10_000, WHOLE)),
    "100 run-length masks of 25 megapixels": _coco(SIDE, _objects(100, {"size": [SIDE] * 2, "counts": [0, SIDE**2]})),
    "a polygon of 100,000 points": _coco(SIDE, _objects(1, [[0, 0, SIDE, SIDE, SIDE, 0] * 33_000])),
    "runs that claim 2^62 pixels": _coco(SIDE, _objects(3, {"size": [1 << 31] * 2, "counts": [0, 1 << 62]})),
    "runs as text that never end": _coco(SIDE, _objects(3, {"size": [SIDE] * 2, "counts": "o" * 200_000})),
    "20,000 annotations of no image": _coco(
        60, lambda: [{"id": number, "image_id": -number, "category_id": 1} for number in range(1, 20_000)]
    ),
    "numbers that are none": _coco(
        60, lambda: [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1e999, -1e999, "9", None]}]
    ),
    "deep JSON": _file("coco.json", lambda: b'{"images":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "deep JSON in a mask": _file(
        "coco.json",
        lambda: (
            b'{"images":[{"id":1,"file_name":"a"}],"categories":[],"annotations":[' + b"[" * DEEP + b"]" * DEEP + b"]}"
        ),
    ),
}


def _record(**features: bytes | str) -> bytes:
    said = {
        name.replace("__", "/"): value.encode() if isinstance(value, str) else value for name, value in features.items()
    }
    return b"".join(tfrecord.frame(record.encode_example({name: ("bytes", [value]) for name, value in said.items()})))


def _records(*payloads: Callable[[], bytes]) -> bytes:
    return _record(image__encoded=jpeg(), image__class__text="all") + b"".join(payload() for payload in payloads)


def _hostile_image(data: Callable[[], bytes]) -> Maker:
    return _file("x.tfrecord", lambda: _records(lambda: _record(image__encoded=data(), image__class__text="all")))


RECORDS: dict[str, Maker] = {
    "a length of 2^62 bytes": _file("x.tfrecord", lambda: _records(lambda: struct.pack("<QI", 1 << 62, 0))),
    "payloads that are no Example": _file("x.tfrecord", lambda: b"".join(tfrecord.frame(b"\xff" * 99)) * 1000),
    "groups that never end": _file("x.tfrecord", lambda: _records(lambda: b"".join(tfrecord.frame(b"\x0b" * 900_000)))),
    "messages in messages": _file(
        "x.tfrecord", lambda: _records(lambda: b"".join(tfrecord.frame(b"\x0a\x7f" * 400_000)))
    ),
    "an Example of 20,000 features": _file(
        "x.tfrecord", lambda: _records(lambda: _record(**{f"f{number}": b"" for number in range(20_000)}))
    ),
    "a PNG that claims 900 Mpx": _hostile_image(lambda: forged_png(30_000)),
    "a PNG of 400 Mpx": _hostile_image(lambda: make.bilevel_png(20_000)),
    "a PNG of texts": _hostile_image(lambda: make.before_end(make.bilevel_png(60), make.ztxt(7_900_000) * 100)),
    "a JPEG of 500 scans": _hostile_image(lambda: make.many_scans(500, 512)),
    "zlib of zeros": _file("x.tfrecord", lambda: zlib.compress(ZEROS)),
    "gzip of lengths": _file("x.tfrecord.gz", lambda: gzip.compress(b"".join(tfrecord.frame(b"")) * 1_000_000)),
}

SOURCES: dict[str, dict[str, Maker]] = {
    "images": _images(),
    "archives": ARCHIVES,
    "tables": TABLES,
    "annotations": ANNOTATIONS,
    "records": RECORDS,
}

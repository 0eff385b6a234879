"""What a search starts from: small real files, and those of the tests that no honest program writes."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs.dataset import manifest, record, tfrecord
from beam_jobs.dataset import schemas as table_rows
from beam_jobs.images.process import examine
from beam_jobs.options import ImageLimits
from beam_jobs.types import ImageRecord, ImageRef, RecordObject
from tests.beam_jobs import make_archives
from tests.beam_jobs import make_hostile_images as make
from tests.beam_jobs.make_rows import examined_row
from tests.fuzz.drive import CORPUS
from tests.make_images import crop, encode

_SMALL = crop(0, 16, 16)


def images() -> Iterator[bytes]:
    """Yields one small file of each kind of image."""
    for kind, options in (
        ("JPEG", {"quality": 60}),
        ("JPEG", {"quality": 60, "progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {}),
    ):
        yield encode(_SMALL, kind, **options)
    yield encode(_SMALL[..., 0], "JPEG", quality=60)
    grey = _SMALL[..., 0].astype(np.uint16)
    yield make.raw_png(grey * 257, 16, 0)
    yield make.raw_png(np.dstack([_SMALL, grey]), 8, 6, interlaced=True)
    yield make.raw_png(grey >> 6, 2, 3, make.chunk(b"PLTE", bytes(range(12))) + make.chunk(b"tRNS", b"\x00"))
    yield make.before_pixels(encode(_SMALL, "PNG"), make.frames_chunk(2), make.ztxt(100), make.iccp(100))
    yield make.before_pixels(encode(_SMALL, "PNG"), make.chunk(b"eXIf", make.orientation_tag(6)))
    yield make.after_soi(encode(_SMALL, "JPEG"), make.segment(0xE1, b"Exif\x00\x00" + make.orientation_tag(5)))
    yield make.gif(frames=2, before=b"!\xfe\x01a\x00")


def records() -> Iterator[bytes]:
    """Yields a shard, payloads of records, and what is nearly one of them."""
    stored, facts = examine(encode(_SMALL, "JPEG", quality=50), ImageLimits())
    plain = ImageRecord(key="china/000.jpg", uri="000.jpg", encoded=stored, facts=facts, labels=((0, "china"),))
    mask = encode(np.zeros((16, 16), np.uint8), "PNG")
    thing = RecordObject(label=1, text="flower", bbox=(0.1, 0.2, 0.3, 0.4), crowd=False, area=2.0, mask=mask)
    full = ImageRecord(**{**vars(plain), "objects": (thing,), "mask": mask, "weight": 0.5, "extra": {"age": [1, 2]}})
    payloads = [record.encode(plain), record.encode(full), b""]
    yield from payloads
    yield b"".join(piece for payload in payloads for piece in tfrecord.frame(payload))


def tables() -> Iterator[bytes]:
    """Yields a table of each kind, small, with cells of every sort."""
    yield b'aimage,label\n0.jpg,cat\n"1,2.jpg",d\xc3\xb6g\nhttp://x/y.jpg,a|b\n'
    yield b"bimage,label,weight,mask,group,split,key,age\r\n0.jpg,cat,1e-3,m.png,g,train,k,007\r\n,,,,,,,\r\n"
    rows = [
        {
            "image": "table",
            "label": "cat",
            "weight": 1,
            "mask": "table",
            "group": None,
            "split": "",
            "key": 3,
            "age": 2,
        },
        {"image": "\ud800", "label": ["x"], "weight": "-1", "mask": {}, "age": [1, "x", 2.5]},
    ]
    yield b"c" + "\n".join(map(json.dumps, rows)).encode()
    many = [{"image": "table", "labels": ["b", "a"], "age": 2**70, "size": [1, 2]}, {"image": "x", "labels": "a|b"}]
    yield b"d" + "\n".join(map(json.dumps, many)).encode()
    yield b"e" + _parquet({"image": ["table", None], "label": ["cat", "dog"], "age": [1.5, float("nan")]})
    yield b"f" + _parquet({"image": ["table"], "labels": [["a", "b"]], "age": [True], "size": [[1, 2]]})
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["table" * 99]))
    yield b"e" + _parquet({"image": repeated, "label": repeated, "age": [1] * 40})
    yield b"g" + json.dumps(_masks()).encode()
    yield b"g" + json.dumps(
        {
            "images": [
                {"id": 1, "file_name": "table", "height": 60, "width": 80, "weight": 1, "age": 3},
                {"id": "x", "file_name": "gone.jpg"},
            ],
            "annotations": [
                {"id": 1, "image_id": 1, "category_id": 1, "bbox": [8, 10, 32, 41], "segmentation": [[1, 1, 9, 9]]},
                {"id": 2, "image_id": 1, "category_id": 1, "bbox": [0, 0, 80, 60], "iscrowd": 1, "area": 7,
                 "segmentation": {"size": [60, 80], "counts": [0, 4800]}},
                {"id": 3, "image_id": 9, "category_id": 1, "bbox": []},
            ],
            "categories": [{"id": 1, "name": "cat"}],
        }
    ).encode()  # fmt: skip


def _masks() -> dict[str, object]:
    """Returns COCO json of an image of 4 megapixels and of masks in every form."""
    forms = [
        [[0, 0, 2000, 0, 2000, 2000]],
        {"size": [2000, 2000], "counts": [0, 4_000_000]},
        {"size": [2000, 2000], "counts": "PPYo1"},
        {"size": [1 << 31, 1 << 31], "counts": [0, 1 << 62]},
        [[0, 0]], [], {}, {"size": [2000], "counts": None},
    ]  # fmt: skip
    usual = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 0}
    return {
        "images": [{"id": 1, "file_name": "table", "height": 2000, "width": 2000}],
        "annotations": [{**usual, "id": number, "segmentation": form} for number, form in enumerate(forms)],
        "categories": [{"id": 1, "name": "cat"}],
    }


def datasets() -> Iterator[bytes]:
    """Yields what a dataset says of itself, sound, deep, and with values that are none."""
    shard = manifest.Shard(name="data-00000-of-00001.tfrecord", records=1, bytes=99, sha256="e" * 64)
    sound = manifest.Manifest(
        source="photos",
        options={"seed": 0},
        options_digest="",
        label_kind="single",
        labels=("cat",),
        splits={"train": manifest.SplitInfo(shards=(shard,), classes={"cat": 1})},
        counts=manifest.ImageCounts(found=1, written=1),
        channels=None,
        producer={},
        images=(manifest.TablePart(name="part-train-00000.parquet", rows=1, bytes=9, sha256="e" * 64),),
        tables={},
    )
    text = manifest.serialise(sound.to_json())
    yield b"a" + text
    yield b"b" + text.replace(b'"records": 1', b'"records": "1"')
    for deep in (b"[" * 4000, b'{"format_version":' + b"[" * 4000, text[:-3] + b',"deep":' + b"[" * 4000):
        yield b"a" + deep
    facts = examine(encode(_SMALL, "JPEG", quality=50), ImageLimits())[1]
    row = examined_row(ImageRef(key="k", uri="u", label="cat"), facts)
    planned = {**row, "cluster": "", "near": "", "label_index": 0, "shard": 0, "offset": 0}
    table = pa.Table.from_pylist([planned] * 40, table_rows.IMAGES)
    for one in (table, table.slice(0, 1)):
        out = io.BytesIO()
        pq.write_table(one, out, write_statistics=False)
        yield b"c" + out.getvalue()


def archives() -> Iterator[bytes]:
    """Yields an archive of each kind and compression, of class folders and of samples with sidecars."""
    image = encode(_SMALL[:4, :4], "PNG")
    fields = {"label": "cat", "weight": 0.5, "group": "g", "split": "train", "key": "k", "age": 7}
    folders = {"cat/1.png": image, "dog/2.png": image, "dog/3.txt": b"no image"}
    samples = {"000.png": image, "000.cls": b"3", "000.json": json.dumps(fields).encode(), "000.txt": b"a cat"}
    odd = {"../1.png": image, "cat/1.png": image, "cat/./1.png": image, "/2.png": image, "long/" + "n" * 120: image}
    for pack in (bytes, gzip.compress, bz2.compress, lzma.compress):
        yield b"a" + pack(_tar(folders))
    yield b"a" + _tar(odd, tarfile.PAX_FORMAT)
    good = make_archives.member("cat/1.png", image) + bytes(1024)
    yield b"a" + make_archives.sparse_member(2) + good
    sparse = (("GNU.sparse.map", "0,1,2,3"), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.size", "9"))
    everywhere = (("path", "dog/2.png"), ("comment", "c" * 300), ("mtime", "1.5"))
    for kind, pairs in ((b"x", sparse), (b"g", everywhere), (b"x", (("size", "4"), ("path", "own/\n3.png")))):
        yield b"a" + make_archives.member("x", make_archives.attributes(*pairs), kind) + good
    yield b"a" + lzma.compress(make_archives.member("cat/zeros.png", bytes(1 << 20)) + good, preset=0)
    yield b"b" + _tar(samples, tarfile.GNU_FORMAT)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        yield b"c" + _zip(folders, method)
    yield b"c" + _zip(odd, zipfile.ZIP_DEFLATED)
    yield b"d" + _zip(samples, zipfile.ZIP_DEFLATED)


def examples() -> Iterator[bytes]:
    """Yields TFRecord files as others write them, and prepared datasets with their files in a row."""
    from tests.fuzz.examples import TFDS_FILES

    image = encode(_SMALL[:4, :4], "PNG")
    whole = {"weight": 0.5, "group": b"g", "split": b"train", "key": b"k", "age": 7}
    plain = _shard({"image": image, "label": b"cat"}, {"image": image, "label": b"dog"})
    for pack in (bytes, gzip.compress, zlib.compress):
        yield b"a" + pack(plain)
    yield b"a" + _shard({record.ENCODED: image, record.LABEL: 1, record.TEXT: b"cat"}, {"image": b""}, {})
    yield b"b" + _shard({"image": image, "label": 3, **whole})
    yield b"c" + _shard({"image": image, "labels": [b"a", b"b"], "age": [1.5, 2.5]})
    features = {"image": "Image", "label": "ClassLabel", "age": "Scalar"}
    described = {
        name: {"pythonClassName": f"tensorflow_datasets.core.features.{kind}"} for name, kind in features.items()
    }
    tree = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": described}}
    old = {"type": "x.FeaturesDict", "content": {name: {"type": f"x.{kind}"} for name, kind in features.items()}}
    shard = _shard({"image": image, "label": 0, "age": 7}, {"image": image, "label": -1, "age": 8})
    info = {"name": "mnist", "fileFormat": "tfrecord", "splits": [{"name": "train", "shardLengths": ["2"]}]}
    template = {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}
    for head, splits, kinds in ((b"e", {}, tree), (b"f", template, tree), (b"f", {}, old)):
        listed = {**info, "splits": [{**info["splits"][0], **splits}]}
        files = (json.dumps(listed).encode(), json.dumps(kinds).encode(), b"cat\ndog\n", shard)
        assert len(files) == len(TFDS_FILES)
        yield head + b"\0".join(files)


SEEDS = {
    "archives": archives,
    "datasets": datasets,
    "examples": examples,
    "headers": images,
    "images": images,
    "records": records,
    "tables": tables,
}


def _tar(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    written = out.getvalue().rstrip(b"\0")  # tarfile fills ten kilobytes
    return written + bytes(-len(written) % 512 + 1024)


def _zip(members: dict[str, bytes], method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def _shard(*rows: dict[str, object]) -> bytes:
    import tensorflow as tf

    def feature(value: object) -> tf.train.Feature:
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    shard = b""
    for row in rows:
        held = tf.train.Features(feature={name: feature(value) for name, value in row.items()})
        shard += b"".join(tfrecord.frame(tf.train.Example(features=held).SerializeToString(deterministic=True)))
    return shard


def _parquet(columns: dict[str, list]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="none", write_statistics=False)
    return out.getvalue()


def main() -> None:
    """Writes the seeds into the corpus of each target, named after their content."""
    for name, make_seeds in SEEDS.items():
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        for data in make_seeds():
            (CORPUS / name / f"seed-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)


if __name__ == "__main__":
    main()

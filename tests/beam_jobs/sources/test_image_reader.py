from __future__ import annotations

import gzip
import os
import zlib

import pytest

from beam_jobs import storage
from beam_jobs.dataset import record, tfrecord
from beam_jobs.errors import BadImage, SourceError, Unreadable
from beam_jobs.sources.image_reader import Reader, Slice, inflate, read_at
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import jpeg

DATA = bytes(range(256)) * 40


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def put(base: str, data: bytes, name: str = "box") -> None:
    storage.write_bytes(storage.join(base, name), data)


def text(method: str, offset: int, length: int, **fields) -> str:
    return Slice(**{"method": method, "offset": offset, "length": length, "path": "box", **fields}).text


def refusal(reader: Reader, slice_text: str, uri: str = "box") -> tuple[str, str]:
    with pytest.raises(BadImage) as caught:
        reader.read(uri, slice_text)
    return caught.value.reason.value, caught.value.detail


@pytest.mark.parametrize(("max_bytes", "read"), [(len(DATA), DATA), (99, DATA[:100])])
def test_a_file_is_read_up_to_one_byte_over_the_limit(place, max_bytes, read):
    put(place, DATA, "cat/a.jpg")
    assert Reader(base=place, max_bytes=max_bytes).read("cat/a.jpg") == read


def test_an_absolute_path_and_a_path_with_a_scheme_stand_for_themselves(tmp_path):
    put(str(tmp_path), DATA)
    reader = Reader(base="/nowhere", max_bytes=10**6)
    assert reader.read(f"{tmp_path}/box") == reader.read(f"{SCHEME}://{tmp_path}/box") == DATA
    assert reader.read("", text("stored", 0, 5, path=f"{tmp_path}/box")) == DATA[:5]


@pytest.mark.parametrize(("uri", "slice_text"), [("box", ""), ("x", text("stored", 0, 4))], ids=["file", "container"])
def test_a_file_that_is_not_there_is_unreadable(place, uri, slice_text):
    reason, detail = refusal(Reader(base=place, max_bytes=9), slice_text, uri)
    assert reason == "unreadable"
    assert "box" in detail or detail == "No such file or directory"


@pytest.mark.parametrize(("offset", "length", "read"), [(len(DATA) - 3, 3, DATA[-3:]), (5, 500, DATA[5:105])])
def test_a_stored_slice_is_a_run_of_bytes(place, offset, length, read):
    put(place, DATA)
    assert Reader(base=place, max_bytes=99).read("x", text("stored", offset, length)) == read


def test_a_container_that_ends_too_early_is_unreadable(place):
    put(place, DATA)
    reason, detail = refusal(Reader(base=place, max_bytes=10**6), text("stored", len(DATA) - 3, 4))
    assert reason == "unreadable"
    assert detail.endswith(f"it ends at byte {len(DATA)}; 4 bytes from byte {len(DATA) - 3} are needed")
    with pytest.raises(OSError, match="are needed"):
        read_at(storage.join(place, "box"), len(DATA) + 9, 1)


@pytest.mark.parametrize(("uri", "slice_text"), [("bad.jpg", ""), ("x", text("stored", 0, 4, path="bad.jpg"))])
def test_what_may_be_there_and_cannot_be_read_is_no_bad_image(tmp_path, uri, slice_text):
    (tmp_path / "bad.jpg").symlink_to("/proc/self/mem")  # no process can read its first byte
    with pytest.raises(Unreadable, match="^Input/output error$"):
        Reader(base=str(tmp_path), max_bytes=9).read(uri, slice_text)


def test_a_store_that_is_not_known_is_a_wrong_address():
    reason, detail = refusal(Reader(base="/nowhere", max_bytes=9), "", "nfs://host/a.jpg")
    assert (reason, detail.startswith("nfs:// is not a supported filesystem")) == ("unreadable", True)


@pytest.mark.parametrize(
    ("content", "limit"), [(os.urandom(3 << 20), 4 << 20), (bytes(50 << 20), 999)], ids=["noise", "bomb"]
)
def test_a_deflated_slice_of_any_size_is_unpacked_up_to_one_byte_over_the_limit(tmp_path, content, limit):
    packed = deflated(content)
    put(str(tmp_path), b"before" + packed + b"after")
    piece = text("deflate", 6, len(packed))
    assert Reader(base=str(tmp_path), max_bytes=limit).read("x", piece) == content[: limit + 1]


def test_inflating_stops_asking_for_more_at_the_limit():
    def blocks():
        yield deflated(bytes(5000))
        raise AssertionError("more was asked for")

    assert inflate(blocks(), 100) == bytes(100)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda packed: b"\xff" + packed[1:], "the compressed member is damaged: Error -3 while decompressing data"),
        (lambda packed: packed[: len(packed) // 2], "the compressed member is damaged: it ends after "),
    ],
)
def test_a_damaged_deflated_slice_is_a_bad_member(tmp_path, change, detail):
    packed = change(deflated(jpeg()))
    put(str(tmp_path), packed)
    reason, found = refusal(Reader(base=str(tmp_path), max_bytes=10**6), text("deflate", 0, len(packed)))
    assert reason == "bad_member"
    assert found.startswith(detail)


def example(**features) -> bytes:
    return record.encode_example(features)


def test_the_feature_of_an_example_is_read(place):
    payload = example(image=("bytes", [DATA]), other=("int64", [1]))
    head, body, tail = tfrecord.frame(payload)
    put(place, head + body + tail)
    piece = text("example", len(head), len(payload), feature="image")
    assert Reader(base=place, max_bytes=10**6).read("x", piece) == DATA
    assert Reader(base=place, max_bytes=9).read("x", piece) == DATA[:10]


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (example(other=("bytes", [b"x"])), "the feature 'image' of the record holds no bytes"),
        (example(image=("bytes", [])), "the feature 'image' of the record holds no bytes"),
        (example(image=("int64", [1, 2])), "the feature 'image' of the record holds no bytes"),
        (b"\xff\xff", "the record is not a tf.train.Example"),
    ],
)
def test_an_example_without_the_feature_is_a_bad_member(tmp_path, payload, detail):
    put(str(tmp_path), payload)
    piece = text("example", 0, len(payload), feature="image")
    assert refusal(Reader(base=str(tmp_path), max_bytes=10**6), piece) == ("bad_member", detail)


def test_a_spool_lies_in_the_work_directory(tmp_path):
    put(str(tmp_path / "source"), b"not this")
    put(str(tmp_path / "work"), b"but this")
    reader = Reader(base=str(tmp_path / "source"), max_bytes=99, work=str(tmp_path / "work"))
    assert reader.read("x", text("spool", 4, 4)) == b"this"


def test_offsets_in_a_compressed_container_are_those_of_what_it_unpacks_to(place):
    payload = example(image=("bytes", [b"pixels"]))
    put(place, gzip.compress(bytes(5000) + payload))
    reader, fields = Reader(base=place, max_bytes=10**6), {"compression": "gzip"}
    stored = text("stored", 5000, len(payload), **fields)
    feature = text("example", 5000, len(payload), feature="image", **fields)
    assert [reader.read("x", piece) for piece in (stored, feature, stored)] == [payload, b"pixels", payload]


def test_a_compressed_container_that_cannot_be_unpacked_stops_the_work(tmp_path):
    put(str(tmp_path), b"\x1f\x8b\x08 no more gzip than that")
    with pytest.raises(SourceError, match="box cannot be unpacked past byte 0 of its content: "):
        Reader(base=str(tmp_path), max_bytes=99).read("x", text("stored", 0, 4, compression="gzip"))


@pytest.mark.parametrize(
    ("base", "uri", "slice_text", "threads"),
    [
        ("/photos", "a.jpg", "", 3),
        ("/photos", "https://example.org/a.jpg", "", 32),
        ("gs://bucket/photos", "a.jpg", "", 32),
        ("/photos", "https://example.org/a.jpg", text("spool", 0, 9), 3),
        ("gs://bucket", "a.tar/1.jpg", text("stored", 512, 9), 32),
    ],
)
def test_more_threads_wait_for_servers_than_there_are_cores(base, uri, slice_text, threads):
    far = (uri, slice_text)
    near = ("b.jpg", "") if base == "/photos" else far
    assert Reader(base=base, max_bytes=10, work="/work").threads([near, far], 3) == threads

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.storage import decompress
from tests.beam_jobs.object_store import SCHEME
from tests.command import python

PACK = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zlib": zlib.compress}
DATA = os.urandom(3_000_000)


@pytest.fixture
def box(tmp_path) -> Path:
    """Where a compressed file is put, beside nothing else."""
    return tmp_path / "box"


def unpacked(path: object, compression: str, check_for_changes: bool = True) -> bytes:
    return Path(decompress.decompressed_path(str(path), compression, check_for_changes)).read_bytes()


@pytest.mark.parametrize(
    ("compression", "data"),
    [*(("gzip", DATA), ("bzip2", DATA), ("xz", DATA), ("zlib", DATA), ("gzip", b""))],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_a_plain_copy_holds_what_was_packed(box, compression, data):
    box.write_bytes(PACK[compression](data))
    assert unpacked(box, compression) == data


@pytest.mark.parametrize(("compression", "padding"), [("gzip", 0), ("bzip2", 0), ("xz", 0), ("xz", 4), ("xz", 65536)])
def test_streams_joined_into_one_file_are_unpacked_together(box, compression, padding):
    box.write_bytes(PACK[compression](b"one") + bytes(padding) + PACK[compression](b"two") + bytes(padding))
    assert unpacked(box, compression) == b"onetwo"


@pytest.mark.parametrize(("compression", "data"), [("gzip", b"data"), ("bzip2", b"data"), ("bzip2", b""), ("xz", b"")])
def test_packings_are_known_by_their_first_bytes(compression, data):
    assert decompress.detect_compression(PACK[compression](data)[:10]) == compression


@pytest.mark.parametrize("head", [b"", b"\x1f", b"BZh9.jpg\0\0", zlib.compress(b"x")])
def test_other_files_are_not_taken_for_packed(head):
    assert decompress.detect_compression(head[:10]) == ""


@pytest.mark.parametrize("level", [0, 9])
def test_zlib_streams_may_be_zlib_streams(level):
    assert decompress.is_zlib(zlib.compress(b"x", level))


@pytest.mark.parametrize("head", [b"", b"\x78\x9d", b"\xf8\x1c"])
def test_most_other_files_are_not_zlib_streams(head):
    assert not decompress.is_zlib(head)


def test_a_disk_or_a_store_that_fails_damages_no_container_and_is_asked_again(tmp_path):
    (tmp_path / "box").symlink_to("/proc/self/mem")  # no process can read its first byte
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            decompress.decompressed_path(str(tmp_path / "box"), "gzip")
    (tmp_path / "box").unlink()
    (tmp_path / "box").write_bytes(gzip.compress(b"data"))
    assert unpacked(tmp_path / "box", "gzip") == b"data"


def test_threads_share_one_copy(box):
    box.write_bytes(gzip.compress(DATA))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(decompress.decompressed_path, [str(box)] * 8, ["gzip"] * 8))
    assert len(found) == 1
    assert Path(found.pop()).read_bytes() == DATA


@pytest.mark.parametrize("check_for_changes", [True, False])
def test_a_compressed_file_that_changed_is_unpacked_again(box, check_for_changes):
    box.write_bytes(gzip.compress(b"one", mtime=0))
    assert unpacked(box, "gzip") == b"one"
    box.write_bytes(gzip.compress(b"two", mtime=0))
    os.utime(box, ns=(1, 2))
    assert unpacked(box, "gzip", check_for_changes) == b"two"


def test_a_remote_container_is_asked_whether_it_changed_only_when_that_is_wanted(tmp_path):
    (tmp_path / "box").write_bytes(gzip.compress(b"one", mtime=0))
    path = f"{SCHEME}://{tmp_path}/box"
    first = decompress.decompressed_path(path, "gzip", check_for_changes=False)
    assert Path(first).read_bytes() == b"one"
    (tmp_path / "box").write_bytes(gzip.compress(b"longer", mtime=0))
    assert decompress.decompressed_path(path, "gzip", check_for_changes=False) == first
    assert unpacked(path, "gzip") == b"longer"
    assert unpacked(path, "gzip", check_for_changes=False) == b"longer"


@pytest.mark.parametrize("compression", decompress.COMPRESSIONS)
def test_a_compressed_file_that_is_cut_short_is_refused_with_the_place(box, compression):
    box.write_bytes(PACK[compression](DATA)[:-500_000])
    with pytest.raises(SourceError, match=rf"^{box} cannot be unpacked past byte [12]\d{{6}} of its content: ."):
        decompress.decompressed_path(str(box), compression)


@pytest.mark.parametrize("compression", ["bzip2", "zlib"])
def test_a_damaged_file_is_refused_every_time(box, compression):
    packed = PACK[compression](DATA)
    box.write_bytes(packed[:2_000_000] + bytes(100) + packed[2_000_100:])
    for _ in range(2):
        with pytest.raises(SourceError, match=rf"^{box} cannot be unpacked past byte \d+ of its content: ."):
            decompress.decompressed_path(str(box), compression)


def test_a_compressed_file_that_was_refused_is_not_unpacked_again_for_each_image(box):
    good = gzip.compress(b"data")
    for content in (bytes(len(good)), good):  # the same size and time: the same file, as far as anyone looks
        box.write_bytes(content)
        os.utime(box, ns=(1, 2))
        with pytest.raises(SourceError, match="cannot be unpacked past byte 0"):
            decompress.decompressed_path(str(box), "gzip")


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_a_bomb_is_refused_before_it_fills_the_disk(box, compression):
    packed = PACK[compression](bytes(60 << 20))
    box.write_bytes(packed)
    message = f"^{box} unpacks to more than 1000 times its {len(packed)} bytes; it is refused as a decompression bomb"
    with pytest.raises(SourceError, match=message):
        decompress.decompressed_path(str(box), compression)


def with_dictionary(packed: bytes, size: int) -> bytes:
    """Returns an xz stream that asks for a dictionary of 2**size bytes; see "The .xz File Format", 3.1."""
    header = bytearray(packed[12 : 12 + 4 * (packed[12] + 1)])
    header[4] = 2 * (size - 12)
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4]))
    return packed[:12] + bytes(header) + packed[12 + len(header) :]


@pytest.mark.parametrize(("size", "message"), [(27, ""), (28, "it needs more than the 256 MiB of memory.*xz -9")])
def test_xz_takes_no_more_memory_than_its_limit(box, size, message):
    box.write_bytes(with_dictionary(lzma.compress(DATA), size))
    if not message:
        assert unpacked(box, "xz") == DATA
        return
    with pytest.raises(SourceError, match=rf"^{box} cannot be unpacked past byte 0 of its content: .*{message}"):
        decompress.decompressed_path(str(box), "xz")


def test_bytes_after_the_last_xz_stream_are_damage(box):
    box.write_bytes(lzma.compress(b"one") + b"more")
    with pytest.raises(SourceError, match="cannot be unpacked past byte 3 of its content"):
        decompress.decompressed_path(str(box), "xz")


def test_a_disk_without_room_is_named_with_the_way_out(box, tmp_path, monkeypatch):
    box.write_bytes(gzip.compress(b"data"))
    monkeypatch.setattr(decompress, "SPARE_BYTES", shutil.disk_usage(tmp_path).total)
    with pytest.raises(SourceError, match=r"MiB are free and \d+ MiB must stay free; set TMPDIR to a larger disk"):
        decompress.decompressed_path(str(box), "gzip")


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(box, tmp_path):
    box.write_bytes(gzip.compress(DATA))
    (tmp_path / "tmp").mkdir()
    code = (
        "import resource, signal, os\n"
        "from beam_jobs.storage import decompress\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n"
        "try:\n"
        f"    decompress.decompressed_path({str(box)!r}, 'gzip')\n"
        "except decompress.SourceError as error:\n"
        f"    print(error, [files for _, _, files in os.walk({str(tmp_path / 'tmp')!r}) if files])\n"
    )
    result = python(code, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert result.stdout.startswith(f"{box} is compressed and cannot be unpacked below {tmp_path}/tmp: File too large")
    assert result.stdout.endswith("or decompress it yourself []\n"), result.stderr


def test_copies_go_when_the_process_ends_but_not_when_one_it_forked_does(box, tmp_path):
    box.write_bytes(gzip.compress(b"data"))
    (tmp_path / "tmp").mkdir()
    code = (
        "import os, sys\n"
        "from beam_jobs.storage import decompress\n"
        f"copy = decompress.decompressed_path({str(box)!r}, 'gzip')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(open(copy).read())\n"
    )
    result = python(code, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert result.stdout == "data\n", result.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_stamp_is_size_and_time(box, tmp_path):
    box.write_bytes(b"12345")
    os.utime(box, ns=(1, 7_000_000_000))
    assert decompress.read_size_and_mtime(str(box)) == (5, 7_000_000_000)
    assert decompress.read_size_and_mtime(f"{SCHEME}://{box}") == (5, 0)  # this store lists no times
    with pytest.raises(OSError, match="none"):
        decompress.read_size_and_mtime(str(tmp_path / "none"))

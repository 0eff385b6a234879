"""Archives as nobody honest packs them. Whatever they claim, nothing is unpacked beside the dataset."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.beam_jobs.make_archives import add, make_tar, make_zip
from tests.faults.trials import Trial, Worker, worker
from tests.make_images import jpeg

_GOOD = {
    f"{label}/{number}.jpg": jpeg(number + 3 * (label == "dog"), 16, 24)
    for label in ("cat", "dog")
    for number in range(3)
}
_OUTSIDE = [
    *("../x.jpg", "../../../../../../../../tmp/x.jpg", "cat/../../x.jpg", "/x.jpg", "//x.jpg", "cat/..", ".."),
    *("/etc/cron.d/x.jpg", "x\\..\\..\\x.jpg", "C:\\x.jpg", "C:/x.jpg", "~/x.jpg", "cat/./../../x.jpg"),
    *("cat//../x.jpg",),
]
_PACKINGS = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
}
_STRETCH = 16 << 20  # zeros that a bomb repeats
_FLAT_MIB = 160  # what an image of `max_bytes` and its copies may take

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directory for one try, deep enough that a path that leads out would still be seen."""
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    return inner


def _ingest(ingests: Worker, source: Path, *arguments: object) -> Trial:
    return ingests.ingest(source, source.parent / "out", *arguments)


def _strays(root: Path, source: Path) -> set[str]:
    """Returns what lies below a directory and is neither the source nor the dataset."""
    own = (source, source.parent / "out")
    return {
        str(path) for path in root.rglob("*") if path.is_file() and not any(path.is_relative_to(one) for one in own)
    }


@pytest.mark.parametrize("form", [*_PACKINGS, "zip"])
def test_names_that_lead_out(fault, ingests: Worker, tmp_path: Path, place: Path, form: str):
    row = fault("archives", "members named with ../, absolutely or with a drive", "rejected; nothing is written there")
    files = {**dict.fromkeys(_OUTSIDE, jpeg(9)), **_GOOD}
    source = place / f"x.{form}"
    _pack(source, files, form)
    found = _ingest(ingests, source)
    strange = {name for name in found.images if ".." in name.split("/") or name.startswith("/")}
    found.judge(row, form, files, wrong=not found.images >= set(_GOOD) or bool(strange or _strays(tmp_path, source)))
    made = {path.name for path in (place / "out").iterdir()}
    row.tried(f"the dataset holds {made}", wrong=bool(made & {"x.jpg", "cat", "tmp", "etc", "~", "C:"}))


def test_links_and_devices(fault, ingests: Worker, tmp_path: Path, place: Path):
    row = fault(
        "archives", "links, devices, pipes and sparse files as members", "rejected by name; the targets are not read"
    )
    kinds = {
        "symlink": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        "symlink-up": {"type": tarfile.SYMTYPE, "linkname": "../../x"},
        "hard": {"type": tarfile.LNKTYPE, "linkname": "cat/1.jpg"},
        "hard-out": {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
        "char": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
        "block": {"type": tarfile.BLKTYPE, "devmajor": 8},
        "pipe": {"type": tarfile.FIFOTYPE},
        "sparse": {"type": tarfile.GNUTYPE_SPARSE},
        "unknown": {"type": b"Z"},
    }
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        source = place / f"{form}.tar"
        with tarfile.open(source, "w", format=form) as archive:
            for name, fields in kinds.items():
                add(archive, f"cat/{name}.jpg", **fields)
            for name, data in _GOOD.items():
                add(archive, name, data)
        found = ingests.ingest(source, place / f"out{form}")
        held = {name for name, reason in found.rejects.items() if reason == "bad_member"}
        names = {f"cat/{name}.jpg" for name in kinds} | set(_GOOD)
        whole = found.images == set(_GOOD) and len(held) >= len(kinds) - 2
        found.judge(row, f"tar of form {form}", names, wrong=not whole)
    source = place / "x.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for kind in (0o120777, 0o010644, 0o020644, 0o060644, 0o140644):
            info = zipfile.ZipInfo(f"cat/{kind:o}.jpg")
            info.create_system, info.external_attr = 3, kind << 16
            archive.writestr(info, "/etc/passwd")
        for name, data in _GOOD.items():
            archive.writestr(name, data)
    found = _ingest(ingests, source)
    found.judge(row, "zip", set(_GOOD), wrong=found.images != set(_GOOD) or len(found.rejects) != 5)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_members_that_come_twice(fault, ingests: Worker, place: Path, form: str):
    row = fault("archives", "several members with the same name", "the first is in the dataset, the others are rejects")
    source = place / f"x.{form}"
    files = [
        *_GOOD.items(),
        ("cat/1.jpg", jpeg(7)),
        ("./cat//1.jpg", jpeg(8)),
        ("cat/1.jpg", b"no image"),
        ("cat/1.JPG", jpeg(11)),
    ]
    if form == "tar":
        with tarfile.open(source, "w") as archive:
            for name, data in files:
                add(archive, name, data)
    else:
        with zipfile.ZipFile(source, "w") as archive:
            for name, data in files:
                archive.writestr(name, data)
    found = _ingest(ingests, source)
    counted = found.count("rejects.parquet") == 3 and set(found.rejects) == {"cat/1.jpg"}
    found.judge(row, form, set(_GOOD), wrong=not counted or found.images != {*_GOOD, "cat/1.JPG"})


@dataclass(frozen=True)
class _Bomb:
    """What it is, where it lies, what the one line about it must say, and the rejects if it is read in spite of it."""

    about: str
    path: Path
    says: str = ""
    rejects: dict[str, str] = field(default_factory=dict)


def _bombs(place: Path, full: bool) -> Iterator[_Bomb]:
    size = 1 << 30 if full else 128 << 20
    path = place / "deflated.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_good(archive)
        with archive.open("cat/zeros.jpg", "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
    yield _Bomb("a zip member of zeros", path, rejects={"cat/zeros.jpg": "too_many_bytes"})
    for form in _COMPRESS:
        path = _tar_of_zeros(place / f"bare.{form}", size, 0)
        yield _Bomb(f"zeros in a {form}", path, "bytes; it is refused as a decompression bomb")
        # With noise beside them, the zeros are not what the ratio of the whole tells.
        path = _tar_of_zeros(place / f"zeros.{form}", size, size // 500)
        rejects = {"cat/zeros.jpg": "too_many_bytes", "cat/noise.jpg": "not_an_image"}
        yield _Bomb(f"zeros, noise and images in a {form}", path, rejects=rejects)
    count = 20_000 if full else 2000
    rejects = {f"cat/{number:07d}.jpg": "bad_member" if number else "not_an_image" for number in range(count)}
    yield _Bomb("overlapping zip members", _overlapping(place / "overlap.zip", count), rejects=rejects)
    yield _Bomb("a tar that claims 8 EB", _forged_tar(place / "claims.tar"), "claims.tar")
    yield _Bomb("a zip directory of 60 GB", _forged_zip(place / "directory.zip"), "directory.zip")
    data = make_zip(place / "n0.zip", _GOOD).read_bytes()
    for depth in range(1, 12):
        data = make_zip(
            place / "inner.zip", {f"cat/inner{depth}.jpg": data, f"cat/inner{depth}.zip": data, **_GOOD}
        ).read_bytes()
    (place / "nested.zip").write_bytes(data)
    yield _Bomb("archives in archives", place / "nested.zip", rejects={"cat/inner11.jpg": "not_an_image"})
    layers = make_tar(place / "l.tar", _GOOD).read_bytes()
    for _ in range(9):
        layers = gzip.compress(layers)
    (place / "layers.tar.gz").write_bytes(layers)
    yield _Bomb("gzip in gzip", place / "layers.tar.gz", "layers.tar.gz")


def _tar_of_zeros(path: Path, size: int, noise: int) -> Path:
    """Writes a whole tar: a member of zeros and, if there is noise, that member and good images on both sides."""
    compress = _COMPRESS[path.name.partition(".")[2]]
    good = [_member(name, data) for name, data in _GOOD.items()] if noise else []
    with path.open("wb") as stream:  # each of the three may be streams one after the other
        stream.write(compress(b"".join([*good[:3], _header("cat/zeros.jpg", size)])))
        zeros = compress(bytes(_STRETCH))
        for _ in range(size // _STRETCH):
            stream.write(zeros)
        if noise:
            stream.write(compress(_member("cat/noise.jpg", random.Random(1).randbytes(noise))))
        stream.write(compress(b"".join([*good[3:], bytes(2 * tarfile.BLOCKSIZE)])))
    return path


def _member(name: str, data: bytes) -> bytes:
    return _header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _write_good(archive: zipfile.ZipFile) -> None:
    for name, data in _GOOD.items():
        archive.writestr(name, data)


def _header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


def _forged_tar(path: Path) -> Path:
    path.write_bytes(_header("cat/x.jpg", (1 << 63) - 1) + bytes(1024))
    return path


def _forged_zip(path: Path) -> Path:
    size = 60 << 30
    with path.open("wb") as stream:
        stream.truncate(size)  # takes no room
        stream.seek(size)
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 9, 9, size, 0))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, size, 1))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    return path


def _overlapping(path: Path, count: int) -> Path:
    """Writes a zip whose members are all the bytes of one: 50 MB of zeros each."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_good(archive)
        archive.writestr("cat/0000000.jpg", bytes(50 << 20))
    data = out.getvalue()
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    last = data.rindex(b"PK\1\2")
    entry = bytearray(data[last:end])
    copies = b"".join(bytes(entry[:46]) + f"cat/{number:07d}.jpg".encode() for number in range(1, count))
    held = data[start:end] + copies
    total = min(len(_GOOD) + count, 0xFFFF)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, total, total, len(held), start, 0)
    path.write_bytes(data[:start] + held + tail)
    return path


def test_bombs(fault, place: Path, short: bool, monkeypatch):
    row = fault(
        "archives", "bombs: of bytes, of members, of nested archives", "rejected, or one line; memory does not grow"
    )
    spare = place / "spare"
    spare.mkdir()
    monkeypatch.setenv("TMPDIR", str(spare))
    with worker() as ingests:  # one of its own: the heap of one that has done much would hide what a bomb takes
        _ingest(ingests, make_tar(place / "warm.tar.gz", _GOOD, "w:gz"))
        for bomb in _bombs(place, not short):
            out = place / f"out-{bomb.path.name}"
            held = _bytes_below(spare)
            found = ingests.ingest(bomb.path, out, timeout=300)
            bomb.path.unlink()
            right = bool(bomb.says) or (found.images, found.rejects) == (set(_GOOD), bomb.rejects)
            found.judge(row, bomb.about, code=2 if bomb.says else 0, says=bomb.says, wrong=not right)
            grown = f"{bomb.about} took {found.grown_mib:.0f} MiB"
            row.tried(grown, wrong=found.grown_mib > _FLAT_MIB)
            left = _bytes_below(out) + (_bytes_below(spare) - held if bomb.says else 0)
            row.tried(f"{bomb.about} left {left} bytes", wrong=left > 8 << 20)
    shutil.rmtree(spare)


def _bytes_below(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


def test_very_many_members(fault, ingests: Worker, place: Path, tries):
    count = tries(200_000, 10_000)
    row = fault("archives", "200,000 members that are not images", "each is a reject; the images are in the dataset")
    for form in ("tar.gz", "zip"):
        source = place / f"x.{form}"
        bad = {
            f"cat/{number}.jpg": b"no image" * (number % 2) for number in range(3, count)
        }  # every other one is empty
        _pack(source, {**bad, **_GOOD}, form)
        found = ingests.ingest(source, place / f"out-{form}", timeout=500)
        counted = found.count("rejects.parquet") == count - 3
        found.judge(row, form, set(_GOOD), wrong=found.images != set(_GOOD) or not counted)


def test_encrypted(fault, ingests: Worker, place: Path):
    row = fault("archives", "encrypted zip members", "a reject with the name; if all members are encrypted, one line")
    for about, chosen in (("all", 6), ("some", 2)):
        source = make_zip(place / f"{about}.zip", _GOOD)
        data = bytearray(source.read_bytes())
        for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            start = -1
            for _ in range(chosen):
                start = data.index(mark, start + 1)
                data[start + flags] |= 1
        source.write_bytes(data)
        found = ingests.ingest(source, place / f"out-{about}")
        told = chosen == 6 or (len(found.rejects) == 2 and len(found.images) == 4)
        code = 2 if chosen == 6 else 0
        found.judge(row, about, () if code else set(_GOOD), code=code, says="it is encrypted", wrong=not told)


@pytest.mark.parametrize("form", [*_PACKINGS, "zip"])
def test_cut_anywhere(fault, ingests: Worker, place: Path, tries, form: str):
    row = fault("archives", "tar, gzip, bzip2, xz and zip archives truncated anywhere", "one line with the position")
    whole = place / f"x.{form}"
    _pack(whole, _GOOD, form)
    data = whole.read_bytes()
    chance = random.Random(form)
    last = len(data) - 1 if form != "tar" else len(data.rstrip(b"\0")) + 300  # tar pads its end mark with zeros
    places = sorted({0, 1, last, *(chance.randrange(last) for _ in range(tries(30, 3)))})
    for length in places:
        whole.write_bytes(data[:length])
        found = _ingest(ingests, whole)
        found.judge(row, f"{form} cut at {length} of {len(data)}", code=2, says=whole.name)


@pytest.mark.parametrize("form", [*_PACKINGS, "zip"])
def test_flipped_anywhere(fault, ingests: Worker, place: Path, tries, form: str):
    row = fault("archives", "archives with a flipped byte", "a reject, one line, or an image under another name")
    source = place / f"x.{form}"
    _pack(source, _GOOD, form)
    data = source.read_bytes()
    chance = random.Random(form)
    for number in range(tries(30, 3)):
        spot = chance.randrange(len(data))
        source.write_bytes(data[:spot] + bytes([data[spot] ^ 1 << chance.randrange(8)]) + data[spot + 1 :])
        found = ingests.ingest(source, place / f"out{number}")
        total = found.count("images") + found.count("rejects.parquet")
        short = found.code == 0 and total < len(_GOOD)
        found.judge(row, f"{form}, byte {spot}", code=(0, 2, 3), says=source.name, wrong=short)


def _pack(path: Path, files: dict[str, bytes], form: str) -> None:
    if form == "zip":
        make_zip(path, files)
    else:
        make_tar(path, files, _PACKINGS[form])

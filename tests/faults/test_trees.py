"""File trees that no camera makes: what must not be opened, what is gone a moment later, and names of every kind."""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import python
from tests.faults.process import ROOT
from tests.faults.trials import Worker
from tests.make_images import jpeg

_GOOD = {f"{label}/{number}.jpg" for label in ("cat", "dog") for number in range(3)}
_NAMES = [
    *("one,two", 'q"uote', "ap'ostrophe", "new\nline", "car\rriage", "tab\there", "esc\x1b[31mape", "st*r", "wh?t"),
    *("[ab]", "{a,b}", "{000..012}", "{SPAN}", "back\\slash", "-dash", "--out", "per%cent", "per%2e%2e%2fcent"),
    *("$HOME", "`id`", "a;b", "a|b", "a<b>", "#hash", "~", "x..", " blank ", "con", "nul.jpg.exe", "\u202etxt"),
    *("\ufeffmark", "\U0001f408", "ß" * 127, "n" * 255, "s3:"),
]


pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Six good images in two classes."""
    return _plant(tmp_path / "tree", _GOOD)


def _plant(root: Path, names: set[str]) -> Path:
    for number, name in enumerate(sorted(names)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 16, 24))
    return root


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket may not be long
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: Path) -> None:
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which has no end
    else:
        path.symlink_to("/dev/zero")


_SPECIAL: dict[str, Callable[[Path], None]] = {"pipe": _pipe, "socket": _socket, "device": _device}


@pytest.mark.parametrize("kind", _SPECIAL)
def test_what_never_answers_is_not_opened(fault, ingests: Worker, tree: Path, tmp_path: Path, kind: str):
    row = fault("trees", "pipes, sockets and devices, as images and as the source", "rejected unopened, or one line")
    _SPECIAL[kind](tree / "cat" / "x.jpg")
    found = ingests.ingest(tree, tmp_path / "folder")
    found.judge(row, f"{kind} in a folder", {*_GOOD, "cat/x.jpg"}, wrong=found.images != _GOOD)
    found = ingests.ingest(f"{tree}/*/*.jpg", tmp_path / "glob")
    found.judge(row, f"{kind} in a glob", {*_GOOD, "cat/x.jpg"}, wrong=found.images != _GOOD)

    table = tree / "table.csv"
    table.write_text("image,label,mask\ncat/x.jpg,cat,cat/1.jpg\ncat/1.jpg,cat,cat/x.jpg\ncat/2.jpg,cat,cat/2.jpg\n")
    found = ingests.ingest(table, tmp_path / "table", "--mask-column", "mask")
    # The third is there, but a JPEG is no mask; where no image is left there is no dataset.
    rejects = {"cat/x.jpg": "not_a_file", "cat/1.jpg": "not_a_file", "cat/2.jpg": "bad_mask"}
    found.judge(row, f"{kind} in a table", rejects, code=3, says="not_a_file", wrong=found.rejects != rejects)

    for suffix in ("", ".csv", ".jsonl", ".parquet", ".json", ".tar", ".tar.gz", ".zip", ".tfrecord"):
        source = tmp_path / f"x{suffix}"
        _SPECIAL[kind](source)
        forms = ["auto", "tfds", "folder"] if not suffix else ["auto", _KINDS[suffix]]
        for form in forms:
            found = ingests.ingest(source, tmp_path / "source", "--source-kind", form)
            found.judge(row, f"{kind} as a source of {suffix or 'nothing'}, {form}", code=2, says=str(source))


_KINDS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".json": "coco",
    ".tar": "tar",
    ".tar.gz": "tar",
    ".zip": "zip",
    ".tfrecord": "tfrecord",
}


def test_links(fault, ingests: Worker, tree: Path, tmp_path: Path):
    row = fault("trees", "links that loop, dangle or point outside the source", "followed once, rejected, or one line")
    outside = _plant(tmp_path / "outside", {"secret/s.jpg"})
    links = {
        "cat/loop.jpg": "loop.jpg",
        "cat/two.jpg": "three.jpg",
        "cat/three.jpg": "two.jpg",
        "cat/gone.jpg": "nothing",
        "cat/out.jpg": str(outside / "secret" / "s.jpg"),
        "cat/up.jpg": "../../outside/secret/s.jpg",
        "cat/proc.jpg": "/proc/self/environ",
        "loop": "loop",
        "gone": "nothing",
    }
    for name, target in links.items():
        (tree / name).symlink_to(target)
    for name, target in {"cat/inner": "../dog", "dog/self": ".", "dog/root": ".."}.items():
        (tree / name).symlink_to(target)
    found = ingests.ingest(tree, tmp_path / "one")
    reasons = {"cat/out.jpg": "outside_root", "cat/up.jpg": "outside_root", "cat/proc.jpg": "outside_root"}
    ways = {name.rpartition("/")[2] for name in found.images}
    judged = {name: found.rejects.get(name) for name in reasons}
    # The images of `dog` may be met by the link first; each is in once.
    found.judge(
        row, "files", links, wrong=len(found.images) != 6 or judged != reasons or ways != {"0.jpg", "1.jpg", "2.jpg"}
    )
    for name in ("cat/far", "far"):
        (tree / name).symlink_to(outside)
        found = ingests.ingest(tree, tmp_path / "two")
        found.judge(row, f"a folder {name} that leads out", code=2, says="points outside the source")
        (tree / name).unlink()


def test_what_nobody_may_read(fault, ingests: Worker, tree: Path, tmp_path: Path):
    row = fault(
        "trees",
        "files and directories without read permission",
        "one line that names them; with `--unreadable reject`, rejected",
    )
    hidden = tree / "cat" / "1.jpg"
    hidden.chmod(0)
    found = ingests.ingest(tree, tmp_path / "file")
    found.judge(row, "a file", code=1, says="cat/1.jpg (Permission denied)")
    found = ingests.ingest(tree, tmp_path / "file", "--unreadable", "reject")
    found.judge(row, "a file to reject", _GOOD, wrong=found.rejects != {"cat/1.jpg": "unreadable"})
    hidden.chmod(0o644)
    found = ingests.ingest(tree, tmp_path / "file", "--retry-rejects")
    found.judge(row, "a file that may be read again", _GOOD, wrong=found.images != _GOOD)
    deep = _plant(tree, {"cat/deep/er/x.jpg"}) / "cat" / "deep"
    for mode in (0, 0o444, 0o111):
        for directory in (deep, tree / "dog", tree):
            directory.chmod(mode)
            found = ingests.ingest(tree, tmp_path / "directory")
            directory.chmod(0o755)
            if mode == 0o444 and directory.name == "dog":  # files that can be listed, and nothing more
                code, says = 1, "dog/2.jpg (Permission denied)"
                right = all(f"dog/{number}.jpg" in found.error for number in range(3))
            else:
                code, says = 2, "cannot be read: Permission denied"
                right = str(directory) in found.error
            found.judge(row, f"{directory.name} of mode {mode:o}", code=code, says=says, wrong=not right)
            shutil.rmtree(tmp_path / "directory", ignore_errors=True)
    for suffix in (".csv", ".jsonl", ".parquet", ".json", ".tar", ".zip", ".tfrecord"):
        source = tmp_path / f"x{suffix}"
        source.write_bytes(b"secret")
        source.chmod(0)
        found = ingests.ingest(source, tmp_path / "source")
        found.judge(row, f"a source of {suffix}", code=2, says="Permission denied")


# What happens to an image, and what must come of it when it happens before it is examined and before it is written.
_CHANGES = {
    "rm {image}": ("unreadable", 3),
    "rm {image} && mkfifo {image}": ("unreadable", 3),
    "rm {image} && mkdir {image}": ("unreadable", 3),
    "rm {image} && ln -s {image} {image}": ("unreadable", 3),
    ": > {image}": ("empty_file", 3),
    "truncate -s 100 {image}": ("bad_header", 3),
    "truncate -s 60M {image}": ("too_many_bytes", 3),
    "cp {other} {image}": ("", 3),
    "printf x >> {image}": ("", 3),
    "touch {image}": ("", 0),
    "rm -r {folder}": ("unreadable", 3),
    "mv {folder} {folder}.away": ("unreadable", 3),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_images_that_change_between_the_passes(fault, ingests: Worker, tree: Path, tmp_path: Path, change: str):
    row = fault("trees", "images that vanish, grow or turn into a pipe between the passes", "a reject, or one line")
    reason, code = _CHANGES[change]
    paths = {"image": tree / "cat" / "1.jpg", "other": tree / "dog" / "1.jpg", "folder": tree / "cat"}
    shutil.copytree(tree, tmp_path / "kept")
    command = change.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})
    found = ingests.ingest(tree, tmp_path / "examine", between=(1, command))
    kept = found.rejects.get("cat/1.jpg", "") == reason
    found.judge(row, f"{change}, before it is examined", _GOOD, wrong=not kept)
    shutil.rmtree(tree)
    shutil.copytree(tmp_path / "kept", tree)
    found = ingests.ingest(tree, tmp_path / "write", between=(2, command))
    found.judge(row, f"{change}, before it is written", code=code, says="changed while it was being ingested")


@pytest.mark.parametrize("job", [1, 2])
def test_images_that_lose_their_permission_between_the_passes(fault, ingests, tree, tmp_path, job):
    row = fault(
        "trees", "images that lose their permission between the passes", "one line; with it, the next run reads them"
    )
    image = tree / "cat" / "1.jpg"
    found = ingests.ingest(tree, tmp_path / "out", between=(job, f"chmod 0 {shlex.quote(str(image))}"))
    found.judge(row, f"before job {job}", code=1, says="cat/1.jpg (Permission denied)")
    image.chmod(0o644)
    found = ingests.ingest(tree, tmp_path / "out")
    found.judge(row, f"granted after job {job}", _GOOD, wrong=found.images != _GOOD)


def test_a_tree_that_changes_all_the_time(fault, ingests: Worker, tree: Path, tmp_path: Path, tries):
    row = fault("trees", "paths that appear or vanish during the listing", "the other files are written, or one line")
    work = (
        "import os, shutil, sys\n"
        "root = sys.argv[1]\n"
        "data = open(f'{root}/cat/0.jpg', 'rb').read()\n"
        "while os.path.isdir(root):\n"
        "    os.makedirs(f'{root}/wild/deep', exist_ok=True)\n"
        "    for n in range(50):\n"
        "        open(f'{root}/wild/{n}.jpg', 'wb').write(data[: n * 20])\n"
        "        open(f'{root}/wild/deep/{n}.jpg', 'wb').write(data)\n"
        "    os.rename(f'{root}/wild/deep', f'{root}/wild/deeper')\n"
        "    shutil.rmtree(f'{root}/wild')\n"
    )
    with subprocess.Popen([sys.executable, "-c", work, str(tree)], stderr=subprocess.DEVNULL) as restless:
        try:
            for number in range(tries(25, 3)):
                found = ingests.ingest(tree, tmp_path / f"out{number}")
                found.judge(row, f"try {number}", _GOOD if found.code == 0 else (), code=(0, 2, 3), says="wild")
        finally:
            restless.kill()


def test_twins(fault, ingests: Worker, tmp_path: Path):
    row = fault("trees", "names that differ only in case or in Unicode form", "each is a separate image")
    names = {"cat/a.jpg", "cat/A.jpg", "cat/a.JPG", "Cat/a.jpg"}
    names |= {f"{unicodedata.normalize(form, 'käfer')}/é{form}.jpg" for form in ("NFC", "NFD")}
    names |= {f"cat/{unicodedata.normalize(form, 'é')}.jpg" for form in ("NFC", "NFD")}
    tree = _plant(tmp_path / "tree", names)
    found = ingests.ingest(tree, tmp_path / "out")
    found.judge(row, "a tree of twins", names, wrong=found.images != names)


def test_names(fault, ingests: Worker, tmp_path: Path):
    row = fault(
        "trees",
        "names with line ends, quotes, commas or wildcards, of 255 bytes, or not in UTF-8",
        "unchanged in the dataset, or rejected",
    )
    files = {f"cat/{name}" for name in _NAMES} | {f"{name}/1.jpg" for name in _NAMES}
    tree = _plant(tmp_path / "tree", files)
    for place in (b"cat/\xff.jpg", b"\xff/1.jpg", b"cat/\xed\xa0\x80.jpg"):
        path = os.fsencode(tree) + b"/" + place
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(jpeg(1, 16, 24))
    found = ingests.ingest(tree, tmp_path / "out")
    rejected = {"cat/\\xff.jpg", "\\xff/1.jpg", "cat/\\xed\\xa0\\x80.jpg"}
    found.judge(row, "names in a tree", files | rejected, wrong=found.images != files or set(found.rejects) != rejected)
    made = set(os.listdir(tmp_path / "out"))
    row.tried(f"what lies in the dataset: {made}", wrong=any(name.startswith(("cat", "..")) for name in made))

    table = tree / "names.csv"
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label"])
        writer.writerows([name, f"../../{name}/.."] for name in sorted(files))
    found = ingests.ingest(table, tmp_path / "table")
    stripped = {name.strip() for name in files}
    found.judge(
        row,
        "names and labels in a table",
        stripped,
        wrong=not found.images >= stripped - {"cat/ blank", "blank /1.jpg"},
    )


def test_names_of_the_source(fault, ingests: Worker, tree: Path, tmp_path: Path, tries):
    row = fault("trees", "a source with such a name", "read like any other source, or one line")
    names: list[str] = [*_NAMES, os.fsdecode(b"\xff")]
    for name in names[:: tries(1, 6)]:
        source = tmp_path / name
        shutil.copytree(tree, source)
        (source / "table.csv").write_text("image,label\ncat/1.jpg,cat\ndog/1.jpg,dog\n")
        found = ingests.ingest(f"{tmp_path}/./{name}", tmp_path / "out" / "folder")
        # {SPAN} in the name of a source stands for its newest number, and none is there.
        code = 2 if name == "{SPAN}" else 0
        whole = code or found.images == _GOOD
        found.judge(row, f"a folder {name!r}", () if code else _GOOD, code=code, says="{SPAN}", wrong=not whole)
        found = ingests.ingest(f"{tmp_path}/./{name}/table.csv", tmp_path / "out" / "table")
        listed = {"cat/1.jpg", "dog/1.jpg"}
        found.judge(row, f"a table in {name!r}", () if code else listed, code=code, says="{SPAN}")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(source)


def test_very_many_files(fault, ingests: Worker, tmp_path: Path, tries):
    count = tries(200_000, 20_000)
    row = fault("trees", "200,000 files in one directory", "all written or rejected; listing takes under 2 kB a file")
    tree = _plant(tmp_path / "tree", {f"cat/{number}.jpg" for number in range(10)})
    for number in range(1, 10):  # one in ten is an image, for the sake of time
        (tree / "cat" / f"{number}.jpg").write_bytes(b"")
    for number in range(10, count):
        os.link(tree / "cat" / f"{number % 10}.jpg", tree / "cat" / f"{number}.jpg")
    listing = (
        "import resource, sys\n"
        "from beam_jobs.sources.class_folders import ClassFolders\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "found = sum(1 for _ in ClassFolders(sys.argv[1]).entries())\n"
        "print(found, (peak() - before) * 1024)\n"
    )
    listed, taken = map(int, python(listing, tree, cwd=ROOT, check=True, timeout=850).stdout.split())
    row.tried(f"listing took {taken} bytes", lost=listed != count, wrong=taken > 2000 * count + (16 << 20))
    found = ingests.ingest(tree, tmp_path / "out", timeout=580)
    images, rejects = found.images, found.rejects
    found.judge(row, "the ingest", wrong=len(images) != count / 10 or set(rejects.values()) != {"empty_file"})
    row.tried("every file", lost=len(images) + len(rejects) != count)

"""Sources whose labels, keys, members and files are named so as to do harm."""

from __future__ import annotations

import json
import os
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from beam_jobs.dataset import record, tfrecord
from tests.beam_jobs.make_archives import add
from tests.browser.markup import NAMES as MARKUP
from tests.make_images import jpeg

ESCAPED = "escaped"  # part of every name that a file must not get
PATHS = (
    *(f"../{ESCAPED}", f"../../../{ESCAPED}", f"a/../../{ESCAPED}", f"/{ESCAPED}", f"~/{ESCAPED}", f"..\\{ESCAPED}"),
    *(f"C:\\{ESCAPED}", f"%2e%2e%2f{ESCAPED}", f"....//{ESCAPED}", f"file:///{ESCAPED}", f"\\\\host\\{ESCAPED}"),
    *(f"$(touch {ESCAPED})", f"`touch {ESCAPED}`", f"; touch {ESCAPED};", f"| touch {ESCAPED}", f"--out={ESCAPED}"),
    *(f"{{SPAN}}{ESCAPED}", f"*{ESCAPED}", f"-rf {ESCAPED}", "con", "Split-train", "dataset.json", "_work", "x" * 200),
)
SHOUT = "PWNED"  # behind every control
CONTROLS = (
    *(f"\x1b]0;{SHOUT}\x07", f"\x1b[2J\x1b[H{SHOUT}", f"\x1b]8;;http://evil.invalid\x07{SHOUT}", f"\x1bP{SHOUT}\x1b\\"),
    *(f"\x9b31m{SHOUT}", f"\x9d0;{SHOUT}\x9c", f"sound\r{SHOUT}", f"sound\n{SHOUT}", f"\x08\x08\x08{SHOUT}\x7f"),
    *(f"\u202e{SHOUT}", f"\u2066{SHOUT}", f"\u2028{SHOUT}", f"\x0b\x0c{SHOUT}", f"\x00{SHOUT}"),
)
NAMES = (*PATHS, *CONTROLS, *MARKUP)

_BAD = "bad "  # before the name of a file that is no image


def _in_table(folder: Path, names: tuple[str, ...]) -> tuple[Path, set[str]]:
    """A table of JSON lines, the names in every column."""
    folder.mkdir()
    with open(folder / "table.jsonl", "w", encoding="utf-8") as rows:
        for place, name in enumerate(names):
            (folder / f"{place}.jpg").write_bytes(jpeg(place))
            row = {"image": f"{place}.jpg", "label": name, "key": name, "group": name, "note": name, "split": name}
            rows.write(f"{json.dumps(row)}\n{json.dumps({**row, 'key': _BAD + name, 'image': f'{name}.png'})}\n")
    return folder / "table.jsonl", {key.strip() for name in names for key in (name, _BAD + name)}


def _in_folders(folder: Path, names: tuple[str, ...]) -> tuple[Path, set[str]]:
    """Class folders and files of these names, as far as a file system lets them be."""
    keys = set()
    for place, name in enumerate(name.replace("/", "|") for name in names if "\0" not in name):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.jpg").write_bytes(jpeg(place))
        (folder / name / f"{_BAD}{name}.jpg").write_bytes(b"no image")
        if not name.startswith("."):  # hidden ones are not looked at
            keys |= {f"{name}/{name}.jpg", f"{name}/{_BAD}{name}.jpg"}
    return folder, keys


def _in_tar(folder: Path, names: tuple[str, ...]) -> tuple[Path, set[str]]:
    """Members of these names, and links to places outside."""
    folder.mkdir()
    names = tuple(name for name in names if "\0" not in name)
    with tarfile.open(folder / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for place, name in enumerate(names):
            add(archive, f"{name}/a.jpg", jpeg(place))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            add(archive, f"link/{kind.decode()}.jpg", type=kind, linkname=f"../../{ESCAPED}")
    return folder / "x.tar", {*_members(names), "link/1.jpg", "link/2.jpg"}


def _in_zip(folder: Path, names: tuple[str, ...]) -> tuple[Path, set[str]]:
    """Members of these names."""
    folder.mkdir()
    names = tuple(name for name in names if "\0" not in name)
    with zipfile.ZipFile(folder / "x.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, name in enumerate(names):
            archive.writestr(f"{name}/a.jpg", jpeg(place))
    return folder / "x.zip", set(_members(names))


def _members(names: tuple[str, ...]) -> Iterator[str]:
    """Yields the keys of members: slashes count once, and hidden ones are not looked at."""
    for name in names:
        key = re.sub("/+", "/", f"{name}/a.jpg").strip()
        if not any(part.startswith(".") and part != ".." for part in key.split("/")):
            yield key


def _in_records(folder: Path, names: tuple[str, ...]) -> tuple[Path, set[str]]:
    """Records that say that they come from files of these names, in a file named to be a command."""
    folder.mkdir()
    path = folder / f"$(touch {ESCAPED}).tfrecord"
    with open(path, "wb") as stream:
        for place, name in enumerate(names):
            said = {"image/filename": name, "image/class/text": name, "image/source_uri": name, f"extra/{name}": name}
            features = {key: ("bytes", [value.encode()]) for key, value in said.items()}
            features["image/encoded"] = ("bytes", [jpeg(place)])
            stream.write(b"".join(tfrecord.frame(record.encode_example(features))))
    return folder, {name.strip() for name in names}


Made = Callable[[Path, tuple[str, ...]], tuple[Path, set[str]]]
SOURCES: dict[str, Made] = {
    "table": _in_table,
    "folders": _in_folders,
    "tar": _in_tar,
    "zip": _in_zip,
    "records": _in_records,
}
OPTIONS = {
    "table": ("--key-column", "key", "--group-column", "group", "--extra-column", "note"),
    "records": ("--source-kind", "tfrecord"),
}


def below(folder: Path, without: str = "") -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yields path and state of everything below a directory, but for one folder in it."""
    for home, folders, files in os.walk(folder):
        if Path(home) == folder:
            folders[:] = [name for name in folders if name != without]
        for name in (*folders, *files):
            path = os.path.join(home, name)
            found = os.lstat(path)
            moved = 0 if name in folders else found.st_mtime_ns
            yield os.path.relpath(path, folder), (found.st_mode, 0 if name in folders else found.st_size, moved)

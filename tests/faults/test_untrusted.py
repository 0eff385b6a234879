"""Names and values that come with the data: they are text, whatever they look like, and stay where they belong."""

from __future__ import annotations

import html.parser
import json
import re
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_jobs.export.options import FORMATS
from tests.browser.markup import NAMES as MARKUP
from tests.faults import hostile_datasets, process
from tests.faults.hostile_names import CONTROLS, ESCAPED, NAMES, OPTIONS, PATHS, SHOUT, SOURCES, below
from tests.faults.many import END
from tests.unsafe_calls import ROOT

pytestmark = pytest.mark.timeout(900)

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/-]*(\.[A-Za-z0-9_.-]+)")
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Sandbox:
    """A directory in which every source was ingested and looked at in every way, and all that came of it.

    Attributes:
      home: the directory.
      outcome: of all commands together.
      codes: command line -> its exit code.
      keys: source -> what it holds.
      outside: paths that appeared, changed or are gone, but for those below `out`.
    """

    home: Path
    outcome: process.Outcome
    codes: dict[tuple[str, ...], int]
    keys: dict[str, set[str]]
    outside: set[str]

    def lost(self, source: str) -> set[str]:
        """Returns the keys of a source that some dataset of it holds neither as images nor as rejects."""
        return set().union(
            *(self.keys[source] - self.held(name, "images") - self.held(name, "rejects") for name in _datasets(source))
        )

    def held(self, dataset: str, table: str) -> set[str]:
        """Returns the keys in a table of a dataset."""
        out = self.home / "out" / dataset
        paths = [*out.glob(f"{table}.parquet"), *out.glob(f"{table}/*.parquet")]
        tables = [pq.read_table(path, columns=["key"], use_threads=False) for path in paths]
        return {key for one in tables for key in one["key"].to_pylist()}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Sandbox:
    home = tmp_path_factory.mktemp("sandbox")
    for name in ("home", "tmp", "cwd", "out", "source", "half"):
        (home / name).mkdir()
    commands, keys = [], {}
    for kind, make in SOURCES.items():
        source, keys[kind] = make(home / "source" / kind, NAMES)
        half, _ = make(home / "half" / kind, NAMES[::2])
        commands += [*_commands(kind, source, home / "out"), *_appending(kind, half, source, home / "out")]
    for dataset in hostile_datasets.make(home / "theirs"):
        commands += _of_others(dataset, home / "source", home / "out")
    before = dict(below(home, "out"))
    fonts = tmp_path_factory.mktemp("fonts")  # where libraries import Matplotlib, it keeps a list of them
    env = {
        "HOME": home / "home",
        "MPLCONFIGDIR": fonts,
        "TMPDIR": home / "tmp",
        "PYTHONPATH": ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.many", json.dumps(commands)]
    outcome = process.run(command, 600, env={name: str(value) for name, value in env.items()}, cwd=home / "cwd")
    after = dict(below(home, "out"))
    outside = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    outside = {path for path in outside if not path.startswith("home/.keras")}  # Keras keeps its own settings there
    ended = [int(found) for found in re.findall(f"^{END} (.*)$", outcome.out, re.MULTILINE)]
    codes = dict(zip(map(tuple, commands), ended, strict=False))  # of a hang or a crash there are fewer
    return Sandbox(home, outcome, codes, keys, outside)


def _commands(kind: str, source: Path, out: Path):
    dataset = str(out / kind)
    yield ["ingest", str(source), "--out", dataset, "--max-reject-ratio", "1", *OPTIONS.get(kind, ())]
    yield ["inspect", dataset, "-n", "200", "--export", str(out / f"{kind}-pictures")]
    yield ["inspect", dataset, "--key", NAMES[0], "--json"]
    yield ["inspect", dataset, "--json"]
    yield ["verify", dataset]
    yield ["report", dataset, "--source", str(source.parent), "--out", str(out / f"{kind}.html")]
    yield ["ingest", str(source), "--out", f"{dataset}-strict", "--max-reject-ratio", "0", *OPTIONS.get(kind, ())]
    if kind == "records":
        yield ["inspect", str(source / f"$(touch {ESCAPED}).tfrecord"), "-n", "200"]
    if kind == "table":
        yield ["ingest", str(source), "--out", f"{dataset}-split", "--split-column", "split", *OPTIONS[kind]]
    yield from _exports(dataset)


def _exports(dataset: str):
    for target in FORMATS:
        yield ["export", dataset, "--to", target, "--out", f"{dataset}-{target}"]


def _appending(kind: str, half: Path, source: Path, out: Path):
    dataset, added = (str(out / name) for name in _datasets(kind))
    options = ["--out", added, "--max-reject-ratio", "1", *OPTIONS.get(kind, ())]
    yield ["ingest", str(half), *options]
    yield ["diff", added, dataset, "--limit", "0"]
    yield ["ingest", str(source), *options, "--append"]
    yield ["diff", added, dataset, "--limit", "0", "--json"]
    yield ["verify", added]
    yield ["export", added, "--to", "webdataset", "--out", f"{added}-webdataset"]


def _datasets(kind: str) -> tuple[str, str]:
    """Returns the names of the datasets of a source: one in one go, one in two."""
    return kind, f"{kind}-added"


def _of_others(dataset: Path, source: Path, out: Path):
    theirs = str(dataset)
    yield ["verify", theirs]
    yield ["inspect", theirs, "--export", str(out / f"{dataset.name}-pictures")]
    yield ["diff", theirs, theirs]
    yield ["report", theirs, "--out", str(out / f"{dataset.name}.html")]
    yield ["ingest", str(source / "folders"), "--out", theirs, "--append"]
    for target in FORMATS:
        yield ["export", theirs, "--to", target, "--out", str(out / f"{dataset.name}-{target}")]


@pytest.mark.parametrize("kind", SOURCES)
def test_names_that_are_paths_or_commands_lead_nowhere(sandbox, fault, kind):
    row = fault(
        "untrusted", "labels, keys and members that are paths or commands", "stored as text; no other file is touched"
    )
    lost = sandbox.lost(kind)
    strayed = sandbox.outside | {path for path, _ in below(sandbox.home / "out") if ESCAPED in path}
    for name in PATHS:
        row.tried(
            f"{kind} {name!r}: {sorted(strayed)[:3]} {sorted(lost)[:3]}",
            hang=sandbox.outcome.hang,
            lost=any(name.replace("/", "|") in key or name in key for key in lost),
            wrong=bool(strayed),
        )
    assert not sandbox.outcome.shows_traceback
    assert set(sandbox.codes.values()) <= {0, 2, 3}


@pytest.mark.parametrize("kind", SOURCES)
def test_exports_hold_every_image_under_a_name_that_leads_nowhere(sandbox, fault, kind):
    row = fault("untrusted", "keys that are paths or commands, exported to every format", "written under safe names")
    out = sandbox.home / "out"
    for command in (command for command in sandbox.codes if command[0] == "export" and f"/out/{kind}" in command[1]):
        row.tried(" ".join(command), lost=sandbox.codes[command] != 0, hang=sandbox.outcome.hang)
    for dataset in _datasets(kind):
        members = list(_members(out / f"{dataset}-webdataset"))
        images = len([name for name in members if name.endswith(".json")])
        strange = [name for name in members if not _SAFE_NAME.fullmatch(name)]
        row.tried(
            f"{dataset}: {images} images, {strange[:3]}",
            lost=images != len(sandbox.held(dataset, "images")) or not images,
            wrong=bool(strange) or len(set(members)) < len(members),
        )
    tables = [pq.read_table(path, use_threads=False) for path in (out / f"{kind}-parquet").rglob("*.parquet")]
    row.tried(
        "parquet", lost={key for table in tables for key in table["key"].to_pylist()} != sandbox.held(kind, "images")
    )
    paths = [image["path"] for table in tables for image in table["image"].to_pylist()]
    row.tried(f"parquet {paths[:3]}", wrong=not all(map(_SAFE_NAME.fullmatch, paths)))


def _members(folder: Path):
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as archive:
            yield from archive.getnames()


def test_datasets_whose_own_names_are_paths_are_refused_by_every_command(sandbox, fault):
    row = fault("untrusted", "splits and shards in `dataset.json` whose names are paths", "the dataset is refused")
    for command, code in sandbox.codes.items():
        if any("/theirs/" in part for part in command):
            row.tried(" ".join(command), hang=sandbox.outcome.hang, wrong=code != 3 or bool(sandbox.outside))


def test_controls_in_names_do_not_reach_the_terminal(sandbox, fault):
    row = fault("untrusted", "escape sequences in labels, keys and file names", "shown as escapes")
    said = sandbox.outcome.out + sandbox.outcome.err
    # Behind a control that got through the word would stand at the start of a line, or raw.
    raw = bool(_RAW.search(said)) or f"\n{SHOUT}" in said
    for name in CONTROLS:
        lost = [key for kind in SOURCES for key in sandbox.lost(kind) if name in key]
        row.tried(f"{name!r}: {lost}", hang=sandbox.outcome.hang, lost=bool(lost), wrong=raw)
    assert f"\\x1b]0;{SHOUT}" in said


class _Markup(html.parser.HTMLParser):
    """Collects what a page must not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("iframe", "base", "form", "object", "embed"):
            self.found.append(tag)
        for name, value in attributes:
            place = name in ("href", "src") and not (value or "").startswith(("#", "data:"))
            if name.startswith("on") or name == "style" or place:
                self.found.append(f"{tag} {name}={value}")


def test_markup_in_names_is_text_in_the_report(sandbox, fault):
    row = fault("untrusted", "markup in labels, keys, reasons and values", "escaped; the page also forbids scripts")
    for kind in SOURCES:
        path = sandbox.home / "out" / f"{kind}.html"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        page = _Markup()
        page.feed(text)
        policy = re.search(r'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; ', text)
        for name in MARKUP:
            wrong = bool(page.found) or page.scripts != 1 or not policy
            row.tried(f"{kind} {name}: {page.found[:3]}", hang=sandbox.outcome.hang, lost=not text, wrong=wrong)

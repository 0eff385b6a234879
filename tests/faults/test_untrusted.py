"""Names and values that come with the data: they are text, whatever they look like, and stay where they belong."""

from __future__ import annotations

import html.parser
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.browser.markup import NAMES as MARKUP
from tests.faults import process
from tests.faults.hostile_names import CONTROLS, ESCAPED, NAMES, OPTIONS, PATHS, SHOUT, SOURCES, below
from tests.faults.many import END
from tests.test_unsafe_calls import ALLOWED
from tests.unsafe_calls import PACKAGES, ROOT, unescaped_in_templates, unsafe

pytestmark = pytest.mark.timeout(900)

_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Sandbox:
    """A directory in which every source was ingested and looked at in every way, and all that came of it.

    Attributes:
      home: the directory.
      outcome: of all commands together.
      codes: exit codes of the commands.
      keys: source -> what it holds.
      outside: paths that appeared, changed or are gone, but for those below `out`.
    """

    home: Path
    outcome: process.Outcome
    codes: list[int]
    keys: dict[str, set[str]]
    outside: set[str]

    def lost(self, source: str) -> set[str]:
        """Returns the keys of a source that are neither images nor rejects."""
        held = set()
        for table in ("images", "rejects"):
            path = self.home / "out" / source / f"{table}.parquet"
            if path.exists():
                held |= set(pq.read_table(path, columns=["key"], use_threads=False)["key"].to_pylist())
        return self.keys[source] - held


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Sandbox:
    home = tmp_path_factory.mktemp("sandbox")
    for name in ("home", "tmp", "cwd", "out", "source"):
        (home / name).mkdir()
    commands, keys = [], {}
    for kind, make in SOURCES.items():
        source, keys[kind] = make(home / "source" / kind, NAMES)
        commands += list(_commands(kind, source, home / "out"))
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
    codes = [int(found) for found in re.findall(f"^{END} (.*)$", outcome.out, re.MULTILINE)]
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


def test_no_source_of_the_product_runs_what_data_says(fault):
    row = fault("untrusted", "calls that run data: pickle, eval, a shell, unpacking", "none but a list with reasons")
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            found = {(name, call) for call in unsafe(path.read_text(encoding="utf-8"))} - set(ALLOWED)
            row.tried(f"{name}: {found}", wrong=bool(found))
    row.tried("templates", wrong=unescaped_in_templates() != {"style", "script"})


@pytest.mark.parametrize("kind", SOURCES)
def test_names_that_are_paths_or_commands_lead_nowhere(sandbox, fault, kind):
    row = fault(
        "untrusted", "labels, keys and members that are paths or commands", "kept as text; nothing else is touched"
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
    assert set(sandbox.codes) <= {0, 2, 3}


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
    row = fault("untrusted", "markup in labels, keys, reasons and values", "escaped; a policy forbids it too")
    for kind in SOURCES:
        path = sandbox.home / "out" / f"{kind}.html"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        page = _Markup()
        page.feed(text)
        policy = re.search(r'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; ', text)
        for name in MARKUP:
            wrong = bool(page.found) or page.scripts != 1 or not policy
            row.tried(f"{kind} {name}: {page.found[:3]}", hang=sandbox.outcome.hang, lost=not text, wrong=wrong)

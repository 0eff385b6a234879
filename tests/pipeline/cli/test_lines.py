"""A name forges no line of the output: whichever command shows it, it shows the line feed as an escape."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from beam_jobs.errors import FeedlineError
from pipeline import cli
from tests.make_images import jpeg

pytestmark = pytest.mark.timeout(120)
NAME = "x\nFORGED 60"
KEY = f"{NAME}/{NAME}.jpg"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> Path:
    """A directory with a source and two datasets of it; names of classes and files are forged."""
    place = tmp_path_factory.mktemp("forged")
    for label in (NAME, "cat"):
        folder = place / "source" / label
        folder.mkdir(parents=True)
        for number in range(6):
            (folder / f"{number}.jpg").write_bytes(jpeg(len(label) * 10 + number))
        (folder / f"{NAME}.jpg").write_bytes(jpeg(99))  # copies, in two classes
        (folder / f"{NAME}.png").write_bytes(b"no image")
    (place / "source" / f"bare{NAME}").mkdir()
    ingest = ["ingest", str(place / "source"), "--max-reject-ratio", "1", "--splits", "all=1", "--out"]
    assert cli.execute([*ingest, str(place / "new")]) == 0
    for path in (place / "source" / NAME).iterdir():
        path.rename(path.with_name(f"renamed {path.name}"))
    assert cli.execute([*ingest, str(place / "old")]) == 0
    shutil.copytree(place / "new", place / "stray")
    (place / "stray" / "Split-all" / NAME).write_text("")
    return place


@pytest.mark.parametrize(
    "command",
    [
        "ingest source --max-reject-ratio 0 --out strict",
        "ingest KEY --out missing",
        "inspect new -n 9",
        "inspect new/rejects.parquet -n 9",
        "verify stray",
        "diff old new",
        "export new --to KEY --out tar",
        "lineage KEY",
        "predict new KEY",
        "run --show-config --images KEY --root work",
        "run --set KEY=1 --images source --root work",
    ],
)
def test_a_name_forges_no_line(command, datasets, here, capsys):
    for path in datasets.iterdir():
        (here / path.name).symlink_to(path)
    names = {"KEY": KEY, "KEY=1": f"{NAME}=1"}
    cli.execute([names.get(word, word) for word in command.split()])
    shown = "\n".join(capsys.readouterr())
    assert [line for line in shown.splitlines() if line.lstrip().startswith("FORGED")] == []
    assert re.search(r"x\\(x0a|n)FORGED 60", shown)  # `n` where the message quotes it


def test_an_error_is_one_line_and_one_more_for_each_problem():
    error = FeedlineError(f"{NAME} is wrong")
    error.problems = [f"  {NAME}", "  more"]
    assert str(error) == "x\\x0aFORGED 60 is wrong\n  x\\x0aFORGED 60\n  more"

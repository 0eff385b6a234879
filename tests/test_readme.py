"""What the README shows is what happens: its commands and its Python are run, in order, in an empty directory."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config import build
from tests.command import feedline
from tests.make_images import class_folders, jpeg

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines()]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the README takes for granted: `photos/cat/1.jpg` and its like, `batches/1`, `labels.csv`."""
    folder = tmp_path_factory.mktemp("readme")
    photos = class_folders(folder / "photos", per_class=24, labels=("cat", "dog"))
    (photos / "cat" / "1.jpg").write_bytes(jpeg(1))
    shutil.copytree(photos, folder / "batches" / "1")
    with (folder / "labels.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["file", "kind", "owner", "age"])
        rows.writerows(
            [f"photos/{label}/{i:03d}.jpg", label, f"owner {i}", i] for label in ("cat", "dog") for i in (0, 1)
        )
        rows.writerows([f"photos/cat/{i:03d}.jpg", "cat", f"owner {i}", i] for i in range(3, 24) if i % 3 != 2)
    return folder


def test_the_readme_shows_both_commands_and_they_are_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = [line.split()[1] for line in COMMANDS if line.startswith("make ")]
    assert shown[:2] == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in shown)


@pytest.mark.e2e
@pytest.mark.parametrize("command", [line for line in COMMANDS if not line.startswith("make ")])
def test_command(workplace, warm, command):
    program, *arguments = shlex.split(command)
    assert program == "feedline"
    result = feedline(*arguments, cwd=workplace, programs=warm)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("code", blocks("python"))
def test_python(workplace, code):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=workplace, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.search(r"49 images, [0-9a-f]{12}\n\(8, 96, 96, 3\) <dtype: 'uint8'>", run.stdout)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_a_valid_configuration(text):
    config = build(yaml.safe_load(text))
    assert config.train.epochs == 20
    assert list(config.ingest.splits) == ["train", "eval"]


def test_no_figure_is_left_to_be_filled_in():
    assert re.findall(r"@[A-Z_]+@|\?\?\?|\bTBD\b", README) == []


def test_links_lead_somewhere():
    local = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    assert local
    assert [target for target in local if not (ROOT / target).is_file()] == []

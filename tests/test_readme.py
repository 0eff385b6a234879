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
from PIL import Image

from tests.command import feedline
from tests.make_images import class_folders, jpeg

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines()]
FEEDLINE = [line for line in COMMANDS if line.startswith("feedline ")]


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


def test_a_stranger_is_told_every_command_before_feedline_and_make_knows_the_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    before = COMMANDS[: COMMANDS.index(FEEDLINE[0])]
    assert before == ["make demo", "make test", "source .venv/bin/activate"]
    assert README.index("In the top directory of the clone:") < README.index("make demo")
    assert before + FEEDLINE == COMMANDS
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in ("demo", "test"))


def test_a_stranger_is_told_first_whether_it_is_for_them():
    head = README.partition("## ")[0]
    assert 0 < head.index("**Use it if**") < head.index("**It is not for you if**") < 800
    assert [
        word for word in ("PyTorch", "GPU", "TPU", "Dataflow", "Kubernetes", "3.10", "Linux") if word not in head
    ] == []


def test_as_many_tests_are_run_as_it_says(request):
    (shown,) = re.findall(r"`make test` runs ([\d,]+) tests", README)
    found = len(request.session.items)
    if found < 3000:
        pytest.skip(f"{found} tests were chosen; only `make test` knows how many there are")
    assert int(shown.replace(",", "")) <= found


@pytest.mark.docs
@pytest.mark.parametrize("command", FEEDLINE)
def test_command(workplace, warm, command):
    arguments = shlex.split(command)[1:]
    if arguments[0] == "bench":
        arguments += ["--seconds", "0.1"]  # of one measurement; that of a reader takes a second
    result = feedline(*arguments, cwd=workplace, programs=warm)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.docs
@pytest.mark.parametrize("code", blocks("python"))
def test_python(workplace, code):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=workplace, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Epoch 20/20" in run.stdout
    assert "val_accuracy: " in run.stdout


def test_no_figure_is_left_to_be_filled_in():
    assert re.findall(r"@[A-Z_]+@|\?\?\?|\bTBD\b", README) == []


def test_links_lead_somewhere():
    local = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    assert local
    assert [target for target in local if not (ROOT / target).is_file()] == []


def test_the_first_pages_import_public_names_alone():
    first = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md", "docs/start.md")
    )
    imports = re.findall(r"^from ((?:beam_jobs|feedline|trainer)\S*) import", first, flags=re.MULTILINE)
    assert set(imports) <= {"beam_jobs", "trainer"}
    assert not re.search(r"`(?:trainer|beam_jobs)\.\w+\.\w+`", first)


def test_the_pictures_of_the_report_and_the_bench_are_readable_and_small():
    measured = (ROOT / "docs/measured.md").read_text(encoding="utf-8").replace("](assets/", "](docs/assets/")
    paths = sorted({ROOT / name for name in re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", README + measured)})
    assert [path.name for path in paths] == ["bench.png", "report.png"]
    found = [(Image.open(path).format, Image.open(path).width >= 1000, path.stat().st_size < 150_000) for path in paths]
    assert found == [("PNG", True, True)] * 2

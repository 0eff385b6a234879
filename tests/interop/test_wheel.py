"""The wheel alone, without TFX, in an environment of its own: it ingests, reads back, exports and trains.

TensorFlow itself runs on older glibc too, so this is tried for every Python of the current stack wherever it is run.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.clean_venv import uv_program
from tests.make_images import class_folders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
LOCK = ["--constraint", str(ROOT / "constraints" / "current.txt")]
# Python, TensorFlow, and what holds the versions of the rest; the wheel alone chooses what TensorFlow 2.16 works with.
ENVIRONMENTS = [
    ("3.11", "2.21", LOCK),
    ("3.12", "2.21", LOCK),
    ("3.13", "2.21", LOCK),
    ("3.12", "2.16", ["tensorflow==2.16.*"]),
]
TRAIN = """
import keras
from beam_jobs import IngestOptions, run
from trainer import FOREVER, InputOptions, make_dataset

run(IngestOptions(source="photos", out="from_python", splits={"train": 0.8, "eval": 0.2}))
options = InputOptions(image_side_px=16, batch_size=8)
train = make_dataset("from_python", "train", options, training=True, epochs=FOREVER)
layers = keras.layers
model = keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(2, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
pairs = train.map(lambda features, label: (features["image"], label))
history = model.fit(pairs, steps_per_epoch=2, epochs=2, verbose=0)
print(len(history.history["loss"]), "epochs")
"""

Program = Callable[..., subprocess.CompletedProcess[str]]


def interpreter(version: str) -> str:
    """A Python of that version; the test is skipped where there is none that starts."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for path in [*glob.glob(f"{root}/versions/{version}.*/bin/python{version}"), shutil.which(f"python{version}")]:
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"there is no Python {version} here")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [
        uv_program(),
        "build",
        "--quiet",
        "--wheel",
        "--python",
        sys.executable,
        "--out-dir",
        str(out),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=280)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module", params=ENVIRONMENTS, ids=lambda it: f"python{it[0]}-tensorflow{it[1]}")
def program(request, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Runs a program of an environment that holds the wheel and what it requires, in a directory with `photos`."""
    python, tensorflow, versions = request.param
    place = tmp_path_factory.mktemp("place")
    class_folders(place / "photos", per_class=12, labels=("cat", "dog"))
    uv, venv = uv_program(), place / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", interpreter(python), str(venv)], check=True, cwd=place)
    install = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), *versions, str(wheel)]
    subprocess.run(install, check=True, cwd=place, timeout=600)
    assert list(venv.glob(f"lib/*/site-packages/tensorflow-{tensorflow}.*.dist-info"))

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [str(venv / "bin" / name), *arguments]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=280)

    yield run
    shutil.rmtree(venv)


def test_it_ingests_reads_back_exports_and_reports(program):
    for command in (
        "ingest photos --out dataset --splits train=0.8,eval=0.2",
        "verify dataset",
        "inspect dataset --key cat/001.jpg",
        "export dataset --to webdataset --out tar",
        "report dataset --out report.html",
    ):
        done = program("feedline", *command.split())
        assert done.returncode == 0, (command, done.stderr)


def test_it_trains(program):
    done = program("python", "-W", "ignore", "-c", TRAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 epochs"


@pytest.mark.parametrize("command", ["run --images photos --root work", "demo --root demo", "lineage photos"])
def test_a_command_that_needs_tfx_says_what_to_install(program, command):
    done = program("feedline", *command.split())
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line.startswith("feedline: error: this command needs TFX, but module '")
    assert line.endswith(".txt '.[tfx]'")
    assert "Traceback" not in done.stderr

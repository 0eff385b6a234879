from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.options import InputOptions, TrainerConfig, TrainOptions
from trainer.training.checkpoint import POSITION_NAME

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# Everything that has a state or draws numbers: dropout and batch normalisation of the model, augmentation, momentum,
# averages, accumulated gradients, the best epoch. 12 steps an epoch; an image of 96 is left over for the next.
CONFIG = TrainerConfig(
    input=InputOptions(image_side_px=8, batch_size=8, train_ops="decode_random_crop(8)|flip", threads=1, seed=5),
    train=TrainOptions(
        epochs=3,
        ema=0.9,
        accumulate_steps=2,
        keep="best",
        monitor="val_loss",
        patience=9,
        deterministic=True,
        checkpoint_steps=4,
        label_smoothing=0.1,
    ),
)


KILLED = {"SIGKILL": 18, "SIGTERM": 19}  # after so many steps, of which an epoch has 12


@pytest.fixture(scope="module")
def runs(shades, tmp_path_factory) -> SimpleNamespace:
    """Trainings that were killed; then, in one process, an undisturbed one and the rest of those."""
    root = tmp_path_factory.mktemp("resume")

    def told(name: str, number: str = "") -> dict:
        (root / name).mkdir(exist_ok=True)
        return {
            "config": CONFIG.to_json(),
            "dataset": str(shades),
            "checkpoints": str(root / name / "checkpoints"),
            "out": str(root / name / "weights.npz"),
            "kill_after": KILLED[number] if number else 0,
            "signal": number,
        }

    killed = [start([told(number, number)]) for number in KILLED]
    codes = {number: finish(process) for number, process in zip(KILLED, killed, strict=True)}
    left = {number: checkpoints_of(root / number) for number in KILLED}
    code, said = finish(start([told("undisturbed"), *(told(number) for number in KILLED)]))
    assert code == 0, said
    return SimpleNamespace(root=root, codes=codes, left=left, said=said)


def start(told: list[dict]) -> subprocess.Popen:
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.train_once", json.dumps(told)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> tuple[int, str]:
    said, _ = process.communicate()
    return process.returncode, said


def checkpoints_of(root: Path) -> dict[str, int]:
    """Name -> size of `position.json`."""
    return {path.parent.name: path.stat().st_size for path in root.rglob(POSITION_NAME)}


def outcome(root: Path) -> tuple[list[np.ndarray], dict]:
    with np.load(root / "weights.npz") as stored:
        weights = [stored[name] for name in sorted(stored)]
    return weights, json.loads((root / "weights.npz.json").read_text())


def test_a_signal_ends_the_process_as_it_would_have_and_a_checkpoint_is_left(runs):
    assert runs.codes["SIGKILL"][0] == -signal.SIGKILL
    assert runs.codes["SIGTERM"][0] == -signal.SIGTERM
    # Every fourth step, and the newest two; a signal that can be held writes one more.
    assert runs.left["SIGKILL"].keys() == {"checkpoint-00000012", "checkpoint-00000016"}
    assert runs.left["SIGTERM"].keys() == {"checkpoint-00000016", "checkpoint-00000019"}
    assert all(size < 1024 for left in runs.left.values() for size in left.values())


@pytest.mark.parametrize("number", KILLED)
def test_a_training_that_was_killed_ends_with_the_very_weights_of_one_that_was_not(runs, number):
    (weights, progress), (expected, wanted) = outcome(runs.root / number), outcome(runs.root / "undisturbed")
    assert len(weights) == len(expected) > 5
    for value, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(value, other)
    clocks = {"train_seconds", "images_per_second", "input_wait"}
    for name in wanted["history"].keys() - clocks:
        assert progress["history"][name] == wanted["history"][name], name
    assert (progress["best"], progress["best_epoch"]) == (wanted["best"], wanted["best_epoch"])


def test_a_resumed_training_makes_the_remaining_steps_alone(runs):
    printed = [line.split()[1] for line in runs.said.splitlines() if line.startswith("epoch ")]
    assert printed == ["1/3", "2/3", "3/3", *["2/3", "3/3"] * len(KILLED)]
    places = re.findall(r"continuing at (epoch \d of 3, step \d+ of \d+), from /", runs.said)
    assert len(places) == len(KILLED)
    assert {place.partition(",")[0] for place in places} == {"epoch 2 of 3"}

"""What each setting of `train` changes in the weights, the history or what is written of a training."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from beam_jobs.ingest import run as run_ingest
from pipeline.config import PipelineConfig
from tests.command import python
from tests.settings.sources import make_source
from tests.settings.table import Row, config_of, grows, row, shrinks
from tests.settings.tiny_model import job_of
from trainer.job import fit
from trainer.models import ModelSpec, build_model
from trainer.training.checkpoint import Checkpoint, Checkpoints, Progress
from trainer.training.strategy import make_strategy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS = 4  # of an epoch
USUAL = {
    "input.image_side_px": 8,
    "input.batch_size": 4,
    "input.cache": "none",
    "train.model": "tests.settings.tiny_model.build",
    "train.epochs": 2,
    "train.jit": "never",
    "train.learning_rate": 0.02,
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
      model: what is exported.
      start: weights before the first step, in the order of the model.
      last: weights before the last epoch.
      progress: history and all else.
      steps: after which a checkpoint was written.
      executions: calls of the model's step, over all epochs.
      words: what it said of its choices.
      log_dir: for TensorBoard.
    """

    model: keras.Model
    start: list[np.ndarray]
    last: list[np.ndarray]
    progress: Progress
    steps: list[int]
    executions: int
    words: str
    log_dir: Path
    growth: str
    buffers: list[int]

    @property
    def history(self) -> dict[str, list[float]]:
        return self.progress.history

    @cached_property
    def weights(self) -> list[np.ndarray]:
        return [np.array(value) for value in self.model.get_weights()]


class Watch(keras.callbacks.Callback):
    """Keeps the weights before the first step and before the last epoch, and counts steps as `fit` runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.start: list[np.ndarray] = []
        self.last: list[np.ndarray] = []
        self.executions = 0

    def on_train_begin(self, logs=None) -> None:
        self.start = self.start or [np.array(value) for value in self.model.get_weights()]

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.last = [np.array(value) for value in self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.executions += 1


class Noted(Checkpoints):
    """Checkpoints that note after which steps they were written."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.steps: list[int] = []

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        super().save(step, checkpoint)
        self.steps.append(step)


def values(found: Trained) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in found.weights)).hexdigest()


def moved(found: Trained) -> set[str]:
    """Layers whose weights are not what they began as; statistics do not count."""
    pairs = zip(found.model.weights, found.start, found.weights, strict=True)
    return {weight.path.split("/")[0] for weight, before, after in pairs if not np.array_equal(before, after)}


def distance(found: Trained, layer: str = "") -> float:
    """How far the weights are from what they began as."""
    pairs = zip(found.model.weights, found.start, found.weights, strict=True)
    return float(sum(np.abs(after - before).sum() for weight, before, after in pairs if layer in weight.path))


def last_distance(found: Trained) -> float:
    """How far the last epoch moved the weights."""
    return float(sum(np.abs(after - before).sum() for before, after in zip(found.last, found.weights, strict=True)))


def epochs(found: Trained) -> int:
    return len(found.history["loss"])


def figures(found: Trained) -> dict[str, list[float]]:
    """What must not depend on how fast the steps are run."""
    return {name: np.round(found.history[name], 3).tolist() for name in ("loss", "val_loss")}


def judged_by(found: Trained) -> list[str]:
    names = ("val_accuracy", "val_loss", "val_accuracy_low")
    return [name for name in names if found.progress.best in found.history.get(name, [])]


def policy(found: Trained) -> str:
    return str(found.model.get_layer("first").compute_dtype)


ALL_LAYERS = {"first", "second", "head"}
SGD = {"train.optimizer": "sgd"}
FROZEN = {"train.frozen": True}
THAWED = {**FROZEN, "train.unfreeze_epoch": 1}
DROPS = {**SGD, "train.momentum": 0.0, "train.schedule": "step", "train.warmup_epochs": 0.0}
NEVER_BETTER = 10.0
MIRRORED = {"train.strategy": "mirrored"}
BEST = {"train.keep": "best", "train.epochs": 3}

ROWS = [
    row("train.model", "small_cnn", lambda found: found.model.count_params(), grows),
    row(
        "train.weights",
        "FILE",
        lambda found: abs(found.start[0]).max() == 7.0,
        (False, True),
        given={"train.model": "small_cnn"},
    ),
    row("train.frozen", True, moved, (ALL_LAYERS, {"head"})),
    row("train.unfreeze_epoch", 1, moved, ({"head"}, ALL_LAYERS), given=FROZEN),
    row("train.unfreeze_layers", 1, moved, (ALL_LAYERS, {"second", "head"}), given=THAWED),
    row("train.unfreeze_factor", 1.0, lambda found: distance(found, "second"), grows, given=THAWED),
    row("train.epochs", 1, epochs, (2, 1)),
    row("train.optimizer", "sgd", values),
    row("train.learning_rate", 0.002, distance, shrinks),
    row("train.momentum", 0.0, distance, shrinks, given=SGD),
    row("train.nesterov", True, values, given=SGD),
    row("train.schedule", "constant", distance, grows),
    row("train.warmup_epochs", 0.0, values),
    row("train.step_epochs", 1, last_distance, shrinks, given=DROPS),
    row("train.step_factor", 0.5, last_distance, grows, given={**DROPS, "train.step_epochs": 1}),
    row("train.weight_decay", 0.9, values),
    row("train.clip_norm", 0.001, distance, shrinks, given=SGD),
    row("train.label_smoothing", 0.3, values),
    row("train.class_weights", {"cat": 0.1, "dog": 3.0}, values),
    row("train.accumulate_steps", 2, values),
    row("train.ema", 0.9, distance, shrinks),
    row("train.monitor", "val_loss", judged_by, (["val_accuracy"], ["val_loss"]), given=BEST),
    row("train.patience", 1, epochs, (3, 2), given={"train.epochs": 3, "train.min_delta": NEVER_BETTER}),
    row(
        "train.min_delta",
        NEVER_BETTER,
        lambda found: found.progress.best_epoch > 0,
        (True, False),
        given={**BEST, "train.monitor": "loss"},
    ),
    row("train.keep", "best", values, given={"train.min_delta": NEVER_BETTER}, same=figures),
    row("train.choose_by", "lower_bound", judged_by, (["val_accuracy"], ["val_accuracy_low"]), given=BEST),
    row(
        "train.per_class",
        True,
        lambda found: sorted(name for name in found.history if "cat" in name) != [],
        (False, True),
        same=values,
    ),
    row("train.mixed_precision", "bfloat16", policy, ("float32", "bfloat16")),
    row("train.jit", "always", lambda found: found.model.jit_compile, (False, True), first=("never",), same=figures),
    row("train.steps_per_execution", 2, lambda found: found.executions, (2 * STEPS, STEPS), same=figures),
    row("train.strategy", "mirrored", lambda found: "mirrored" in found.words.lower(), (False, True)),
    row("train.gpus", 1, lambda found: isinstance(found, OptionError), (False, True)),
    row("train.memory_growth", False, lambda found: found.growth, ("true", "false"), same=values),
    row("train.prefetch_to_device", 3, lambda found: found.buffers, ([1], [3]), given=MIRRORED, same=values),
    row("train.checkpoint_steps", 3, lambda found: found.steps, ([4, 8], [3, 4, 6, 8]), same=values),
    row(
        "train.profile_steps", "1-2", lambda found: any(found.log_dir.rglob("*.xplane.pb")), (False, True), same=values
    ),
    row("train.deterministic", True, bool, (False, True), first=(False,)),
    row("ingest.columns.weight", "weight", values),
]

# Determinism cannot be switched off again, so it has a process of its own. It refuses what has no seed.
_DETERMINISTIC = """
import sys
from pathlib import Path
import tensorflow as tf
from tests.settings.test_train import train
train(Path(sys.argv[1]), {"train.epochs": 1, "train.deterministic": True}, Path(sys.argv[2]))
try:
    tf.random.Generator.from_non_deterministic_state()
except RuntimeError:
    sys.exit(9)
"""


def refuses_what_has_no_seed(dataset: Path, out: Path, settings: Mapping[str, Any]) -> bool:
    """Whether TensorFlow does, after a training."""
    if not settings["train.deterministic"]:
        train(dataset, settings, out)
        tf.random.Generator.from_non_deterministic_state()
        return False
    return python(_DETERMINISTIC, dataset, out, timeout=250).returncode == 9


def ingested(source: Path, out: Path, weight: str) -> Path:
    """Returns a dataset of 16 images to train and 16 to evaluate."""
    settings = {"ingest.source": str(source / "images.csv"), "ingest.columns.split": "part"}
    ingest = config_of({"root": "unused", **settings, "ingest.columns.weight": weight}).ingest
    assert ingest
    run_ingest(dataclasses.replace(ingest, out=str(out)))
    return out


def train(dataset: Path, settings: Mapping[str, Any], out: Path) -> Trained:
    config: PipelineConfig = config_of({"root": "unused", "dataset": "unused", **USUAL, **settings})
    watch, checkpoints, words = Watch(), Noted(str(out / "checkpoints")), []
    strategy = make_strategy(config.train.strategy, config.train.memory_growth)
    buffers, make_options = [], tf.distribute.InputOptions

    def note_buffer(**options):
        buffers.append(options["experimental_per_replica_buffer_size"])
        return make_options(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.distribute, "InputOptions", note_buffer)
        model, progress = fit(job_of(dataset, config), checkpoints, str(out / "log"), (watch,), strategy, words.append)
    return Trained(
        model=model,
        start=watch.start,
        last=watch.last,
        progress=progress,
        steps=checkpoints.steps,
        executions=watch.executions,
        words="\n".join(words),
        log_dir=out / "log",
        growth=os.environ["TF_FORCE_GPU_ALLOW_GROWTH"],
        buffers=buffers,
    )


Run = Callable[[Mapping[str, Any]], Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("train")
    source = make_source(root / "source")
    datasets = {weight: ingested(source, root / f"dataset{weight}", weight) for weight in ("", "weight")}
    weights = str(root / "start.weights.h5")
    trained: dict[str, Trained] = {}

    def save_weights() -> None:
        spec = ModelSpec(side_px=8, classes=2, mean_rgb=(1, 1, 1), std_rgb=(1, 1, 1))
        model = build_model("small_cnn", spec)
        model.set_weights([np.full_like(value, 7.0) for value in model.get_weights()])
        model.save_weights(weights)

    def once(settings: Mapping[str, Any]) -> Any:
        given = dict(settings)
        dataset = datasets[given.pop("ingest.columns.weight", "")]
        if given.get("train.weights"):
            save_weights()
            given["train.weights"] = weights
        if "train.gpus" in given:
            with pytest.raises(OptionError) as refused:
                train(dataset, given, root / "gpus")
            return refused.value
        if "train.deterministic" in given:
            return refuses_what_has_no_seed(dataset, root / "deterministic", given)
        name = str(sorted(settings.items()))
        if name not in trained:
            trained[name] = train(dataset, given, root / str(len(trained)))
        return trained[name]

    return once


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_setting_of_the_training_changes_its_result(row: Row, run: Run):
    row.check(run)

"""Trainings in a process of their own, which a test may kill: `python -m tests.trainer.train_once '[{...}, ...]'`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from beam_jobs.dataset import manifest
from trainer.job import Job, fit
from trainer.options import TrainerConfig
from trainer.training.checkpoint import Checkpoints


class Act(keras.callbacks.Callback):
    """Does something after so many executions of `fit`, over all epochs."""

    def __init__(self, executions: int, act: Callable[[], Any]) -> None:
        super().__init__()
        self._left, self._act = executions, act

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._left -= 1
        if not self._left:
            self._act()


def job_of(path: str, config: TrainerConfig, eval_split: str = "train") -> Job:
    """A training on a dataset of greys, which evaluates on the images it trains on unless another split is named."""
    return Job(
        config=config,
        path=path,
        dataset=manifest.load(path),
        train_split="train",
        eval_split=eval_split,
        mean_rgb=(47.0, 48.0, 49.0),
        std_rgb=(27.0, 27.0, 27.0),
    )


def train(told: dict) -> None:
    job = job_of(told["dataset"], TrainerConfig.from_json(told["config"]))
    callbacks = []
    if told.get("kill_after"):
        callbacks.append(Act(told["kill_after"], lambda: os.kill(os.getpid(), signal.Signals[told["signal"]])))
    model, progress = fit(job, Checkpoints(told["checkpoints"]), callbacks=callbacks)
    weights = {f"{index:03d}": weight.numpy() for index, weight in enumerate(model.weights)}
    np.savez(told["out"], **weights)
    with open(told["out"] + ".json", "w") as stream:
        json.dump(progress.to_json(), stream)


if __name__ == "__main__":
    for told in json.loads(sys.argv[1]):
        train(told)

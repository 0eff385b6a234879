"""Trainings that are ended by signals at chosen moments and run again; see `test_kills_training.py`.

`python -m tests.faults.killing_trainings FOLDER SEED COUNT` prints what it saw as one JSON object. All trainings are
forked from one process that has imported everything and computed nothing. They take signals as the command line does,
and leave as it does. A moment is a step, or the opening or renaming of a file of a checkpoint, and up to 50 ms later.
"""

from __future__ import annotations

import _thread
import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

from beam_jobs import ingest
from beam_jobs.errors import BadImage
from beam_jobs.images import process, sandbox
from beam_jobs.options import IngestOptions
from pipeline.runs import signals
from tests.beam_jobs import kill
from tests.faults.leaving import seconds_of, tried_again, write_whole
from tests.make_images import grey_image
from tests.trainer.train_once import job_of
from tests.trainer.training.test_resume import CONFIG
from trainer.job import fit
from trainer.training.checkpoint import INDEX_NAME, Checkpoints

STEPS = 36  # three epochs of twelve
_FILES = 40  # opened and renamed by the checkpoints of the first two epochs, at least
_LATE_S = 0.05
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Steps(keras.callbacks.Callback):
    """Counts executed steps, and does something after one of them."""

    def __init__(self, at: int, act) -> None:
        super().__init__()
        self.count = 0
        self._at, self._act = at, act

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.count += 1
        if self.count == self._at:
            self._act()


def make_dataset(folder: Path) -> None:
    """Makes 96 images of one grey each into a dataset; they are decoded here, for trainings are the subject."""

    def examine(places, limits, pixels, facts, processes, reader):
        return [_examined(reader.read(*place), limits, pixels, facts) for place in places]

    sandbox.examine = examine
    for grey in range(96):
        place = folder / "shades" / ("dark" if grey < 48 else "light")
        place.mkdir(exist_ok=True, parents=True)
        (place / f"{grey:03d}.png").write_bytes(grey_image(grey))
    out = str(folder / "dataset")
    ingest.run(IngestOptions(source=str(folder / "shades"), out=out, splits={"train": 1}, shards=4))


def _examined(data, limits, pixels, facts):
    try:
        stored, found = process.examine(data, limits, pixels, facts)
        return sandbox.Examination(sandbox.pack_facts(found), None if stored is data else stored)
    except BadImage as bad:
        return bad


def train(folder: Path, place: Path, at: int = 0, file: int = 0, late: float = 0.0, number: int = 0) -> None:
    """Trains as the trainer of a pipeline does, and leaves as the command line does."""

    def strike() -> None:
        def now() -> None:
            time.sleep(late)
            write_whole(place / "sent", str(time.monotonic()))
            os.kill(os.getpid(), number)

        _thread.start_new_thread(now, ())

    files = itertools.count(1)
    kill.on_each_moment((str(place / "checkpoints"),), lambda _: next(files) == file and strike())
    signals.install()
    job = job_of(str(folder / "dataset"), CONFIG)
    steps, code = Steps(at, strike), 0
    try:
        model, _ = fit(job, Checkpoints(str(place / "checkpoints")), callbacks=(steps,))
        np.savez(place / "weights.npz", *[weight.numpy() for weight in model.weights])
        (place / "steps").write_text(str(steps.count))
    except KeyboardInterrupt:
        code = signals.code()
    signals.end(code)


def newest(place: Path) -> int:
    """Returns the step of the newest whole checkpoint; 0 when there is none."""
    return max((int(path.parent.name[-8:]) for path in place.glob(f"checkpoints/*/{INDEX_NAME}")), default=0)


def same(one: Path, other: Path) -> bool:
    """Returns whether two trainings ended with the very same weights."""
    with np.load(one / "weights.npz") as left, np.load(other / "weights.npz") as right:
        return sorted(left) == sorted(right) and all(np.array_equal(left[name], right[name]) for name in left)


def main(folder: Path, seed: int, count: int) -> list[list[dict]]:
    assert kill.in_a_child(lambda: make_dataset(folder)) == 0
    clean = folder / "clean"
    clean.mkdir()
    assert kill.in_a_child(lambda: train(folder, clean)) == 0
    choose = random.Random(seed)
    tries = []
    for index in range(count):
        number = _SIGNALS[index % len(_SIGNALS)]
        when = {"at": choose.randint(1, STEPS)} if index % 2 else {"file": choose.randint(1, _FILES)}
        when["late"] = choose.uniform(0, _LATE_S)

        def attempt(before: int, index: int = index, number: signal.Signals = number, when: dict = when) -> dict:
            return _tried(folder, f"{index}-{before}", number, when)

        tries.append(tried_again(attempt, seconds_of))
    return tries


def _tried(folder: Path, name: str, number: signal.Signals, when: dict) -> dict:
    """Ends a training, runs it again and returns what became of both."""
    place = folder / name
    place.mkdir()
    code = kill.in_a_child(lambda: train(folder, place, **when, number=number))
    gone = time.monotonic()
    seconds = gone - float((place / "sent").read_text()) if (place / "sent").exists() else 0.0
    found = {"signal": number.name, **when, "code": code, "seconds": seconds, "kept": newest(place)}
    found["again"] = kill.in_a_child(lambda: train(folder, place))
    found["same"] = found["again"] == 0 and same(place, folder / "clean")
    found["steps"] = int((place / "steps").read_text()) if found["again"] == 0 else -1
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

"""Pipelines that are ended by signals from the Trainer on, and run again; see `test_kills_run.py`.

`python -m tests.faults.killing_runs FOLDER SEED COUNT SIGNAL...` ends COUNT runs by each signal and prints what it saw
as one JSON object. Every try begins with the same root, in which all that comes before the Trainer is finished; it is
put back at its place, because the database of a root knows where its files are. All runs are forked from one process
that has imported everything and computed nothing. A moment is the opening or renaming of a file of the Trainer or of
the pushed model, or up to half a second later.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_model_analysis as tfma
from tfx.orchestration.local.local_dag_runner import LocalDagRunner

from components.blessed_model import PARTIAL_PREFIX
from pipeline import pipeline
from pipeline.runs import root
from tests.beam_jobs import kill
from tests.faults.killing import command
from tests.faults.leaving import seconds_of, tried_again, write_whole
from tests.faults.process import session
from tests.make_images import encode
from trainer import bench, run_fn

LOADED = (LocalDagRunner, root, pipeline, run_fn, tfma)  # what a run would spend half a minute on
IMAGES = 64
SETTINGS = {
    "ingest": {"splits": {"train": 0.75, "eval": 0.25}, "shards": 2, "threads": 2},
    "input": {"image_side_px": 16, "batch_size": 8, "train_ops": "decode_random_crop(16)|flip", "threads": 1},
    "train": {"epochs": 3, "deterministic": True, "checkpoint_steps": 2},
    "evaluate": {"above_largest_class": False},
}
_LATE_S = 0.5
_BENCH_S = 0.05
_PATIENCE_S = 400.0
_LEAVE_S = 5.0


def make_source(folder: Path) -> None:
    """Makes images of noise, those of one class bright and those of the other dark."""
    noise = np.random.default_rng(0)
    for number in range(IMAGES):
        place = folder / ("bright" if number % 2 else "dark")
        place.mkdir(parents=True, exist_ok=True)
        pixels = noise.integers(0, 128, (20, 20, 3)) + 127 * (number % 2)
        (place / f"{number:02d}.png").write_bytes(encode(pixels.astype(np.uint8), "PNG"))


class Place:
    """A root, and the command that runs the pipeline in it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.said = folder / "root", folder / "said.txt"
        self._before = folder / "before"
        settings = folder / "pipeline.yaml"
        settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
        self._line = ["run", "--images", str(folder / "source"), "--root", str(self.root), "--config", str(settings)]
        self._watched = (str(self.root / "artifacts" / "Trainer"), str(self.root / "serving"))

    def keep(self) -> None:
        """Remembers the root as it is."""
        shutil.copytree(self.root, self._before, symlinks=True)

    def put_back(self) -> None:
        """Makes the root what it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self._before, self.root, symlinks=True)

    def run(self, act: Callable[[int], None] = lambda _: None) -> int | None:
        """Runs the pipeline in a child; returns its exit code. What is called at every moment gets its number."""

        def work() -> None:
            moments = itertools.count(1)
            kill.on_each_moment(self._watched, lambda _: act(next(moments)))
            command(self._line, self.said)

        return kill.in_a_child(work)

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the variables of the one pushed model; call it in a child, for it computes."""
        (version,) = (self.root / "serving").iterdir()
        found = tf.train.load_checkpoint(str(version / "variables" / "variables"))
        # The export lists all of them a second time, in an order that differs from process to process.
        names = [name for name in found.get_variable_to_shape_map() if name.startswith("variables/")]
        return {name: np.asarray(found.get_tensor(name)) for name in names}

    def pushed(self) -> list[str]:
        """Returns names of the models that a server would find."""
        serving = self.root / "serving"
        return [] if not serving.is_dir() else [path.name for path in serving.iterdir() if path.name.isdigit()]

    def left(self) -> list[str]:
        """Returns what no run may leave in a root: half a model, checkpoints of a training that is over."""
        names = [str(path.relative_to(self.root)) for path in self.root.rglob("*")]
        return [name for name in names if f"/{PARTIAL_PREFIX}" in name or "/.work-" in name or "/.system/" in name]


def striking(place: Place, at: int, late: float, number: int) -> Callable[[int], None]:
    """Returns what sends a signal at a moment, or so much later; when that was is written down."""

    def send() -> None:
        time.sleep(late)
        write_whole(place.said.with_suffix(".sent"), str(time.monotonic()))
        os.kill(os.getpid(), number)

    def act(moment: int) -> None:
        if moment == at:
            _thread.start_new_thread(send, ()) if late else send()

    return act


def tried(place: Place, clean: Path, at: int, late: float, number: signal.Signals) -> dict:
    """Ends a run, runs it again and returns what became of both."""
    place.put_back()
    sent = place.said.with_suffix(".sent")
    sent.unlink(missing_ok=True)
    code = place.run(striking(place, at, late, number))
    gone = time.monotonic()
    found = {
        "signal": number.name,
        "moment": at,
        "late": late,
        "code": code,
        "seconds": gone - float(sent.read_text()) if sent.exists() else 0.0,
        "said": place.said.read_text(encoding="utf-8"),
        "processes": processes_left(),
        "pushed": place.pushed(),
    }
    code = place.run()
    found |= {"again": code, "told": place.said.read_text(encoding="utf-8"), "versions": place.pushed()}
    return found | {"left": place.left(), "same": code == 0 and kill.in_a_child(lambda: compare(place, clean)) == 0}


def compare(place: Place, clean: Path) -> None:
    """Ends well when the pushed model has the very weights of the one in peace."""
    with np.load(clean) as wanted:
        found = place.weights()
        assert sorted(found) == sorted(wanted)
        assert all(np.array_equal(found[name], wanted[name]) for name in found)


def processes_left() -> int:
    """Returns how many processes of a run outlive it by more than a few seconds."""
    end = time.monotonic() + _LEAVE_S
    while (left := len(session(os.getpid())) - 1) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def main(folder: Path, seed: int, count: int, *names: str) -> dict:
    kill.PATIENCE_S = _PATIENCE_S
    bench.compare = functools.partial(bench.compare, seconds=_BENCH_S)  # a third of a run, and behind every moment
    make_source(folder / "source")
    place = Place(folder)
    code = place.run(lambda moment: os.kill(os.getpid(), signal.SIGKILL))
    assert code == -signal.SIGKILL, place.said.read_text(encoding="utf-8")
    place.keep()
    counted = folder / "moments"
    assert place.run(lambda moment: counted.write_text(str(moment)) and None) == 0, place.said.read_text()
    clean = {"said": place.said.read_text(encoding="utf-8"), "left": place.left(), "moments": int(counted.read_text())}
    weights = folder / "weights.npz"
    assert kill.in_a_child(lambda: np.savez(weights, **place.weights())) == 0
    tries = []
    for name in names:
        choose = random.Random(f"{seed} {name}")
        for index, moment in enumerate(kill.chosen(choose, clean["moments"], count)):
            late = choose.uniform(0.01, _LATE_S) if index % 2 else 0.0
            number = signal.Signals[name]

            def attempt(_: int, moment: int = moment, late: float = late, number: signal.Signals = number) -> dict:
                return tried(place, weights, moment, late, number)

            tries.append(tried_again(attempt, seconds_of))
    return {"clean": clean, "tries": tries}


if __name__ == "__main__":
    of, drawn_from, how_many, *by = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(of), int(drawn_from), int(how_many), *by)))

"""What each setting of `input` changes in the batches; one of speed or memory changes that, and no image."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from beam_jobs.errors import FeedlineError
from beam_jobs.ingest import run as run_ingest
from tests.make_images import flipped
from tests.settings.sources import CATS, DOGS, make_source
from tests.settings.table import Row, config_of, row
from tests.settings.tiny_model import job_of
from tests.trainer.batches import arguments
from tests.trainer.input.test_service import service
from trainer.input.batches import VALID
from trainer.input.index import RecordIndex
from trainer.input.order import Order
from trainer.input.parse import KEY
from trainer.input.position import Host
from trainer.input.windowed_reader import plan_windows, read_windows
from trainer.input_fn import make_dataset
from trainer.job import fit
from trainer.options import InputOptions

__all__ = ["service"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HALF = (CATS + DOGS) // 2


@dataclasses.dataclass(frozen=True)
class Fed:
    """What the input pipeline of some settings delivers; every pass is one epoch.

    Attributes:
      path: of a dataset of this value's own.
      options: of its input.
      config: of the whole.
    """

    path: Path
    config: Any

    @property
    def options(self) -> InputOptions:
        return self.config.input

    def dataset(self, training: bool) -> tf.data.Dataset:
        return make_dataset(str(self.path), "train" if training else "eval", self.options, training)

    @cached_property
    def train(self) -> list[Any]:
        """Batches of an epoch of training: (features, labels)."""
        return list(self.dataset(training=True))

    @cached_property
    def eval(self) -> list[Any]:
        """Batches of evaluation."""
        return list(self.dataset(training=False))

    @property
    def error(self) -> str:
        """What keeps an epoch of training from its end; empty when nothing does."""
        try:
            return "" if self.train else "no batch"
        except (FeedlineError, tf.errors.OpError) as error:
            return type(error).__name__

    @cached_property
    def weights(self) -> bytes:
        """What an epoch of training makes of a model."""
        model, _ = fit(job_of(self.path, self.config))
        return b"".join(np.asarray(value).tobytes() for value in model.get_weights())

    @cached_property
    def second_pass(self) -> int | str:
        """Images of evaluation once the shards are gone, or what ends it."""
        again = self.dataset(training=False)
        assert sum(len(labels) for _, labels in again) == HALF
        shutil.rmtree(self.path / "Split-eval")
        try:
            return sum(len(labels) for _, labels in again)
        except tf.errors.OpError as error:
            return type(error).__name__

    @cached_property
    def threads(self) -> int:
        """Threads that a second epoch under way adds to this process."""
        first = iter(self.dataset(training=True))  # the first of a process starts threads of TensorFlow's own
        next(first)
        before = thread_ids()  # not their number: those of an iterator that is gone end when they like
        second = iter(self.dataset(training=True))
        next(second)
        return len(thread_ids() - before)


def thread_ids() -> set[int]:
    """Returns the threads of this process, once none has come or gone for a second."""
    seen: list[set[int]] = [set()]
    while seen[-10:] != seen[-1:] * 10:
        time.sleep(0.1)
        seen.append({thread.id for thread in psutil.Process().threads()})
    return seen[-1]


def keys(fed: Fed) -> list[str]:
    """In the order of training."""
    return [key.decode() for features, _ in fed.train for key in features[KEY].numpy()]


def eval_keys(fed: Fed) -> list[str]:
    return [key.decode() for features, _ in fed.eval for key in features[KEY].numpy() if key]


def seen(fed: Fed) -> list[str]:
    return sorted(keys(fed))


def images(fed: Fed) -> dict[str, bytes]:
    """Key -> pixels of training."""
    return _pixels(fed.train)


def eval_images(fed: Fed) -> dict[str, bytes]:
    return _pixels(fed.eval)


def _pixels(batches: list[Any]) -> dict[str, bytes]:
    pairs = ((features[KEY].numpy(), features["image"].numpy()) for features, _ in batches)
    return {key.decode(): image.tobytes() for some, pixels in pairs for key, image in zip(some, pixels, strict=True)}


def delivered(fed: Fed) -> tuple[list[str], dict[str, bytes]]:
    return keys(fed), images(fed)


def shapes(fed: Fed) -> set[tuple[int, ...]]:
    return {tuple(features["image"].shape) for features, _ in fed.train}


def eval_sizes(fed: Fed) -> list[int]:
    return [len(labels) for _, labels in fed.eval]


def classes(fed: Fed) -> Counter[str]:
    return Counter(key.split("/")[1] for key in keys(fed))


def names(fed: Fed) -> set[str]:
    return set(fed.train[0][0])


def is_ragged(fed: Fed) -> bool:
    return isinstance(fed.train[0][0]["extra/city"], tf.RaggedTensor)


def cache_files(fed: Fed) -> list[str]:
    assert fed.second_pass == HALF
    return sorted(path.parts[-3] for path in fed.path.parent.glob("*/*/records.tfrecord"))


def remote_reads(fed: Fed) -> Counter[int]:
    """How many shards of a bucket are read at a time. The graph says it; nothing is read."""
    index = RecordIndex(
        files=("gs://bucket/0", "gs://bucket/1"),
        shard=np.array([0, 1], np.int32),
        offset=np.zeros(2, np.int64),
        label=np.zeros(2, np.int64),
        record_bytes=100.0,
    )
    order = Order(records=2, lanes=1, window=2, run=1, seed=0, kind="none")
    return arguments(
        read_windows(plan_windows(order, 0, 2, Host()), index, fed.options), "ParallelInterleaveDatasetV4", -5
    )


ROWS = [
    row("input.image_side_px", 12, shapes, ({(4, 8, 8, 3)}, {(4, 12, 12, 3)}), first=(8,)),
    row("input.batch_size", 8, shapes, ({(4, 8, 8, 3)}, {(8, 8, 8, 3)}), first=(4,), same=keys),
    row("input.train_ops", "decode|resize(8)", images, same=keys),
    row("input.eval_ops", "decode|resize(8)", eval_images, same=images),
    row("input.device_ops", "flip|mixup(0.4)", lambda fed: fed.weights, same=delivered),
    row("input.seed", 1, keys, same=seen),
    row("input.shuffle", "global", keys, same=seen, given={"input.lanes": 2, "input.shuffle_mb": 0.02}),
    row("input.shuffle_mb", 0.01, keys, same=seen),
    row("input.lanes", 4, keys, same=seen, given={"input.shuffle_mb": 0.01}),
    row("input.balance", {"cat": 0.25, "dog": 0.75}, classes, lambda _, after: after == {"cat": 4, "dog": 12}),
    row("input.cache", "memory", lambda fed: fed.second_pass, ("NotFoundError", HALF), first=("none",), same=images),
    row("input.cache_mb", 0.0001, lambda fed: fed.second_pass, (HALF, "NotFoundError"), given={"input.cache": "auto"}),
    row(
        "input.cache_dir",
        "b",
        cache_files,
        (["a"], ["b"]),
        first=("a",),
        given={"input.cache": "disk"},
        same=eval_images,
    ),
    row("input.columns", ["price"], lambda fed: "extra/price" in names(fed), (False, True), same=delivered),
    row("input.columns_form", "dense", is_ragged, (True, False), given={"input.columns": ["city"]}, same=delivered),
    row("input.targets", ["mask"], lambda fed: "mask" in names(fed), (False, True), same=keys),
    row(
        "input.pad_batches",
        True,
        lambda fed: (set(eval_sizes(fed)), VALID in fed.eval[0][0]),
        (({5, 1}, False), ({5}, True)),
        given={"input.batch_size": 5},
        same=eval_keys,
    ),
    row("input.max_corrupt_records", 1, lambda fed: fed.error, ("DataLossError", ""), given={"damaged": True}),
    row(
        "input.service",
        "SERVICE",
        lambda fed: fed.dataset(training=True).cardinality().numpy() > 0,
        (True, False),
        same=seen,
    ),
    row(
        "input.ordered", False, lambda fed: fed.dataset(training=True).options().deterministic, (True, False), same=seen
    ),
    row(
        "input.autotune",
        True,
        lambda fed: set(arguments(fed.dataset(training=True), "ParallelMapDatasetV2", -1)),
        ({2}, {-1}),
        same=delivered,
    ),
    row(
        "input.readers", 3, remote_reads, lambda before, after: set(before) == {8} and set(after) == {3}, same=delivered
    ),
    row("input.threads", 9, lambda fed: fed.threads, lambda before, after: after - before == 9 - 2, same=delivered),
    row(
        "input.parse_batch",
        5,
        lambda fed: 5 in arguments(fed.dataset(training=True), "BatchDatasetV2", 1),
        (False, True),
        same=delivered,
    ),
    row(
        "input.prefetch_batches",
        7,
        lambda fed: 7 in arguments(fed.dataset(training=True), "PrefetchDataset", 1),
        (False, True),
        same=delivered,
    ),
]


USUAL = {
    "input.image_side_px": 8,
    "input.batch_size": 4,
    "input.threads": 2,
    "input.cache": "none",
    "train.epochs": 1,
    "train.jit": "never",
    "train.model": "tests.settings.tiny_model.build",
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 images to train and 16 to evaluate, with masks, `price` and `city`, which one of them lacks."""
    root = tmp_path_factory.mktemp("input")
    settings = {
        "ingest.source": str(make_source(root / "source") / "images.csv"),
        "ingest.columns.mask": "mask",
        "ingest.columns.split": "part",
        "ingest.columns.extra": ["price", "city"],
        "ingest.shards": 2,
    }
    ingest = config_of({"root": "unused", **settings}).ingest
    assert ingest
    run_ingest(dataclasses.replace(ingest, out=str(root / "dataset")))
    return root / "dataset"


@pytest.fixture
def run(published: Path, service: str, tmp_path: Path) -> Callable[[Mapping[str, Any]], Fed]:
    def feed(settings: Mapping[str, Any]) -> Fed:
        given = {**USUAL, **settings}
        path = Path(shutil.copytree(published, tmp_path / str(len(os.listdir(tmp_path))) / "dataset"))
        if given.pop("damaged", False):
            shard = min((path / "Split-train").iterdir())
            shard.write_bytes(flipped(shard.read_bytes(), 100))
        if given.get("input.service"):
            given["input.service"] = service
        if given.get("input.cache_dir"):
            given["input.cache_dir"] = str(path.parent / given["input.cache_dir"])
        return Fed(path=path, config=config_of({"root": "unused", "dataset": "unused", **given}))

    return feed


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_setting_of_the_input_changes_the_batches(row: Row, run: Callable[[Mapping[str, Any]], Fed]):
    row.check(run)

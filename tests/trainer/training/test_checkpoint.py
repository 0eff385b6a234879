from __future__ import annotations

import dataclasses
import gc
import json
import logging
import resource
import sys

import keras
import ml_dtypes
import numpy as np
import pytest

from beam_jobs import storage
from beam_jobs.errors import DiskError, OptionError
from beam_jobs.storage import disk, lock
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import flipped
from trainer.input.position import Position
from trainer.training.checkpoint import (
    INDEX_NAME,
    POSITION_NAME,
    STATE_NAME,
    VARIABLES_NAME,
    Checkpoint,
    Checkpoints,
    assign,
    to_arrays,
)


def checkpoint(step: int) -> Checkpoint:
    arrays = {
        "model/a": np.full([2, 3], step, np.float32),
        "model/count": np.array(step, np.int64),
        "model/half": np.array([1.5, step], ml_dtypes.bfloat16),
    }
    return Checkpoint(arrays=arrays, state={"step": step}, position=Position(epoch=1, records=step))


def test_a_training_whose_lock_another_one_has_writes_and_removes_nothing(tmp_path):
    checkpoints = Checkpoints(f"{SCHEME}://{tmp_path}/work")
    with checkpoints.exclusive():
        checkpoints.save(1, checkpoint(1))
        storage.write_bytes(f"{checkpoints.directory}-lock", lock.Owner(host="far", machine="far").to_bytes())
        for change in (lambda: checkpoints.save(2, checkpoint(2)), checkpoints.clear):
            with pytest.raises(
                OptionError, match=r"work is in use by another training: process \d+ .*; this process was stopped"
            ):
                change()
    checkpoints.save(3, checkpoint(3))  # the end of the block ends the check, too
    assert [path.name for path in sorted((tmp_path / "work").iterdir())] == [f"checkpoint-0000000{n}" for n in (1, 3)]


@pytest.fixture
def saved(tmp_path) -> Checkpoints:
    checkpoints = Checkpoints(str(tmp_path / "training"))
    for step in (3, 20, 100):
        checkpoints.save(step, checkpoint(step))
    return checkpoints


def test_what_is_saved_comes_back_as_it_was(saved):
    found, wanted = saved.latest(), checkpoint(100)
    assert (found.state, found.position) == (wanted.state, wanted.position)
    assert list(found.arrays) == list(wanted.arrays)
    for name, value in wanted.arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(found.arrays[name], value)


def test_the_newest_two_are_kept_and_their_position_is_a_small_file_of_its_own(saved, tmp_path):
    directory = tmp_path / "training"
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoint-00000020", "checkpoint-00000100"]
    newest = directory / "checkpoint-00000100"
    assert {path.name for path in newest.iterdir()} == {INDEX_NAME, POSITION_NAME, STATE_NAME, VARIABLES_NAME}
    assert json.loads((newest / POSITION_NAME).read_text()) == {"epoch": 1, "records": 100}


@pytest.mark.parametrize("count", [1, 9])
def test_room_is_needed_for_the_two_that_are_kept_and_the_one_that_is_written(saved, tmp_path, count):
    there, free = disk.used_bytes(str(tmp_path)), disk.free_bytes(str(tmp_path))
    (tmp_path / "training" / "checkpoint-00000130").mkdir()  # one that was begun: nothing of it counts
    saved.check_room((free + there) // 3 - (1 << 28), count)
    with pytest.raises(DiskError, match="not enough room for the checkpoints"):
        saved.check_room((free + there) // 3 + (1 << 28), count)


def test_no_more_is_asked_for_than_a_short_training_writes(tmp_path):
    free = disk.free_bytes(str(tmp_path))
    new = Checkpoints(str(tmp_path / "new"))
    new.check_room(free // 2 - (1 << 28), 2)
    with pytest.raises(DiskError, match="not enough room for the checkpoints"):
        new.check_room(free // 2 + (1 << 28), 2)


@pytest.mark.parametrize(
    ("name", "how"),
    [(INDEX_NAME, "absent"), (INDEX_NAME, "cut off"), (POSITION_NAME, "absent"), (VARIABLES_NAME, "flipped")],
)
def test_of_a_damaged_checkpoint_the_one_before_counts(saved, tmp_path, caplog, name, how):
    path = tmp_path / "training" / "checkpoint-00000100" / name
    content = path.read_bytes()
    if how == "absent":
        path.unlink()
    elif how == "cut off":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(flipped(content, len(content) // 2))
    with caplog.at_level(logging.WARNING):
        assert saved.latest().state == {"step": 20}
    assert "checkpoint-00000100 is skipped" in caplog.text


def test_a_writer_that_dies_leaves_the_one_before(saved, monkeypatch):
    def die(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", die)
    with pytest.raises(KeyboardInterrupt):
        saved.save(100, checkpoint(100))  # over the newest: it is not to be trusted any more
    with pytest.raises(KeyboardInterrupt):
        saved.save(120, checkpoint(120))
    assert saved.latest().state == {"step": 20}


def test_a_disk_that_does_not_take_a_checkpoint_is_said_in_one_line(saved, monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = dataclasses.replace(checkpoint(120), arrays={"model/a": np.zeros(250_000, np.float32)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DiskError) as caught:
            saved.save(120, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = str(caught.value)
    assert said.startswith(f"{saved.directory}: File too large while writing a checkpoint (about 1.0 MB are needed, ")
    assert "\n" not in said
    assert saved.latest().state == {"step": 100}
    del caught
    gc.collect()
    assert not printed, printed


def test_without_any_there_is_none_and_clearing_leaves_none(saved, tmp_path):
    assert Checkpoints(str(tmp_path / "elsewhere")).latest() is None
    saved.clear()
    assert saved.latest() is None
    assert not (tmp_path / "training").exists()


def dense(units: int, name: str | None = None) -> keras.Model:
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(units, name=name)])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            dense(4),
            r"dense.kernel has the shape \(2, 3\) in the checkpoint and \(2, 4\) in the model; remove the checkpoints",
        ),
        (dense(3, "head"), "has the shape None in the checkpoint and"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(other, message):
    if not other.built:
        other.build([None, 2])
    before = [np.array(value) for value in other.get_weights()]
    with pytest.raises(OptionError, match=message):
        assign(other.variables, to_arrays(dense(3).variables, "model"), "model")
    for value, wanted in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize(("one", "other"), [("adamw", "adam_w"), ("SGD", "sgd")])
def test_optimizers_take_their_state_back_under_the_names_of_another_version_of_keras(one, other):
    first, second = keras.optimizers.AdamW(name=one), keras.optimizers.AdamW(name=other)
    for optimizer in (first, second):
        optimizer.build(dense(3).trainable_variables)
    first.iterations.assign(7)
    assign(second.variables, to_arrays(first.variables, "optimizer"), "optimizer")
    assert int(second.iterations) == 7

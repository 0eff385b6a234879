from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from tests.engines.flink_processes import free_ports, wait_until
from tests.trainer.batches import graph, ops_of
from tests.trainer.workers.task import (
    EPOCHS,
    EVALUATED,
    OPTIONS,
    STEPS,
    build_model,
    make_greys,
    train,
    training_batches,
)
from trainer.evaluation.intervals import Tally, figure
from trainer.input.position import Host

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[3]
WAIT_S = 240  # some 40 s on two idle cores


def configs(count: int) -> list[str]:
    """The `TF_CONFIG` of every worker of a cluster on this machine."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    return [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(count)]


def environment_with(config: str) -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
    plain = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    return plain | quiet | ({"TF_CONFIG": config} if config else {})


def start(name: str, dataset: Path, out: Path, label: str, config: str = "", at_once: int = 1) -> subprocess.Popen:
    """Starts a training; what it prints and finds goes to `out`."""
    logs, result = out / name, out / f"{label}.json"
    command = [sys.executable, "-m", "tests.trainer.workers.train", name, str(dataset), str(logs), str(result)]
    environment = environment_with(config)
    with (out / f"{label}.txt").open("w") as stream:
        return subprocess.Popen(
            [*command, str(at_once)], cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )


def finish(processes: dict[str, subprocess.Popen], out: Path) -> dict[str, dict]:
    """Waits for all; one that fails or takes too long ends the others, which would wait for it."""
    until = time.monotonic() + WAIT_S
    try:
        while any(item.poll() is None for item in processes.values()) and time.monotonic() < until:
            if any(item.poll() for item in processes.values()):
                break
            time.sleep(0.1)
    finally:
        for item in processes.values():
            item.kill()
            item.wait()
    for label, item in processes.items():
        assert item.returncode == 0, f"{label}: {(out / f'{label}.txt').read_text()[-4000:]}"
    return {label: json.loads((out / f"{label}.json").read_text()) for label in processes}


@pytest.fixture(scope="module")
def greys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("greys")
    return make_greys(base / "source", base / "dataset")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def trainings(greys: Path, out: Path) -> dict[str, dict]:
    """The same training on one device, on two devices and as two processes."""
    started = enumerate(configs(2))
    processes = {f"worker{index}": start("multi_worker", greys, out, f"worker{index}", told) for index, told in started}
    processes["mirrored"] = start("mirrored", greys, out, "mirrored", at_once=3)
    try:
        one = train(None, str(greys), str(out / "default"))
    except BaseException:
        for item in processes.values():
            item.kill()
        raise
    return {"one": one, **finish(processes, out)}


def test_every_step_sees_the_same_records_on_any_number_of_replicas(trainings):
    one = [step[0] for step in trainings["one"]["seen"]]
    mirrored = trainings["mirrored"]["seen"]
    first, second = trainings["worker0"]["seen"], trainings["worker1"]["seen"]
    assert len(one) == len(mirrored) == len(first) == 2 * STEPS
    for step, greys in enumerate(one):
        assert len(set(greys)) == OPTIONS.batch_size
        assert [len(part) for part in mirrored[step]] == [8, 8]
        assert mirrored[step][0] + mirrored[step][1] == greys
        assert [len(first[step][0]), len(second[step][0])] == [8, 8]
        assert sorted(first[step][0] + second[step][0]) == sorted(greys)


@pytest.mark.parametrize("other", ["mirrored", "worker1"])
def test_any_number_of_replicas_gives_the_same_weights_and_metrics(trainings, other):
    one, many = trainings["one"], trainings[other]
    for mine, theirs in zip(one["weights"], many["weights"], strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-5)
    assert many["history"].keys() == one["history"].keys()
    for name, values in one["history"].items():
        np.testing.assert_allclose(many["history"][name], values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_training_moves_the_weights(trainings):
    pairs = zip(trainings["one"]["weights"], build_model().get_weights(), strict=True)
    assert min(np.abs(np.subtract(*pair)).max() for pair in pairs) > 1e-3


def test_callbacks_are_told_what_keras_tells_them(trainings):
    one, worker, mirrored = (trainings[name] for name in ("one", "worker0", "mirrored"))
    kinds = [[event[:2] for event in run["batches"]] for run in (one, worker, mirrored)]
    assert kinds[0] == kinds[1]
    assert kinds[0].count(["validation"]) == EPOCHS
    # Three steps at a time: 0-2 and the two that are left.
    assert kinds[2] == [["begin", 0], ["end", 2], ["begin", 3], ["end", 4], ["validation"]] * EPOCHS
    losses = [[event[2] for event in run["batches"] if event[0] == "end"] for run in (one, worker)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert [epoch for epoch, _ in worker["epochs"]] == [epoch for epoch, _ in one["epochs"]] == list(range(EPOCHS))
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "val_accuracy_low"} <= set(worker["epochs"][0][1])


def test_each_worker_writes_summaries_of_its_part_and_the_first_of_the_split(trainings, out, greys):
    assert manifest.load(str(greys)).split("eval").records == EVALUATED
    assert EVALUATED % 2 != 0
    for name, directories in {
        "default": {"worker-0-of-1", "all"},
        "mirrored": {"worker-0-of-1", "all"},
        "multi_worker": {"worker-0-of-2", "worker-1-of-2", "all"},
    }.items():
        found = {path.parent.name for path in (out / name).glob("*/events.out.tfevents.*")}
        assert {item for item in found if not item.startswith("keras")} == directories
    whole = summaries(out / "multi_worker" / "all")
    assert whole == pytest.approx(summaries(out / "default" / "all"), rel=1e-4)
    assert whole["evaluation/accuracy", 1] == pytest.approx(trainings["one"]["epochs"][1][1]["val_accuracy"])
    parts = [summaries(out / "multi_worker" / f"worker-{index}-of-2")["evaluation/loss", 1] for index in (0, 1)]
    assert parts[0] != parts[1]


def summaries(directory: Path) -> dict[tuple[str, int], float]:
    found = {}
    for path in directory.glob("events*"):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_after_an_epoch_all_replicas_have_observed_the_same(trainings):
    means = trainings["mirrored"]["means"]
    assert means[0] == means[1]
    # Two steps with a momentum of 0.5, over greys of which each replica saw half: the mean of what both observed.
    assert means[0] == pytest.approx([np.mean([0.75 * 10, 0.75 * 30])])


@pytest.mark.parametrize(
    ("training", "description"),
    [
        ("one", "default: global batch 16, per host 16, per replica 16 (hosts 1, replicas 1)"),
        ("mirrored", "mirrored: global batch 16, per host 16, per replica 8 (hosts 1, replicas 2)"),
        ("worker1", "multi_worker: global batch 16, per host 8, per replica 8 (hosts 2, replicas 2)"),
    ],
)
def test_the_description_has_the_global_and_the_replica_batch_size(trainings, training, description):
    assert trainings[training]["description"] == f"strategy {description}"


def test_a_worker_that_is_gone_ends_the_others_with_one_line(tmp_path):
    command = [sys.executable, "-u", "-m", "tests.trainer.workers.endless"]
    with ExitStack() as stack:
        workers = []
        for index, config in enumerate(configs(2)):
            out = stack.enter_context((tmp_path / f"{index}.txt").open("w"))
            environment = environment_with(config)
            workers.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT))
            stack.callback(workers[-1].kill)
        log = tmp_path / "0.txt"
        wait_until(lambda: "epoch 3" in log.read_text() or workers[0].poll() is not None, WAIT_S)
        workers[1].kill()
        assert workers[0].wait(WAIT_S) == 1
    said = [line for line in log.read_text().splitlines() if line.startswith("FeedlineError")]
    assert len(said) == 1
    assert said[0].startswith(
        "FeedlineError: another worker of the training has ended, see its log; start all workers again"
    )


def test_ragged_columns_reach_two_replicas_without_a_sparse_tensor(trainings, greys):
    ops = trainings["mirrored"]["ops"]
    assert {"RaggedTensorFromVariant", "RebatchDatasetV2", "IteratorGetNext"} <= set(ops)
    assert not [name for name in ops if "Sparse" in name and name.startswith(("Deserialize", "Serialize"))]
    # What the check would find: the same column as a sparse tensor.
    sparse = training_batches(str(greys), Host()).map(lambda inputs, label: (inputs["tags"].to_sparse(), label))
    assert "DeserializeSparse" in ops_of(graph(sparse.map(lambda tags, label: (tf.sparse.to_dense(tags), label))))


def test_eight_devices_with_the_options_of_an_accelerator_count_every_image_once(greys, tmp_path):
    """bfloat16, several steps an execution, batches ahead, and an evaluation whose last batch is one of 9 images."""
    command = [sys.executable, "-m", "tests.trainer.workers.eight", str(greys), str(tmp_path / "found")]
    done = subprocess.run(command, cwd=ROOT, env=environment_with(""), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found").read_text())
    assert "per replica 2 (hosts 1, replicas 8)" in found["words"]
    assert found["step"] == 12
    assert found["executions"] == [2, 5] * 2, "no return to Python between the steps of an execution"
    assert found["dtypes"] == ["bfloat16 float32"]
    history = found["history"]
    assert all(math.isfinite(value) for value in (*history["loss"], *history["val_loss"]))
    for share, low, high in zip(*(history[f"val_accuracy{name}"] for name in ("", "_low", "_high")), strict=True):
        wilson = figure(Tally.from_values(np.arange(EVALUATED) < round(share * EVALUATED), np.ones(EVALUATED)), 0.95)
        assert (share, low, high) == pytest.approx((wilson.value, wilson.low, wilson.high)), "of 25 images"

from __future__ import annotations

import json
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from beam_jobs.common.settings import fields
from beam_jobs.errors import OptionError
from tests.trainer.workers.task import build_model
from trainer.input.position import Host
from trainer.input_fn import make_dataset
from trainer.options import InputOptions, TrainOptions
from trainer.training.fit import fit
from trainer.training.strategy import (
    CLUSTER_VARIABLE,
    STRATEGIES,
    check_batch,
    check_gpus,
    distribute,
    make_strategy,
    parse_cluster,
    prefetch,
)

pytestmark = pytest.mark.filterwarnings("ignore")
TWO = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}


def config(cluster=TWO, **task) -> dict:
    return {"cluster": cluster, "task": {**FIRST, **task}}


def numbers(host: Host, size: int | None = 4) -> tf.data.Dataset:
    return tf.data.Dataset.range(12).batch(size or 4, drop_remainder=size is not None)


def test_the_option_offers_what_there_is():
    assert fields(TrainOptions)["strategy"].choices == STRATEGIES
    with pytest.raises(
        OptionError, match=r"there is no strategy 'miror'; did you mean mirrored\? known are default, mir"
    ):
        make_strategy("miror")


def test_without_a_tpu_the_error_names_what_is_missing(monkeypatch):
    for name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        OptionError, match=r"^strategy is tpu and TensorFlow finds no TPU; set TPU_NAME .*libtpu"
    ) as caught:
        make_strategy("tpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("batch_size", "replicas", "nearest"), [(10, 4, "sizes are 8 and 12"), (3, 4, "size is 4")])
def test_a_batch_that_the_replicas_cannot_share_names_the_nearest_sizes(batch_size, replicas, nearest):
    with pytest.raises(
        OptionError,
        match=f"^batch_size {batch_size} is not divisible by the {replicas} replicas; the nearest {nearest}$",
    ):
        check_batch(SimpleNamespace(num_replicas_in_sync=replicas), batch_size)
    assert check_batch(SimpleNamespace(num_replicas_in_sync=8), 8) == 1


def test_each_host_of_a_strategy_that_controls_several_reads_its_own_part(shades):
    given = InputOptions(image_side_px=8, batch_size=8, train_ops="decode|resize(8)", lanes=4)

    class Slice:
        num_replicas_in_sync = 4

        def distribute_datasets_from_function(self, make, options):
            assert options.experimental_per_replica_buffer_size == 1
            parts = [make(tf.distribute.InputContext(2, index, 4)) for index in range(2)]
            return [[features["key"].tolist() for features, _ in part.as_numpy_iterator()] for part in parts]

    def make(host: Host) -> tf.data.Dataset:
        assert not host.runs_python
        return make_dataset(str(shades), "train", given, training=True, host=host)

    parts = distribute(Slice(), make).batches
    assert [{len(keys) for keys in part} for part in parts] == [{2}, {2}]  # each of two hosts has two replicas
    seen = [key for part in parts for keys in part for key in keys]
    assert len(set(seen)) == len(seen) == 96


def test_a_gpu_that_is_missing_is_one_line():
    check_gpus(0)
    with pytest.raises(OptionError, match="^gpus is 2 and TensorFlow finds 0 GPUs here; .* or set gpus to 0 to train"):
        check_gpus(2)


def test_without_an_accelerator_nothing_is_copied_to_one():
    batches = tf.data.Dataset.range(3)
    assert prefetch(batches, 2) is batches


def test_gradients_cannot_be_accumulated_under_a_strategy():
    strategy = make_strategy("mirrored")
    with strategy.scope():
        model = build_model()
        model.compile(keras.optimizers.SGD(gradient_accumulation_steps=3), "sparse_categorical_crossentropy")
    with pytest.raises(OptionError, match="accumulate_steps is 3, which Keras does not support under a strategy"):
        fit(strategy, model, distribute(strategy, numbers), epochs=range(1), steps_per_epoch=1)


@pytest.mark.parametrize(
    ("value", "host", "address"),
    [
        (config(index=1), Host(index=1, count=2), "b:2"),
        (config({**TWO, "chief": ["c:3"]}, index=1), Host(index=2, count=3), "b:2"),
    ],
    ids=["second", "beside a chief"],
)
def test_the_cluster_says_which_host_this_is(value, host, address):
    cluster = parse_cluster(value)
    assert (cluster.host, cluster.address) == (host, address)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "TF_CONFIG has no cluster; set it to a value such as"),
        ({"cluster": TWO}, "TF_CONFIG has no task"),
        (
            config({**TWO, "ps": ["p:1"], "evaluator": ["e:1"]}),
            "cluster of TF_CONFIG has evaluator, ps; multi_worker sup",
        ),
        (config({"worker": []}), r"cluster.worker of TF_CONFIG is \[\]; it must be a list of addresses"),
        (config({"chief": ["a:1", "b:1"]}), "cluster.chief of TF_CONFIG is .*; it must be a list of one address"),
        (config({"worker": ["a:1", "b"]}), "cluster.worker of TF_CONFIG has 'b'; it must be NAME:PORT"),
        (config({"worker": ["a:65536"]}), "has 'a:65536'; it must be NAME:PORT"),
        (config({"worker": ["a:0"]}), "has 'a:0'; it must be NAME:PORT"),
        (
            config({"worker": ["a:1", "a:1"]}),
            "cluster of TF_CONFIG names a:1 twice; every worker needs a different address",
        ),
        (config(type="chief"), "task.type of TF_CONFIG is 'chief'; it must be one of worker"),
        (config(index=2), "task.index of TF_CONFIG is 2; the cluster has 2 tasks of type worker, so it must be 0 to 1"),
        (config(index=True), "task.index of TF_CONFIG is True; the cluster has 2 tasks of type worker"),
        # No JSON at all.
        ("", "strategy is multi_worker and the environment variable TF_CONFIG is not set; set {"),
        ("{worker", "TF_CONFIG is not JSON: Expecting property name .*; set it to a value such as {"),
    ],
)
def test_a_wrong_cluster_is_one_line_that_names_the_part(monkeypatch, value, message):
    monkeypatch.setenv(CLUSTER_VARIABLE, value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(OptionError, match=message) as caught:
        make_strategy("multi_worker")
    assert "\n" not in str(caught.value)


def test_a_worker_that_cannot_start_is_one_line(monkeypatch):
    tf.zeros([1])  # TensorFlow has its devices now, and cannot be given others
    monkeypatch.setenv(CLUSTER_VARIABLE, json.dumps(config({"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, index=1)))
    with pytest.raises(
        OptionError, match=r"^strategy is multi_worker and worker 1 of 2 at 127.0.0.1:2 cannot start: Coll"
    ):
        make_strategy("multi_worker")

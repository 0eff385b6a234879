from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from tests import image_table
from tests.trainer.batches import RANDOM, arguments, graph, ops_of, options, read
from tests.trainer.conftest import ingest_noise
from trainer.input_fn import FOREVER, IMAGE_SEED, KEY, check_options, make_dataset
from trainer.ops import IMAGE


@pytest.fixture(scope="module")
def as_they_are(shades, noise):
    return read(shades, options(shuffle_mb=0.005)), read(noise, options(train_ops=RANDOM))


@pytest.mark.parametrize(
    "change",
    [{"threads": 5, "parse_batch": 7}, {"threads": 1, "parse_batch": 1, "prefetch_batches": 5, "readers": 1}],
    ids=str,
)
def test_speed_settings_change_no_record_and_no_pixel(shades, noise, as_they_are, change):
    assert read(shades, options(shuffle_mb=0.005, **change)) == as_they_are[0]
    assert read(noise, options(train_ops=RANDOM, **change)) == as_they_are[1]


def test_the_global_seed_of_tensorflow_changes_nothing(shades):
    orders = []
    for number in (1, 2):
        tf.random.set_seed(number)
        orders.append(read(shades, options()))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("training", [True, False])
def test_shapes_and_types_are_known_before_anything_is_read(dataset, training):
    rows = 4 if training else None
    spec = make_dataset(str(dataset), "train", options(batch_size=4), training).element_spec
    assert spec == (
        {
            IMAGE: tf.TensorSpec((rows, 8, 8, 3), tf.uint8),
            KEY: tf.TensorSpec((rows,), tf.string),
            IMAGE_SEED: tf.TensorSpec((rows, 2), tf.int32),
        },
        tf.TensorSpec((rows,), tf.int64),
    )


# --- ops and buffers


def test_options_limit_threads_and_buffers(shades):
    given = options(threads=3, prefetch_batches=4, parse_batch=9)
    stream = make_dataset(str(shades), "train", given, training=True, epochs=FOREVER)
    set_options = stream.options()
    assert set_options.threading.private_threadpool_size == 3
    assert set_options.autotune.enabled is False
    assert set_options.experimental_optimization.inject_prefetch is False
    # One window is read ahead, and the finished batches.
    assert arguments(stream, "PrefetchDataset", 1) == {1: 1, 4: 1}
    maps = arguments(stream, "ParallelMapDatasetV2", -1)
    assert maps == {3: maps[3]}
    assert maps[3] >= 2
    # No stage keeps records of its own beside the windows.
    assert not [
        op for op in ops_of(graph(stream)) if ("Shuffle" in op and "Dataset" in op) or op.startswith("CacheDataset")
    ]


def test_what_cannot_be_read_is_refused_before_any_batch(dataset, tmp_path):
    with pytest.raises(SourceError, match=r"none is not a dataset.*dataset\.json"):
        make_dataset(str(tmp_path / "none"), "train", options(), training=True)
    with pytest.raises(OptionError, match=r"no split 'valid'; it has train, eval"):
        make_dataset(str(dataset), "valid", options(), training=True)
    with pytest.raises(OptionError, match=r"no op 'flop'; did you mean flip"):
        make_dataset(str(dataset), "train", options(train_ops="decode|flop"), training=True)
    image_table.files(dataset)[0].unlink()
    with pytest.raises(CorruptDataset, match=r"images/part-.*\.parquet cannot be read"):
        make_dataset(str(dataset), "train", options(), training=True)
    (dataset / "dataset.json").write_text("{")
    with pytest.raises(CorruptDataset, match=r"dataset\.json cannot be used"):
        make_dataset(str(dataset), "train", options(), training=True)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("decode_random_crop(8)", r"decode_random_crop\(8\)"),  # random
        ("decode|resize(8)|flip", r"decode\|resize\(8\)\|flip"),
        ("decode", r"^eval_ops 'decode' .*: images differ in size, so add resize\(8\)$"),
    ],
)
def test_evaluation_refuses_random_ops_and_images_of_several_sizes(dataset, ops, message):
    with pytest.raises(OptionError, match=message):
        make_dataset(str(dataset), "eval", options(eval_ops=ops), training=False)


@pytest.mark.parametrize(
    ("name", "training", "chain"),
    [("train_ops", True, "decode|resize(16)"), ("eval_ops", False, "decode|resize_short(8)")],
)
def test_ops_that_do_not_end_at_the_side_of_the_options_are_refused(dataset, name, training, chain):
    given = options(**{name: chain})
    message = f"^{name} {re.escape(repr(chain))} give images of shape"
    with pytest.raises(OptionError, match=message):
        make_dataset(str(dataset), "train", given, training)
    with pytest.raises(OptionError, match=message):
        check_options(given)


def test_device_ops_of_another_side_are_refused_without_a_dataset():
    with pytest.raises(OptionError, match="^device_ops 'random_crop.6.' give images of 6 pixels; image_side_px is 8"):
        check_options(options(device_ops="random_crop(6)"))


@pytest.mark.parametrize("training", [True, False])
def test_images_of_the_size_of_the_model_need_no_op_that_sets_it(shades, training):
    given = options(image_side_px=12, train_ops="decode|flip|cutout(3)", eval_ops="decode")
    check_options(given)
    assert make_dataset(str(shades), "train", given, training).element_spec[0][IMAGE].shape[1:] == (12, 12, 3)


def test_chains_over_stored_pixels_are_checked_by_their_size():
    given = options(train_ops="decode|random_crop(8)", eval_ops="decode")
    check_options(given, raw_side=8)
    with pytest.raises(OptionError, match="^eval_ops 'decode' give images of shape"):
        check_options(given, raw_side=16)


# --- many shards


class OpenFiles(threading.Thread):
    """Looks all the time how many files are open: a window is read between two batches."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.looks, self.stopped = 0, 0, threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            self.most, self.looks = max(self.most, open_files()), self.looks + 1

    def __enter__(self) -> OpenFiles:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files as Linux does")
@pytest.mark.parametrize("change", [{}, {"shuffle": "global"}], ids=str)
def test_open_files_do_not_grow_with_the_number_of_shards(many, change):
    stream = make_dataset(str(many), "train", options(batch_size=10, readers=4, **change), True, epochs=4)
    before = open_files()
    with OpenFiles() as watched:
        assert sum(len(label) for _, label in stream) == 800
    assert watched.looks > 100
    assert watched.most - before <= 4 + 2


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """200 tiny images in 160 shards."""
    out = ingest_noise(tmp_path_factory, {"noise": 200}, shards=160, side_px=8)
    assert len(list((out / "Split-train").iterdir())) == 160
    return out


def test_tf_data_chooses_on_demand_within_a_budget(shades):
    given = options(autotune=True, shuffle_mb=7, batch_size=4)
    stream = make_dataset(str(shades), "train", given, training=True, epochs=FOREVER)
    assert (stream.options().autotune.enabled, stream.options().autotune.ram_budget) == (True, 7_000_000)
    assert set(arguments(stream, "ParallelMapDatasetV2", -1)) == {tf.data.AUTOTUNE}
    assert read(shades, given) == read(shades, options(shuffle_mb=7, batch_size=4))


def test_no_function_of_ours_is_rewritten(shades):
    before = set(sys.modules)
    make_dataset(str(shades), "train", options(train_ops="decode_random_crop(8)|flip|cutout(3)"), training=True)
    assert not [name for name in sys.modules.keys() - before if "autograph" in name]


def test_a_function_of_the_user_is_rewritten_as_ever(shades):
    def brighter(features, label):
        if tf.reduce_any(label > 0):  # a branch on a tensor
            label = label + 10
        return features[KEY], label

    batches = make_dataset(str(shades), "train", options(batch_size=96), training=False).map(brighter)
    ((keys, labels),) = batches
    assert sorted({int(label) for label in labels}) == [10, 11]
    assert len(keys) == 96

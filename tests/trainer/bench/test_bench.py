from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.conftest import keys_of
from trainer.bench import compare, naive_dataset, tutorial_dataset
from trainer.bench.meter import Cost, Subject, dataset_subject, measure_alternately, sample
from trainer.bench.stages import op_names, op_text, unfuse_crop
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import IMAGE, Decode, DecodeRandomCrop, Flip, RandomCropResize, parse_ops
from trainer.options import InputOptions


def options(**values) -> InputOptions:
    return InputOptions(**{"image_side_px": 8, "batch_size": 10, "threads": 2, **values})


@pytest.mark.parametrize("baseline", [naive_dataset, tutorial_dataset])
def test_the_baselines_deliver_the_same_images_labels_and_numbers(shades, baseline):
    given = options(train_ops="decode|resize(8)", batch_size=12)
    ours = make_dataset(str(shades), "train", given, training=True, epochs=FOREVER)
    one_epoch = list(itertools.islice(ours.as_numpy_iterator(), 8))
    theirs = list(itertools.islice(baseline(str(shades), "train", given).as_numpy_iterator(), 8))
    assert [len(label) for _, label in one_epoch] == [len(label) for _, label in theirs] == [12] * 8
    greys = [zip(features[IMAGE].mean(axis=(1, 2, 3)), label, strict=True) for features, label in one_epoch]
    seen = sorted(
        (round(float(image.mean() * 255), 3), label)
        for images, labels in theirs
        for image, label in zip(images, labels, strict=True)
    )
    assert sorted(itertools.chain(*greys)) == seen == [(float(grey), int(grey >= 48)) for grey in range(96)]


def test_the_naive_pipeline_is_sequential_and_not_tuned(shades):
    naive = naive_dataset(str(shades), "train", options(batch_size=5))
    assert naive.element_spec == (tf.TensorSpec((None, 8, 8, 3), tf.float32), tf.TensorSpec((None,), tf.int64))
    assert naive.options().autotune.enabled is False
    images = np.concatenate([images for images, _ in itertools.islice(naive.as_numpy_iterator(), 20)])
    greys = [int(key[-7:-4]) for key in keys_of(shades, "train")]
    # In file order, over and over: 100 images are one epoch and four more.
    np.testing.assert_allclose(images[:, 0, 0, 0] * 255, greys + greys[:4], atol=1e-4)


def test_the_pipeline_of_the_guides_shuffles_and_lets_tensorflow_decide(shades):
    tutorial = tutorial_dataset(str(shades), "train", options(batch_size=96))
    assert tutorial.element_spec[0] == tf.TensorSpec((None, 8, 8, 3), tf.float32)
    assert tutorial.options().autotune.enabled is not False
    images = next(tutorial.as_numpy_iterator())[0]
    greys = [int(key[-7:-4]) for key in keys_of(shades, "train")]
    assert [round(grey) for grey in images[:, 0, 0, 0] * 255] != greys


def test_ops_that_mix_images_run_in_the_baselines_too(shades):
    given = options(train_ops="decode|resize(8)|mixup(0.5)", batch_size=96)
    images = next(tutorial_dataset(str(shades), "train", given).as_numpy_iterator())[0]
    greys = images[:, 0, 0, 0] * 255
    assert images.dtype == np.float32
    assert len(set(greys.round(2))) < 96  # of 96 greys that were all different


def test_the_baselines_decode_whole_images_and_crop_afterwards():
    ops = (DecodeRandomCrop(side=8, min_area=0.3), Flip())
    assert unfuse_crop(ops) == (Decode(), RandomCropResize(side=8, min_area=0.3), Flip())
    assert unfuse_crop((Decode(), Flip())) == (Decode(), Flip())


def test_a_spelled_chain_is_the_same_chain():
    chain = "decode|random_crop_resize(8, min_area=0.3)|flip|flip_vertical"
    assert "|".join(map(op_text, parse_ops(chain))) == chain


def test_an_op_that_comes_twice_is_numbered_and_a_long_one_cut():
    assert op_names(parse_ops("decode|resize(8)|resize(8)")) == ["decode", "resize(8) #1", "resize(8) #2"]
    long = "normalize((123.25, 117.5, 104.0), std_rgb=(58.25, 57.5, 57.0))"
    assert op_names(parse_ops(f"decode|resize(8)|{long}"))[-1] == "normalize(...)"


def test_rate_and_cpu_time_count_what_comes_after_the_warm_up(monkeypatch):
    # A clock that moves one second a look. Warm-up of 2 s: looks 0-2, two turns. Then looks 3-11, eight turns.
    clock, cpu = itertools.count().__next__, itertools.count(0, 3).__next__
    monkeypatch.setattr("trainer.bench.meter.time", SimpleNamespace(perf_counter=clock, process_time=cpu))
    sizes = tf.data.Dataset.range(100).map(lambda index: (index, tf.zeros([index + 1])))
    cost = sample(dataset_subject("sizes", sizes), 8.0)
    images = sum(range(3, 11))
    assert cost == Cost(rate=images / 8, cpu_us=3 / images * 1e6)


def test_a_warm_up_lasts_until_the_cache_is_full():
    turns = []

    def start():
        for number in itertools.count():
            turns.append(number)
            yield 1.0

    sample(Subject(name="cache", start=start, warm_images=50), 1e-9)
    assert len(turns) == 51


def test_nothing_of_a_measurement_goes_on_behind_it():
    produced = []

    def images():
        for number in itertools.count():
            produced.append(number)
            yield np.zeros([1])

    dataset = tf.data.Dataset.from_generator(images, output_signature=tf.TensorSpec([1])).prefetch(1_000_000)
    sample(dataset_subject("prefetched", dataset), 0.05)
    count = len(produced)
    threading.Event().wait(0.2)
    assert len(produced) == count > 0


def test_subjects_take_turns_and_the_median_counts():
    order = []

    def subject(name, waits):
        def start():
            order.append(name)
            wait = waits.pop(0)
            while True:
                threading.Event().wait(wait)
                yield 10.0

        return Subject(name=name, start=start)

    told = []
    costs = measure_alternately(
        [subject("a", [0.2, 0.01, 0.01]), subject("b", [0.01] * 3)], 0.04, on_sample=told.append
    )
    assert order == told == ["a", "b"] * 3
    assert costs["a"].rate > 10 / 0.2 * 2


def test_both_rates_come_out_of_a_measurement_even_of_batches_larger_than_the_split(dataset):
    rates = compare(str(dataset), "train", options(batch_size=1000), seconds=0.05)
    assert rates.feedline > 0
    assert rates.naive > 0
    assert rates.ratio == rates.feedline / rates.naive

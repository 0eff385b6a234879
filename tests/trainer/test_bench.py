from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError, SourceError
from tests.trainer.conftest import keys_of
from trainer.bench import Rates, _rate, _unfused, compare, naive_dataset
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import IMAGE, Decode, DecodeRandomCrop, Flip, RandomCropResize
from trainer.options import InputOptions


def options(**values) -> InputOptions:
    return InputOptions(**{"image_side_px": 8, "batch_size": 10, "threads": 2, **values})


def test_the_ratio_says_how_many_times_faster_the_pipeline_is():
    assert Rates(feedline=300.0, naive=120.0).ratio == 2.5


def test_both_pipelines_deliver_the_same_images_labels_and_numbers(shades):
    given = options(train_ops="decode|resize(8)", batch_size=12)
    ours = make_dataset(str(shades), "train", given, training=True, epochs=FOREVER)
    naive = naive_dataset(str(shades), "train", given)
    one_epoch = [list(itertools.islice(dataset.as_numpy_iterator(), 8)) for dataset in (ours, naive)]
    assert [len(label) for _, label in one_epoch[0]] == [len(label) for _, label in one_epoch[1]] == [12] * 8
    greys = [sorted(zip(features[IMAGE].mean(axis=(1, 2, 3)), label, strict=True)) for features, label in one_epoch[0]]
    ours_seen = sorted(itertools.chain(*greys))
    naive_seen = sorted(
        (round(float(image.mean() * 255), 3), label)
        for images, labels in one_epoch[1]
        for image, label in zip(images, labels, strict=True)
    )
    assert ours_seen == naive_seen == [(float(grey), int(grey >= 48)) for grey in range(96)]


def test_the_naive_pipeline_is_the_one_of_the_tutorials(shades):
    naive = naive_dataset(str(shades), "train", options(batch_size=5))
    assert naive.element_spec == (
        tf.TensorSpec((None, 8, 8, 3), tf.float32),
        tf.TensorSpec((None,), tf.int64),
    )
    assert naive.options().autotune.enabled is False
    images = np.concatenate([images for images, _ in itertools.islice(naive.as_numpy_iterator(), 20)])
    greys = [int(key[-7:-4]) for key in keys_of(shades, "train")]
    # In file order, over and over: 100 images are one epoch and four more.
    np.testing.assert_allclose(images[:, 0, 0, 0] * 255, greys + greys[:4], atol=1e-4)


def test_the_naive_pipeline_decodes_whole_images_and_crops_afterwards():
    ops = (DecodeRandomCrop(side=8, min_area=0.3), Flip())
    assert _unfused(ops) == (Decode(), RandomCropResize(side=8, min_area=0.3), Flip())
    assert _unfused((Decode(), Flip())) == (Decode(), Flip())


def test_the_rate_counts_images_after_the_warm_up():
    # A clock that moves one second a look. Warm-up: one look to begin, then one a batch until a quarter of 8 s is over.
    clock = itertools.count().__next__
    sizes = tf.data.Dataset.range(100).map(lambda index: (index, tf.zeros([index + 1])))
    # Warm at 0 + 2: the look at 1 takes a batch, the look at 2 ends it; start 3; looks 4-10 take one each, 11 ends.
    assert _rate(sizes, 8.0, lambda: float(clock())) == sum(range(2, 9)) / 8


def test_both_rates_come_out_of_a_measurement_even_of_batches_larger_than_the_split(dataset):
    rates = compare(str(dataset), "train", options(batch_size=1000), seconds=0.2)
    assert rates.feedline > 0
    assert rates.naive > 0
    assert rates.ratio == rates.feedline / rates.naive


def test_what_is_not_there_cannot_be_measured(dataset, tmp_path):
    with pytest.raises(SourceError, match="is not a dataset"):
        compare(str(tmp_path / "none"), "train", options())
    with pytest.raises(OptionError, match="no split 'test'; it has train, eval"):
        compare(str(dataset), "test", options())

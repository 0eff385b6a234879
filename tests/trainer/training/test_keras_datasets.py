"""`feedline.keras_datasets`: what goes into `model.fit` as it is."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import feedline


def test_splits_go_into_fit_as_they_are_and_twenty_epochs_have_twenty_orders(dataset):
    train, evaluation = feedline.keras_datasets(str(dataset), image_side_px=16, batch_size=4)
    assert train.class_names == evaluation.class_names == ["china", "flower"]
    seen: list[bytes] = []

    def note(images: tf.Tensor) -> tf.Tensor:
        seen.append(images.numpy().sum((1, 2, 3)).tobytes())
        return images

    def noted(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.py_function(note, [images], tf.uint8), images.shape), labels

    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(train.map(noted), validation_data=evaluation, epochs=20, verbose=0).history
    assert len(history["val_accuracy"]) == 20
    assert len(seen) == 20 * len(train)
    assert len({tuple(seen[begin : begin + len(train)]) for begin in range(0, len(seen), len(train))}) == 20


def test_targets_weights_and_lengths_are_those_of_the_dataset(dataset, weighted):
    train, evaluation = feedline.keras_datasets(str(dataset), one_hot=True, image_side_px=16, batch_size=4)
    assert (len(list(train)), len(list(evaluation))) == (len(train), len(evaluation))
    assert train.element_spec[1] == tf.TensorSpec([4, 2], tf.float32)
    (alone,) = feedline.keras_datasets(str(weighted), ["train"], image_side_px=12, batch_size=4)
    assert alone.element_spec[1].dtype == tf.int64
    weights = [weight for _, _, batch in alone.take(len(alone)) for weight in batch.numpy().tolist()]
    assert (weights.count(50.0), weights.count(0.0), len(weights)) == (16, 32, 48)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image_size": 64}, "no setting 'image_size'; did you mean image_side_px"),
        ({}, "has one split, 'train'; ingest it with --splits train=0.8,eval=0.2"),
        ({"splits": ["train", "test"]}, "the dataset has no split 'test'; it has train"),
    ],
)
def test_what_fits_no_dataset_is_one_line_with_a_remedy(weighted, given, message):
    with pytest.raises(feedline.FeedlineError, match=message):
        feedline.keras_datasets(str(weighted), **{"image_side_px": 12, "batch_size": 4, **given})

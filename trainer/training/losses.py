"""Targets, losses and metrics of a training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from beam_jobs.common.strings import unknown
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError
from trainer.input.batches import VALID
from trainer.input.parse import IMAGE_SEED, WEIGHT
from trainer.input_fn import make_dataset
from trainer.ops.base import IMAGE
from trainer.ops.tf_ops import without_autograph
from trainer.options import BALANCED, InputOptions, TrainOptions

MULTI = "multi"


@without_autograph
def keras_datasets(
    path: str, splits: Sequence[str] = (), one_hot: bool = False, **options: Any
) -> tuple[tf.data.Dataset, ...]:
    """Returns splits of a dataset as inputs of `model.fit`: the first shuffled and augmented, the others in order.

    In each epoch of `fit`, the first split has a different order, which is a function of (seed, epoch).

    Examples:
      >>> import keras
      >>> from trainer import keras_datasets
      >>> train, evaluation = keras_datasets("dataset", image_side_px=32, batch_size=8)
      >>> model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
      >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
      >>> history = model.fit(train, validation_data=evaluation, epochs=2, verbose=0)
      >>> sorted(history.history)
      ['accuracy', 'loss', 'val_accuracy', 'val_loss']

    Args:
      path: directory of a published dataset.
      splits: names of the splits, the training split first; empty for the first two of the dataset.
      one_hot: whether a label is float32[classes] instead of a class index; several labels always are float32[classes].
      options: fields of `InputOptions`, such as `image_side_px=96, batch_size=32`.

    Returns:
      a dataset for each split: (images uint8[batch, side, side, 3], labels int64[batch] or float32[batch, classes]),
      with the weights float32[batch] as third element if the dataset has a weight column. `len(dataset)` is the number
      of batches; the attribute `class_names` has the names of the classes by index.

    Raises:
      UsageError: the dataset, a split or an option does not exist, or the images have no labels.
      CorruptDataset: the dataset is damaged.
    """
    input_options = InputOptions(**options)
    dataset = manifest.load(path)
    names = tuple(splits) or tuple(dataset.splits)[:2]
    if dataset.label_kind == "none":
        raise OptionError(f"{path} has no labels to train on; ingest it with a label column, or in class folders")
    if len(names) < 2 and not splits:
        raise OptionError(f"{path} has one split, {names[0]!r}; ingest it with --splits train=0.8,eval=0.2")
    convert = for_keras(len(dataset.labels), dataset.label_kind == MULTI, one_hot=one_hot)
    datasets = []
    for name in names:
        datasets.append(make_dataset(path, name, input_options, training=name == names[0]).map(convert))
        datasets[-1].class_names = list(dataset.labels)
    return tuple(datasets)


def for_keras(classes: int, multi: bool, draws: bool = False, one_hot: bool = True) -> Any:
    """Returns the function that converts elements of `make_dataset` into inputs of `keras.Model.fit`.

    Examples:
      >>> from trainer import InputOptions, for_keras, make_dataset
      >>> train = make_dataset("dataset", "train", InputOptions(image_side_px=32, batch_size=8), training=True)
      >>> images, targets = next(iter(train.map(for_keras(classes=2, multi=False))))
      >>> images.shape, targets.shape
      (TensorShape([8, 32, 32, 3]), TensorShape([8, 2]))

    Args:
      classes: number of classes.
      multi: whether an image may have several labels.
      draws: whether the model also takes `draw`, the image seeds for the random ops on the device.
      one_hot: whether a class index as label becomes float32[classes].

    Returns:
      (features, label) -> (images, targets float32[batch, classes], or int64[batch] without `one_hot`). If the features
      have `weight` or `valid`, their product is the third element, the sample weights float32[batch]. Images are
      uint8[batch, side, side, 3], or with `draws` a dict of them and `draw`. The targets of a label outside of the
      classes, such as -1, are zeros.

    Raises:
      KeyError: raised by the returned function if the features have no `image`, or, with `draws`, no `draw`.
    """

    def convert(features: Mapping[str, tf.Tensor], label: tf.Tensor) -> tuple[Any, ...]:
        images = {name: features[name] for name in (IMAGE, IMAGE_SEED)} if draws else features[IMAGE]
        is_vector = multi or label.dtype.is_floating  # ops that mix images return soft labels
        targets = tf.cast(label, tf.float32) if is_vector else tf.one_hot(label, classes) if one_hot else label
        weights = [features[name] for name in (WEIGHT, VALID) if name in features]
        return (images, targets, math.prod(weights, start=1.0)) if weights else (images, targets)

    return convert


def class_weights(options: TrainOptions, dataset: Manifest, split: str) -> tuple[float, ...] | None:
    """Returns the weight of each class in the loss, in the order of the labels; None for equal weights.

    The weight `balanced` is images / (classes * images of the class) (King and Zeng, 2001), so that the mean weight of
    the images of the split is 1; a class without an image gets 0.

    Raises:
      OptionError: the dataset does not have a class of the options.
    """
    if not options.class_weights:
        return None
    labels = dataset.labels
    if options.class_weights == BALANCED:
        counts = [dataset.split(split).classes.get(label, 0) for label in labels]
        total = sum(counts)
        return tuple(total / (len(labels) * count) if count else 0.0 for count in counts)
    weights = dict(options.class_weights)  # type: ignore[arg-type]
    for name in weights:
        if name not in labels:
            raise OptionError(unknown("class", name, labels, "class_weights."))
    return tuple(float(weights.get(label, 1.0)) for label in labels)


def make_loss(options: TrainOptions, multi_label: bool, weights: Sequence[float] | None) -> keras.losses.Loss:
    """Returns the loss: categorical cross-entropy for one label, binary cross-entropy of each class for several."""
    if weights is not None:
        return WeightedCrossentropy(weights, multi_label=multi_label, label_smoothing=options.label_smoothing)
    if multi_label:
        return keras.losses.BinaryCrossentropy(label_smoothing=options.label_smoothing)
    return keras.losses.CategoricalCrossentropy(label_smoothing=options.label_smoothing)


class WeightedCrossentropy(keras.losses.Loss):
    """Cross-entropy with a weight for each class.

    With one label per image, the loss of an image is multiplied by the sum of its targets times the class weights, also
    for soft labels. With several labels, each class weight multiplies the loss of its class. Keras multiplies
    the result by `sample_weight`, the weights of images, which are 0 for padding.
    """

    def __init__(self, weights: Sequence[float], multi_label: bool = False, label_smoothing: float = 0.0) -> None:
        super().__init__(name="weighted_crossentropy")
        self.weights = tuple(weights)
        self.multi_label = multi_label
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the losses, float32[batch]."""
        ops = keras.ops
        targets, predicted = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        weights = ops.convert_to_tensor(self.weights, "float32")
        if not self.multi_label:
            losses = keras.losses.categorical_crossentropy(targets, predicted, label_smoothing=self.label_smoothing)
            return losses * ops.sum(targets * weights, axis=-1)
        # Keras averages over the last axis; with one more axis of length 1, it returns one loss per class.
        tensors = targets[..., None], predicted[..., None]
        class_losses = keras.losses.binary_crossentropy(*tensors, label_smoothing=self.label_smoothing)
        return ops.mean(class_losses * weights, axis=-1)


def make_metrics(options: TrainOptions, multi_label: bool, labels: Sequence[str]) -> list[keras.metrics.Metric]:
    """Returns the metrics of a training.

    `accuracy` is the share of images with a correct most probable class; with several labels, the share of correct
    binary predictions at the threshold 0.5. With several labels there is also `auc`, the area under the
    precision-recall curve, averaged over the classes: if most labels are negative, a high accuracy means little.
    """
    metrics: list[keras.metrics.Metric] = (
        [keras.metrics.BinaryAccuracy(name="accuracy"), AverageAUC(len(labels))]
        if multi_label
        else [keras.metrics.CategoricalAccuracy(name="accuracy")]
    )
    return [*metrics, PerClass(labels, multi_label)] if options.per_class else metrics


def loss_and_metric_names(metrics: Sequence[keras.metrics.Metric]) -> list[str]:
    """Returns the names in the logs of an epoch: `loss` and the names of the metrics."""
    class_results = [metric.result() for metric in metrics if isinstance(metric, PerClass)]
    return [
        "loss",
        *(metric.name for metric in metrics if not isinstance(metric, PerClass)),
        *itertools.chain(*class_results),
    ]


class AverageAUC(keras.metrics.AUC):
    """Area under the precision-recall curve, averaged over the classes that have a positive image; 0 if none has one.

    The area of a class without positive images is always 0, and would lower the mean.
    """

    def __init__(self, classes: int) -> None:
        super().__init__(curve="PR", multi_label=True, num_labels=classes, name="auc")
        self._classes = classes

    def result(self) -> Any:
        """Returns the mean area, float32, 0 to 1."""
        # Index 0 is the lowest threshold, at which every prediction is positive.
        positives = self.true_positives[0] + self.false_negatives[0]
        classes_with_positives = keras.ops.sum(keras.ops.cast(positives > 0, "float32"))
        return super().result() * (self._classes / keras.ops.maximum(classes_with_positives, 1.0))


class PerClass(keras.metrics.Metric):
    """Recall and precision of every class, as `recall/NAME` and `precision/NAME`; 0 where the denominator is 0.

    Each of its three sums covers all classes in one op, so a thousand classes cost no more time than one.
    """

    def __init__(self, labels: Sequence[str], multi_label: bool = False) -> None:
        super().__init__(name="per_class")
        self.labels = tuple(labels)
        self.multi_label = multi_label
        size = (len(self.labels),)
        self.hits = self.add_variable(size, "zeros", name="hits")
        self.actual = self.add_variable(size, "zeros", name="actual")
        self.predicted = self.add_variable(size, "zeros", name="answered")  # the name in earlier checkpoints

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch: labels and predictions float32[batch, classes], weights float32[batch]."""
        ops = keras.ops
        actual = self._binarise(ops.cast(y_true, "float32"))
        predicted = self._binarise(ops.cast(y_pred, "float32"))
        weight = 1.0 if sample_weight is None else ops.expand_dims(ops.cast(sample_weight, "float32"), -1)
        self.hits.assign_add(ops.sum(actual * predicted * weight, axis=0))
        self.actual.assign_add(ops.sum(actual * weight, axis=0))
        self.predicted.assign_add(ops.sum(predicted * weight, axis=0))

    def result(self) -> dict[str, Any]:
        """Returns name of the metric -> value, 0 to 1."""
        ops = keras.ops
        recall = self.hits / ops.maximum(self.actual, 1e-7)
        precision = self.hits / ops.maximum(self.predicted, 1e-7)
        return {
            f"{name}/{label}": values[index]
            for name, values in (("recall", recall), ("precision", precision))
            for index, label in enumerate(self.labels)
        }

    def _binarise(self, scores: Any) -> Any:
        if self.multi_label:
            return keras.ops.cast(scores > 0.5, "float32")
        return keras.ops.one_hot(keras.ops.argmax(scores, axis=-1), len(self.labels), dtype="float32")

"""The entry point TFX Trainer calls: `FnArgs` -> options -> input_fn -> fit -> SavedModel."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from beam_jobs import manifest
from beam_jobs.errors import OptionError
from beam_jobs.manifest import Manifest
from trainer.input_fn import FOREVER, evaluation_ops, make_dataset
from trainer.models import ModelSpec, build_model
from trainer.ops import IMAGE
from trainer.options import TrainerConfig, TrainOptions
from trainer.preprocessing import MEAN_RGB, STD_RGB
from trainer.raw import stored_ops
from trainer.serving import export

if TYPE_CHECKING:
    from tfx.components.trainer.fn_args_utils import FnArgs

CONFIG_KEY = "trainer"
HISTORY_NAME = "training.json"


def run_fn(fn_args: FnArgs) -> None:
    """Trains a model on the train split, validates it on the eval split and exports it.

    Writes the SavedModel to `serving_model_dir`; TensorBoard logs and `training.json` (metrics and seconds of every
    epoch) to `model_run_dir`.

    Args:
      fn_args: what TFX hands over; `custom_config["trainer"]` is `TrainerConfig.to_json()`.

    Raises:
      UsageError: the options do not fit the dataset.
    """
    config = TrainerConfig.from_json(fn_args.custom_config[CONFIG_KEY])
    path = dataset_dir(fn_args.train_files)
    dataset = manifest.load(path)
    train_split, eval_split = _split_name(fn_args.train_files), _split_name(fn_args.eval_files)
    mean, std = channel_statistics(fn_args.transform_output)
    side = config.input.image_side_px
    keras.utils.set_random_seed(config.input.seed)
    spec = ModelSpec(side_px=side, classes=len(dataset.labels), mean_rgb=mean, std_rgb=std)
    model = build_model(config.train.model, spec)
    steps = max(1, dataset.split(train_split).records // config.input.batch_size)
    compile_model(model, config.train, steps)
    history = _fit(model, path, train_split, eval_split, steps, config, fn_args.model_run_dir)
    _write_history(history, dataset, config, fn_args.model_run_dir)
    ops = evaluation_ops(config.input)
    export(model, ops, dataset.labels, side, fn_args.serving_model_dir, stored_ops(ops, dataset))


def dataset_dir(patterns: list[str]) -> str:
    """Returns the directory of the dataset that TFX's file patterns, `DIR/Split-train/*`, point into."""
    return os.path.dirname(os.path.dirname(patterns[0]))


def channel_statistics(transform_output: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Reads the mean and standard deviation of each channel, 0-255, out of the transform graph.

    They are constants of the graph, so any row brings them to light.

    Raises:
      OptionError: it holds none, because the records do not.
    """
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(transform_output)
    row = {name: _placeholder(spec) for name, spec in output.raw_feature_spec().items()}
    transformed = output.transform_raw_features(row)
    if MEAN_RGB not in transformed:
        raise OptionError("the records hold no channel statistics, which training needs; ingest with facts of all")
    return tuple(transformed[MEAN_RGB][0].numpy().tolist()), tuple(transformed[STD_RGB][0].numpy().tolist())


def compile_model(model: keras.Model, options: TrainOptions, steps_per_epoch: int) -> None:
    """Compiles a classifier: AdamW, linear warm-up over one epoch, cosine decay to zero."""
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=max(1, steps_per_epoch * (options.epochs - 1)),
        warmup_target=options.learning_rate,
        warmup_steps=steps_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=options.weight_decay),
        loss=keras.losses.CategoricalCrossentropy(label_smoothing=options.label_smoothing),
        metrics=[keras.metrics.CategoricalAccuracy(name="accuracy")],
    )


def _fit(
    model: keras.Model,
    path: str,
    train_split: str,
    eval_split: str,
    steps: int,
    config: TrainerConfig,
    log_dir: str,
) -> dict[str, Any]:
    classes = model.output_shape[-1]

    def for_keras(features: dict[str, tf.Tensor], label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return features[IMAGE], tf.one_hot(label, classes)

    train = make_dataset(path, train_split, config.input, training=True, epochs=FOREVER).map(for_keras)
    validation = make_dataset(path, eval_split, config.input, training=False).map(for_keras)
    clock = _EpochClock()
    history = model.fit(
        train,
        epochs=config.train.epochs,
        steps_per_epoch=steps,
        validation_data=validation,
        callbacks=[clock, keras.callbacks.TensorBoard(log_dir, write_graph=False)],
        verbose=0,
    )
    return {**history.history, "train_seconds": clock.seconds}


class _EpochClock(keras.callbacks.Callback):
    """Times the training part of each epoch; validation starts inside Keras' epoch but is other work."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._started = time.monotonic()
        self._training_ended = self._started

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._training_ended = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.seconds.append(self._training_ended - self._started)


def _write_history(history: dict[str, Any], dataset: Manifest, config: TrainerConfig, directory: str) -> None:
    values = {
        "dataset_digest": dataset.digest,
        "config": config.to_json(),
        "history": {name: [float(value) for value in series] for name, series in history.items()},
    }
    with tf.io.gfile.GFile(os.path.join(directory, HISTORY_NAME), "w") as stream:
        stream.write(json.dumps(values, indent=2))


def _split_name(patterns: list[str]) -> str:
    return os.path.basename(os.path.dirname(patterns[0])).removeprefix("Split-")


def _placeholder(spec: Any) -> tf.Tensor | tf.SparseTensor | tf.RaggedTensor:
    if isinstance(spec, tf.io.FixedLenFeature):
        return tf.fill([1, *spec.shape], tf.constant(b"" if spec.dtype == tf.string else 1, spec.dtype))
    if isinstance(spec, tf.io.RaggedFeature):
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0], spec.dtype), tf.constant([0], tf.int64))
    return tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], spec.dtype), [1, 0])

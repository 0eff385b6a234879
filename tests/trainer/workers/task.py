"""One small training, the same under every strategy; tests run it here and in processes of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tests.trainer.batches import graph, ops_of
from trainer.evaluation.evaluate import Plan, evaluate
from trainer.input.position import Host
from trainer.input_fn import FOREVER, make_dataset
from trainer.options import InputOptions
from trainer.training import strategy as strategies
from trainer.training.fit import fit, make_variables, train_function

EPOCHS, STEPS = 2, 5
EVALUATED = 25
OPTIONS = InputOptions(image_side_px=8, batch_size=16, columns=("tags",), threads=1, cache="none")


def make_greys(source: Path, out: Path) -> Path:
    """96 images of one grey each for training and 25 for evaluation, with a list of 0 to 3 tags each."""
    from beam_jobs.ingest import run  # Beam takes seconds to import, and the processes read alone
    from beam_jobs.options import IngestOptions, TableColumns
    from tests.make_images import grey_image

    lines = []
    source.mkdir(parents=True)
    for grey in range(96 + EVALUATED):
        (source / f"{grey:03d}.png").write_bytes(grey_image(2 * grey))
        split, label = ("train" if grey < 96 else "eval"), ("even", "odd")[grey % 2]
        row = {"image": f"{grey:03d}.png", "label": label, "split": split, "tags": list(range(grey % 4))}
        lines.append(json.dumps(row))
    (source / "images.jsonl").write_text("\n".join(lines))
    columns = TableColumns(split="split", extra=("tags",))
    splits = {"train": 0.5, "eval": 0.5}
    run(IngestOptions(source=str(source / "images.jsonl"), out=str(out), splits=splits, shards=2, columns=columns))
    return out


class MeanTag(keras.layers.Layer):
    """Ragged int64[batch, None] -> float32[batch, 1]."""

    def call(self, tags):
        return tf.reduce_sum(tf.cast(tags, tf.float32), axis=1)[:, None] / 8.0

    def compute_output_shape(self, shape):
        return (shape[0], 1)


def build_model(steps_per_execution: int = 1) -> keras.Model:
    """No dropout and no batch normalisation: nothing in it depends on how a batch is shared."""
    keras.utils.set_random_seed(7)
    image = keras.Input([8, 8, 3], dtype="uint8", name="image")
    tags = keras.Input([None], dtype="int64", ragged=True, name="tags")
    pixels = keras.layers.Conv2D(4, 3, strides=3)(keras.layers.Rescaling(1 / 255)(image))
    both = keras.layers.Concatenate()([keras.layers.Flatten()(pixels), MeanTag()(tags)])
    model = keras.Model({"image": image, "tags": tags}, keras.layers.Dense(2, activation="softmax")(both))
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def inputs_of(features: Any) -> dict[str, Any]:
    return {"image": features["image"], "tags": features["extra/tags"]}


def training_batches(path: str, host: Host) -> tf.data.Dataset:
    stream = make_dataset(path, "train", OPTIONS, training=True, epochs=FOREVER, host=host)
    return stream.map(lambda features, label: (inputs_of(features), label))


def train(strategy: Any, path: str, logs: str, steps_per_execution: int = 1) -> dict[str, Any]:
    """Trains and evaluates; returns plain values."""
    with strategies.scope(strategy):
        model = build_model(steps_per_execution)
    data = strategies.distribute(strategy, lambda host: training_batches(path, host))
    recorder = Recorder()
    plan = Plan(directory=logs, inputs=inputs_of, wait_s=60)

    def validation() -> dict[str, float]:
        whole = evaluate(
            model, lambda host: eval_batches(path, host), plan, step=len(recorder.epochs), strategy=strategy
        )
        return whole.logs()

    seen = [greys_of(strategy, batch) for batch in _first(data, 2 * STEPS)]
    history = fit(
        strategy,
        model,
        data,
        epochs=range(EPOCHS),
        steps_per_epoch=STEPS,
        validation=validation,
        callbacks=[recorder, keras.callbacks.TensorBoard(os.path.join(logs, f"keras-{os.getpid()}"))],
    )
    return {
        "seen": seen,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "history": history,
        "batches": recorder.batches,
        "epochs": recorder.epochs,
        "description": strategies.describe(strategy, OPTIONS.batch_size),
    }


def eval_batches(path: str, host: Host) -> tf.data.Dataset:
    return make_dataset(path, "eval", OPTIONS, training=False, host=host)


def train_ops(strategy: Any, path: str) -> list[str]:
    """The names of all ops of the compiled loop and of what feeds it."""
    with strategy.scope():
        model = build_model()
        data = strategies.distribute(strategy, lambda host: training_batches(path, host))
        make_variables(strategy, model, data.element_spec)
        compiled = train_function(strategy, model).get_concrete_function(iter(data.batches), tf.constant(1))
    fed = training_batches(path, Host()).rebatch(8)
    return sorted(ops_of(compiled.graph.as_graph_def()) | ops_of(graph(fed)))


def observed_means(strategy: Any) -> list[list[float]]:
    """The moving mean of each replica after an epoch of two steps, in which one sees tens and the other thirties."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([1]), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    batch = ([[10.0], [10.0], [30.0], [30.0]], [[0.0]] * 4)
    data = strategies.distribute(strategy, lambda _: tf.data.Dataset.from_tensors(batch).repeat())
    fit(strategy, model, data, epochs=range(1), steps_per_epoch=2)
    mean = model.layers[0].moving_mean.value
    return [value.numpy().tolist() for value in strategy.experimental_local_results(mean)]


def greys_of(strategy: Any, batch: Any) -> list[list[int]]:
    """The greys of a batch, one list a local replica."""
    images = batch[0]["image"]
    local = strategy.experimental_local_results(images) if strategy else [images]
    return [[int(grey) // 2 for grey in part.numpy()[:, 0, 0, 0]] for part in local]


def _first(data: Any, count: int) -> list[Any]:
    batches = iter(data.batches if isinstance(data, strategies.Distributed) else data)
    return [next(batches) for _ in range(count)]


class Recorder(keras.callbacks.Callback):
    """What callbacks are told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []
        self.epochs: list[Any] = []

    def on_train_batch_begin(self, batch, logs=None):
        self.batches.append(["begin", batch])

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(["end", batch, float(logs["loss"])])

    def on_test_begin(self, logs=None):
        self.batches.append(["validation"])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append([epoch, {name: float(value) for name, value in logs.items()}])

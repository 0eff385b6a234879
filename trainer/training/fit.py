"""`fit` under a strategy: a training loop over several replicas that calls the `train_step` of the model.

The training loop of Keras 3.12 with TensorFlow 2.16 fails under two strategies. `MultiWorkerMirroredStrategy` fails
before the first step if a batch is a dict. `MirroredStrategy` with `steps_per_execution` above 1 fails in the first
execution, which creates variables inside the loop. This module creates all variables before it compiles the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from beam_jobs.errors import FeedlineError, OptionError
from trainer.training.strategy import Distributed

Validation = Callable[[], Mapping[str, float]]
Logs = dict[str, float]


def fit(
    strategy: tf.distribute.Strategy | None,
    model: keras.Model,
    data: Any,
    *,
    epochs: range,
    steps_per_epoch: int,
    validation: Validation | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, list[float]]:
    """Trains a model that was built and compiled in `strategy.scope()`.

    `train_step`, the metrics, `steps_per_execution`, `stop_training` and the callbacks work as in Keras. The logs of
    batches and epochs are aggregated over all replicas.

    Args:
      strategy: strategy of the training; None for `keras.Model.fit`, on any backend.
      model: compiled model.
      data: endless result of `trainer.training.strategy.distribute`; without a strategy, any input of `model.fit`.
      epochs: epoch numbers, from 0.
      steps_per_epoch: global batches per epoch.
      validation: returns the metrics of the validation; `fit` calls it after each epoch, between `on_test_begin` and
        `on_test_end` of the callbacks, and adds the metrics to the logs with the prefix `val_`.
      callbacks: Keras callbacks.

    Returns:
      name of a metric -> its value at the end of each epoch.

    Raises:
      OptionError: there is a strategy, and the optimizer accumulates gradients.
      FeedlineError: another worker of the training has ended.
    """
    if validation:
        callbacks = [_Validate(validation, callbacks), *callbacks]
    if strategy is None:
        history = model.fit(
            data,
            initial_epoch=epochs.start,
            epochs=epochs.stop,
            steps_per_epoch=steps_per_epoch,
            callbacks=callbacks,
            verbose=0,
        )
        return dict(history.history)
    _check_optimizer(model.optimizer)
    callback_list = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=epochs.stop, steps=steps_per_epoch, verbose=0
    )
    try:
        with strategy.scope():
            return _fit_replicas(strategy, model, data, callback_list, epochs, steps_per_epoch)
    except tf.errors.UnavailableError as error:  # the next step raises it, some seconds after another worker ended
        raise FeedlineError(
            "another worker of the training has ended, see its log; start all workers again, and they continue from "
            "the last checkpoint if there is one"
        ) from error


def _fit_replicas(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    data: Distributed,
    callbacks: keras.callbacks.CallbackList,
    epochs: range,
    steps: int,
) -> dict[str, list[float]]:
    make_variables(strategy, model, data.element_spec)
    execute, average_statistics = train_function(strategy, model), statistics_function(strategy, model)
    batches = iter(data.batches)
    model.stop_training = False
    callbacks.on_train_begin()
    logs: Logs = {}
    for epoch in epochs:
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        logs = _train_epoch(model, execute, batches, callbacks, steps)
        average_statistics()
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs)
    return dict(model.history.history)


def _train_epoch(
    model: keras.Model, execute: Any, batches: Any, callbacks: keras.callbacks.CallbackList, steps: int
) -> Logs:
    logs: Logs = {}
    for first_step in range(0, steps, model.steps_per_execution):
        count = min(model.steps_per_execution, steps - first_step)
        callbacks.on_train_batch_begin(first_step)
        logs = {name: float(value) for name, value in execute(batches, tf.constant(count)).items()}
        callbacks.on_train_batch_end(first_step + count - 1, logs)
        if model.stop_training:
            break
    return logs


def train_function(strategy: tf.distribute.Strategy, model: keras.Model) -> Any:
    """Returns the compiled loop: (iterator, steps int32) -> metrics since the start of the epoch, over all replicas."""

    @tf.function(reduce_retracing=True)
    def execute(batches: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        for _ in tf.range(count):
            strategy.run(model.train_step, args=(next(batches),))
        # Outside of `strategy.run`, reading a variable of a metric returns its sum over the replicas.
        return model.get_metrics_result()

    return execute


def statistics_function(strategy: tf.distribute.Strategy, model: keras.Model) -> Any:
    """Returns a function that averages the moving statistics of batch normalisation over the replicas of all workers.

    Each replica updates its own statistics. Without the average, metrics would depend on the replica that evaluates an
    image, and the exported model would have the statistics of the first replica.
    """
    statistics = [
        variable for variable in model.non_trainable_variables if variable.dtype.startswith(("float", "bfloat"))
    ]

    def average() -> None:
        context = tf.distribute.get_replica_context()
        for variable in statistics:
            variable.assign(context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(variable)))

    @tf.function
    def average_on_replicas() -> None:
        strategy.run(average)

    return average_on_replicas if statistics else lambda: None


def make_variables(strategy: tf.distribute.Strategy, model: keras.Model, element_spec: Any) -> None:
    """Creates the variables of the optimizer, and runs `test_step` on a batch of zeros to create those of the metrics.

    If a loop creates variables, TensorFlow compiles two versions of it, which fails with several replicas.
    """
    model.optimizer.build(model.trainable_variables)
    batch = tf.nest.map_structure(_make_zeros, element_spec)
    tf.function(lambda: strategy.run(model.test_step, args=(batch,)))()
    model.reset_metrics()


def _check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    steps = getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps  # Keras wraps it under float16
    if steps:
        raise OptionError(
            f"accumulate_steps is {steps}, which Keras does not support under a strategy; set it to 1, "
            "and use more replicas or a smaller batch_size"
        )


def _make_zeros(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
    shape = [1 if size is None else size for size in spec.shape]  # `None` is an unknown size
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(tf.zeros(shape, spec.dtype), ragged_rank=spec.ragged_rank)
    return tf.zeros(shape, spec.dtype)


class _Validate(keras.callbacks.Callback):
    """Validates at the end of an epoch; must be the first callback, so that the logs of the others have the metrics."""

    def __init__(self, validation: Validation, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        super().__init__()
        self._validation = validation
        self._callbacks = callbacks

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        for callback in self._callbacks:
            callback.on_test_begin()
        metrics = {f"val_{name}": value for name, value in self._validation().items()}
        for callback in self._callbacks:
            callback.on_test_end(metrics)
        if logs is not None:
            logs.update(metrics)

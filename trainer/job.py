"""`Job`, the dataset, splits and options of a training, and `fit`, which trains the model."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import pyarrow.compute as pc
import tensorflow as tf

from beam_jobs.common import strings
from beam_jobs.common.strings import name_list
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import DatasetChanged, FeedlineError, OptionError, SourceError
from trainer.evaluation.evaluate import MEASURES, Plan, evaluate, log_names
from trainer.input.checks import scale_warning
from trainer.input.corrupt_records import clean_error_text, explain
from trainer.input.faults import cause_of
from trainer.input.index import replaced_message
from trainer.input.plan import describe as describe_input
from trainer.input.position import Host, Position
from trainer.input_fn import FOREVER, epoch_records, make_dataset
from trainer.models import ModelSpec, build_model, content_digest
from trainer.models.builtin import LARGE_PX
from trainer.ops.device import Augmented, parse_device_ops
from trainer.ops.tf_ops import without_autograph
from trainer.options import TrainerConfig, TrainOptions
from trainer.training.callbacks import (
    IMAGES_PER_SECOND,
    INPUT_WAIT,
    LEARNING_RATE,
    TRAIN_SECONDS,
    WaitMeter,
    check_monitor,
    measure_waits,
)
from trainer.training.checkpoint import Checkpoints, Progress
from trainer.training.device_memory import memory_table
from trainer.training.loop import Task, fit_steps, train
from trainer.training.losses import MULTI, class_weights, for_keras, loss_and_metric_names, make_loss, make_metrics
from trainer.training.strategy import Distributed, check_batch, check_gpus, distribute, first_host, scope, strategy_host
from trainer.training.strategy import describe as describe_strategy

_log = logging.getLogger(__name__)
_MIN_SIDE_PX = 32  # the smallest side that is recommended
_TIMED_IMAGES, _TRIES = 16, 3  # images of a timed step, and number of steps, of which the first compiles
# Options that do not change the weights, so that a training can continue with other values.
_NOT_IN_DIGEST = {
    "input": ("cache", "cache_mb", "cache_dir", "readers", "threads", "parse_batch", "prefetch_batches"),
    "train": ("checkpoint_steps", "gpus", "memory_growth", "prefetch_to_device", "profile_steps"),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Dataset, splits and options of a training.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import Job, TrainerConfig
      >>> dataset = load("dataset")
      >>> job = Job(
      ...     config=TrainerConfig(),
      ...     path="dataset",
      ...     dataset=dataset,
      ...     train_split="train", eval_split="eval",
      ...     mean_rgb=dataset.channels.mean_rgb,
      ...     std_rgb=dataset.channels.std_rgb,
      ... )
      >>> job.multi, len(job.digest)
      (False, 16)

    Attributes:
      config: all options.
      path: directory of the dataset.
      dataset: manifest of the dataset.
      train_split: name of the training split.
      eval_split: name of the validation split.
      mean_rgb: mean of each channel of the training split, 0-255.
      std_rgb: standard deviation of each channel of the training split, 0-255.
    """

    config: TrainerConfig
    path: str
    dataset: Manifest
    train_split: str
    eval_split: str
    mean_rgb: tuple[float, ...]
    std_rgb: tuple[float, ...]

    @property
    def multi(self) -> bool:
        """Whether an image may have several labels."""
        return self.dataset.label_kind == MULTI

    @property
    def digest(self) -> str:
        """Digest of everything that determines the weights; a training continues only from checkpoints of this digest.

        It includes the code of a user's model and the content of a file of weights.
        """
        config = self.config.to_json()
        for part, names in _NOT_IN_DIGEST.items():
            config[part] = {name: value for name, value in config[part].items() if name not in names}
        content = content_digest(self.config.train.model, self.config.train.weights)
        values = [self.dataset.digest, self.train_split, self.eval_split, self.mean_rgb, self.std_rgb, config, content]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fit(
    job: Job,
    checkpoints: Checkpoints | None = None,
    log_dir: str = "",
    callbacks: tuple[Any, ...] = (),
    strategy: tf.distribute.Strategy | None = None,
    say: Callable[[str], None] = lambda _: None,
    check: Callable[[keras.Model], None] = lambda _: None,
) -> tuple[keras.Model, Progress]:
    """Builds the model of a job and trains it.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import Checkpoints, InputOptions, Job, TrainerConfig, TrainOptions, fit_job
      >>> dataset = load("dataset")
      >>> job = Job(
      ...     config=TrainerConfig(input=InputOptions(image_side_px=16, batch_size=8), train=TrainOptions(epochs=1)),
      ...     path="dataset", dataset=dataset,
      ...     train_split="train", eval_split="eval",
      ...     mean_rgb=dataset.channels.mean_rgb, std_rgb=dataset.channels.std_rgb,
      ... )
      >>> model, progress = fit_job(job, Checkpoints("checkpoints"))
      >>> len(progress.history["val_accuracy"]), model.output_shape
      (1, (None, 2))

    Args:
      job: dataset, splits and options.
      checkpoints: checkpoints to write, and to continue from if there are any; None for no checkpoints.
      log_dir: directory of TensorBoard logs; empty for no logs.
      callbacks: additional callbacks of Keras.
      strategy: result of `make_strategy`; None for one device.
      say: function that receives descriptions of input, devices and memory as text.
      check: function that receives the model before the first step, and may raise an error to stop.

    Returns:
      the model to export, uint8[batch, side, side, 3] -> probabilities float32[batch, classes]; and its progress.

    Raises:
      UsageError: the options do not fit the dataset.
      CorruptDataset: a record cannot be read.
      TrainingDiverged: the loss became NaN or infinite, and there is no best epoch to return.
    """
    records = epoch_records(job.path, job.train_split, job.config.input, training=True)
    steps, options = fit_steps(records, job.config.train, job.config.input.batch_size)
    check_batch(strategy, job.config.input.batch_size)
    _prepare_devices(job)
    with scope(strategy):
        inner_model, model = _build_models(job)
        check_monitor(options, epoch_figures(job, strategy))
    check(inner_model)
    _report(job, inner_model, strategy, say)
    with _explain_errors(job):
        task = Task(
            model=model,
            core=inner_model,
            loss=make_loss(options, job.multi, class_weights(options, job.dataset, job.train_split)),
            metrics=partial(make_metrics, options, job.multi, job.dataset.labels),
            train=partial(_distribute_batches, job, strategy),
            validate=_make_validation(job, inner_model, model, log_dir, strategy),
            steps=steps,
            batch_size=job.config.input.batch_size,
            epoch_records=records,
            log_dir=log_dir,
            checkpoints=checkpoints,
            strategy=strategy,
            writes=strategy_host(strategy).index == 0,
            callbacks=callbacks,
            validation_steps=_validation_rows(job) // job.config.input.batch_size,
            time_smaller=partial(_time_smaller, job, strategy),
        )
        return inner_model, train(task, options)


def _prepare_devices(job: Job) -> None:
    check_gpus(job.config.train.gpus)
    if job.config.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(job.config.input.seed)


def _report(job: Job, model: keras.Model, strategy: tf.distribute.Strategy | None, say: Callable[[str], None]) -> None:
    """Logs a warning about the scale of the images, if needed, and passes a description of the training to `say`."""
    if warning := scale_warning(job.config.input, _median_short_side(job)):
        _log.warning(warning)
    say(_describe_training(job, model, strategy))
    eval_counts = job.dataset.split(job.eval_split).classes
    if job.multi and (absent := [label for label in job.dataset.labels if not eval_counts.get(label)]):
        say(f"val_auc leaves out the classes without an image in {job.eval_split}, {strings.line(name_list(absent))}")


def _median_short_side(job: Job) -> float:
    """Returns the median of the short sides of the training images, in pixels."""
    sides = []
    for images in schemas.read_images(job.dataset.image_paths(job.path), ["split", "height", "width"]):
        rows = images.filter(pc.equal(images["split"], job.train_split))
        sides.append(np.minimum(rows["height"].to_numpy(), rows["width"].to_numpy()))
    return float(np.median(np.concatenate(sides)))


def _describe_training(job: Job, model: keras.Model, strategy: tf.distribute.Strategy | None) -> str:
    config, host = job.config, first_host(strategy)
    lines = [
        describe_input(job.path, job.train_split, config.input, training=True, epochs=FOREVER, host=host),
        describe_strategy(strategy, config.input.batch_size),
    ]
    if getattr(model, "inputs", None):  # the memory of a user model without a graph cannot be counted
        slots = 1 if config.train.optimizer in ("sgd", "rmsprop", "lion") else 2  # values stored per weight
        slots += bool(config.train.ema) + (config.train.accumulate_steps > 1)
        lines.append(memory_table(model, [check_batch(strategy, config.input.batch_size)], slots))
    return "\n".join(lines)


@contextmanager
def _explain_errors(job: Job) -> Iterator[None]:
    """Converts errors of TensorFlow to errors that name the damaged record, the replaced dataset or the ops."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        cause = cause_of(error)
        if isinstance(cause, (SourceError, DatasetChanged)):
            raise cause from error
        if _is_replaced(job):
            raise DatasetChanged(replaced_message(job.path)) from error
        for split in (job.train_split, job.eval_split):
            if explanation := explain(job.path, split, error):
                raise explanation from error
        if cause:  # the bytes were damaged in transfer, the shard is intact
            raise cause from error
        if "IteratorGetNext" in str(error) and isinstance(error, tf.errors.InvalidArgumentError):
            ops = f"{job.config.input.train_spec!r} or {job.config.input.eval_spec!r}"
            raise OptionError(f"an op of {ops} does not fit an image: {clean_error_text(error)}") from error
        raise


def _is_replaced(job: Job) -> bool:
    with suppress(FeedlineError):  # the manifest is damaged or missing, which `explain` reports
        return manifest.load(job.path).digest != job.dataset.digest
    return False


def _build_models(job: Job) -> tuple[keras.Model, keras.Model]:
    """Returns the model to export and the model to train: the same model, or a wrapper that augments on the device."""
    options = job.config.train
    spec = ModelSpec(
        side_px=job.config.input.image_side_px,
        classes=len(job.dataset.labels),
        mean_rgb=job.mean_rgb,
        std_rgb=job.std_rgb,
        multi_label=job.multi,
        weights=options.weights,
    )
    with _mixed_precision(options):
        inner_model = build_model(options.model, spec)
        if not job.config.input.device_ops:
            return inner_model, inner_model
        return inner_model, Augmented(inner_model, parse_device_ops(job.config.input.device_ops))


def _time_smaller(job: Job, strategy: tf.distribute.Strategy | None) -> tuple[int, float] | None:
    """Returns a smaller image side in pixels (half the side, or 128), and the seconds per step that it saves.

    Returns None if a smaller side would need other settings too, if the device is not the CPU, or if building models
    could change the training.
    """
    options, data = job.config.train, job.config.input
    needs_same_side = data.train_ops or data.eval_ops or data.device_ops or "." in options.model
    needs_same_side = needs_same_side or strategy or options.frozen or options.deterministic
    if needs_same_side or tf.config.list_physical_devices("GPU") or data.image_side_px < 2 * _MIN_SIDE_PX:
        return None
    half_px, is_large = data.image_side_px // 2, data.image_side_px >= 1.5 * LARGE_PX
    smaller_px = max(half_px, LARGE_PX) if is_large else half_px  # `LARGE_PX`: a smaller side may be slow
    try:
        smaller_s, full_s = (_time_step(job, side_px) for side_px in (smaller_px, data.image_side_px))
    except Exception as error:  # noqa: BLE001 - the training does not need the timing
        _log.info("the model was not timed with smaller images: %s", error)
        return None
    return smaller_px, full_s - smaller_s


def _time_step(job: Job, side_px: int) -> float:
    """Returns the estimated seconds of a training step, from steps of a new model on a few black images."""
    options, data = job.config.train, job.config.input
    config_input = dataclasses.replace(data, image_side_px=side_px)
    config = TrainerConfig(input=config_input, train=dataclasses.replace(options, weights=""))
    model, _ = _build_models(dataclasses.replace(job, config=config))
    model.compile("sgd", make_loss(options, job.multi, None), jit_compile=False)
    count = min(data.batch_size, _TIMED_IMAGES)
    images = np.zeros((count, *model.input_shape[1:]), np.uint8)
    labels = np.zeros((count, len(job.dataset.labels)), np.float32)
    seconds = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        model.train_on_batch(images, labels)
        seconds.append(time.perf_counter() - started)
    return min(seconds) * data.batch_size / count


@contextmanager
def _mixed_precision(options: TrainOptions) -> Iterator[None]:
    """Sets the dtype policy of Keras while layers are built, and then restores the previous one."""
    previous = keras.config.dtype_policy()
    if options.mixed_precision != "none":
        keras.config.set_dtype_policy(f"mixed_{options.mixed_precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def _distribute_batches(
    job: Job, strategy: tf.distribute.Strategy | None, start: Position, meter: WaitMeter
) -> tf.data.Dataset | Distributed:
    return distribute(strategy, partial(_make_train_batches, job, start, meter), job.config.train.prefetch_to_device)


@without_autograph
def _make_train_batches(job: Job, start: Position, meter: WaitMeter, host: Host) -> tf.data.Dataset:
    options = job.config.input
    batches = make_dataset(job.path, job.train_split, options, training=True, epochs=FOREVER, start=start, host=host)
    # Without the prefetch, the step would wait for the conversion of labels.
    batches = batches.map(_make_batch_converter(job)).prefetch(1)
    return measure_waits(batches, meter) if host.runs_python else batches


def _make_validation(
    job: Job, inner_model: keras.Model, model: keras.Model, log_dir: str, strategy: tf.distribute.Strategy | None
) -> Callable[[int], Mapping[str, float]]:
    """Returns a function that evaluates the eval split and returns its metrics; its argument is the epoch.

    The evaluation of Keras computes all metrics; `trainer.evaluation.evaluate` computes intervals and runs on several
    hosts. All batches have one size, so that the model is compiled once for evaluation.
    """
    options = dataclasses.replace(job.config.input, pad_batches=True)

    def make_batches(host: Host) -> tf.data.Dataset:
        return make_dataset(job.path, job.eval_split, options, training=False, host=host)

    if _uses_intervals(job, strategy):
        plan = Plan(directory=os.path.join(log_dir, "evaluation") if log_dir else "")
        host_batches = make_batches(strategy_host(strategy))  # created once, because it may have a cache
        return lambda epoch: evaluate(inner_model, lambda _: host_batches, plan, step=epoch, strategy=strategy).logs()
    dataset = make_batches(Host()).map(_make_batch_converter(job))
    rows_per_image = _validation_rows(job) / epoch_records(job.path, job.eval_split, job.config.input, training=False)

    def validate(_: int) -> Mapping[str, float]:
        metrics = model.evaluate(dataset, verbose=0, return_dict=True)
        # Keras divides the loss by the number of all rows, padding included.
        return {**metrics, "loss": metrics["loss"] * rows_per_image}

    return validate


def _uses_intervals(job: Job, strategy: tf.distribute.Strategy | None) -> bool:
    return bool(strategy) or job.config.train.choose_by == "lower_bound"


def epoch_figures(job: Job, strategy: tf.distribute.Strategy | None) -> list[str]:
    """Returns the names of the metrics, times and rates that the history contains for each epoch."""
    metrics = loss_and_metric_names(make_metrics(job.config.train, job.multi, job.dataset.labels))
    measures = itertools.chain.from_iterable(map(log_names, MEASURES))
    validation_names = measures if _uses_intervals(job, strategy) else metrics
    other_names = (TRAIN_SECONDS, IMAGES_PER_SECOND, INPUT_WAIT, LEARNING_RATE)
    return [*metrics, *(f"val_{name}" for name in validation_names), *other_names]


def _make_batch_converter(job: Job) -> Any:
    return for_keras(len(job.dataset.labels), job.multi, draws=bool(job.config.input.device_ops))


def _validation_rows(job: Job) -> int:
    """Returns the number of rows of a validation: its images, and the padding of the last batch."""
    batch = job.config.input.batch_size
    return -(-epoch_records(job.path, job.eval_split, job.config.input, training=False) // batch) * batch

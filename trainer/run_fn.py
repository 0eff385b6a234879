"""The entry point for the Trainer of TFX."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from beam_jobs.types import LABEL_KINDS
from trainer.evaluation.intervals import validation_spreads
from trainer.input.parse import adapt_ops_to_records
from trainer.input_fn import evaluation_ops
from trainer.job import Job, fit
from trainer.models import check_export
from trainer.options import TrainerConfig
from trainer.serving.export import export
from trainer.serving.predict import ServingSpec
from trainer.serving.preprocessing import MEAN_RGB, STD_RGB
from trainer.training.callbacks import PRINTED_METRICS
from trainer.training.checkpoint import DIVERGED_NAME, Checkpoints, Progress
from trainer.training.losses import MULTI
from trainer.training.malloc import keep_buffers
from trainer.training.strategy import make_strategy, strategy_host

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import keras
    from tfx.components.trainer.fn_args_utils import FnArgs

CONFIG_KEY = "trainer"
WORK_DIR_KEY = "work_dir"
HISTORY_NAME = "training.json"


def run_fn(fn_args: FnArgs) -> None:
    """Trains a model on the train split, validates it on the eval split and exports it.

    Writes the SavedModel to `serving_model_dir`; TensorBoard logs and `training.json` (the metrics of every epoch) to
    `model_run_dir`. Checkpoints are written below `custom_config["work_dir"]`, by default beside `model_run_dir`; the
    same training, run again, continues from them. They are removed when the model is exported.

    Args:
      fn_args: arguments of TFX; `custom_config["trainer"]` is `TrainerConfig.to_json()`.

    Raises:
      UsageError: the options do not fit the dataset, or another process runs the same training.
      CorruptDataset: a record cannot be read.
      TrainingDiverged: the loss became NaN or infinite, and there is no best epoch to export.
    """
    keep_buffers()
    config = TrainerConfig.from_json(fn_args.custom_config[CONFIG_KEY])
    # `make_strategy` must run before TensorFlow initialises the devices.
    strategy = make_strategy(config.train.strategy, config.train.memory_growth)
    path = dataset_dir(fn_args.train_files)
    dataset = manifest.load(path)
    if dataset.label_kind not in ("single", MULTI):
        raise OptionError(f"the images have {LABEL_KINDS[dataset.label_kind]}; training needs labels")
    mean, std = channel_statistics(fn_args.transform_output)
    job = Job(
        config=config,
        path=path,
        dataset=dataset,
        train_split=_split_name(fn_args.train_files),
        eval_split=_split_name(fn_args.eval_files),
        mean_rgb=mean,
        std_rgb=std,
    )
    # Checkpoints must not be in an output directory of this execution, which TFX removes after a failure.
    work_dir = fn_args.custom_config.get(WORK_DIR_KEY) or os.path.dirname(fn_args.model_run_dir)
    checkpoints = Checkpoints(storage.join(work_dir, f".work-{job.digest}"))
    ops = evaluation_ops(config.input)
    export_model = partial(
        export,
        ops=ops,
        labels=dataset.labels,
        side_px=config.input.image_side_px,
        record_ops=adapt_ops_to_records(ops, dataset),
        spec=ServingSpec.of(dataset),
    )
    is_first = strategy_host(strategy).index == 0  # only the first of several workers locks and exports
    with checkpoints.exclusive() if is_first else contextlib.nullcontext():
        model, progress = fit(
            job,
            checkpoints,
            fn_args.model_run_dir,
            strategy=strategy,
            say=_print,
            check=partial(check_export, config.train.model, export_model),
        )
        if is_first:
            _write_results(model, progress, job, fn_args, export_model)
            checkpoints.clear()


def _write_results(model: keras.Model, progress: Progress, job: Job, fn_args: FnArgs, export_model: Callable) -> None:
    """Writes the history and the model; prints the variation of the validation metrics, and a divergence if any."""
    _write_history(progress, job, model.count_params(), fn_args.model_run_dir)
    spreads = validation_spreads(progress.history)
    for name in filter(spreads.get, PRINTED_METRICS):
        _print(f"{name} {spreads[name]}")
    if progress.diverged:
        _print(f"{progress.diverged}; the best epoch, {progress.best_epoch + 1}, is exported and evaluated, not pushed")
    export_model(model, path=fn_args.serving_model_dir)
    if progress.diverged:
        storage.write_bytes(storage.join(fn_args.serving_model_dir, DIVERGED_NAME), progress.diverged.encode())


def _print(text: str) -> None:
    if "\n" in text:  # the description of the input pipeline, which only the log contains
        for line in text.splitlines():
            _log.info(line)
        return
    print(strings.printable(text), file=sys.stderr, flush=True)


def dataset_dir(patterns: list[str]) -> str:
    """Returns the directory of the dataset from the file patterns of TFX, `DIR/Split-train/*`."""
    return os.path.dirname(os.path.dirname(patterns[0]))


def channel_statistics(transform_output: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Reads the mean and standard deviation of each channel, 0-255, from the transform graph.

    They are constants of the graph, so the graph returns them for any input row.

    Raises:
      OptionError: the records have no statistics.
    """
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(transform_output)
    row = {name: _make_dummy_row(spec) for name, spec in output.raw_feature_spec().items()}
    transformed = output.transform_raw_features(row)
    if MEAN_RGB not in transformed:
        raise OptionError("the records have no channel statistics, which training needs; ingest with facts set to all")
    return tuple(transformed[MEAN_RGB][0].numpy().tolist()), tuple(transformed[STD_RGB][0].numpy().tolist())


def _write_history(progress: Progress, job: Job, parameter_count: int, directory: str) -> None:
    input_waits = progress.history.get("input_wait", [])
    values = {
        "dataset_digest": job.dataset.digest,
        "config": job.config.to_json(),
        "parameters": parameter_count,
        "history": progress.history,
        "input_wait": sum(input_waits) / len(input_waits) if input_waits else 0.0,
        "spread": {name: dataclasses.asdict(spread) for name, spread in validation_spreads(progress.history).items()},
        "best": {"monitor": job.config.train.monitor, "epoch": progress.best_epoch, "value": progress.best},
        "exported": job.config.train.keep,
        "diverged": progress.diverged,
    }
    tf.io.gfile.makedirs(directory)  # a training that was already complete writes no logs
    with tf.io.gfile.GFile(os.path.join(directory, HISTORY_NAME), "w") as stream:
        stream.write(json.dumps(values, indent=2))


def _split_name(patterns: list[str]) -> str:
    return os.path.basename(os.path.dirname(patterns[0])).removeprefix("Split-")


def _make_dummy_row(spec: Any) -> tf.Tensor | tf.SparseTensor | tf.RaggedTensor:
    if isinstance(spec, tf.io.FixedLenFeature):
        return tf.fill([1, *spec.shape], tf.constant(b"" if spec.dtype == tf.string else 1, spec.dtype))
    if isinstance(spec, tf.io.RaggedFeature):
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0], spec.dtype), tf.constant([0], tf.int64))
    return tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], spec.dtype), [1, 0])

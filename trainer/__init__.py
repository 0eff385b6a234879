"""Reads shards into batches, and trains, evaluates and exports models.

`make_dataset` turns a published dataset into a `tf.data.Dataset` for any Keras model: uint8 images in an order that is
a function of (seed, epoch), with a state of two numbers. `fit_job` trains on it, `export` writes a SavedModel, and
`predict_files` classifies files with it. None of these functions needs TFX.

From shards to batches:
  keras_datasets: the splits of a dataset -> datasets for `model.fit`
  make_dataset: a split of a dataset -> batches of (features, label)
  InputOptions: options of image size, batches, ops, order, cache and buffers
  FOREVER: value of `epochs` for endless reading
  Position: the state of an input pipeline, from which it continues exactly
  Host: one of several machines that read a split
  epoch_records: number of images in one pass
  describe_input: a description of an input pipeline, with the reasons for its settings
  for_keras: converts a batch for `model.fit`

Other inputs:
  make_mixture, mixture_labels: a mixture of several datasets by weight, and its class names
  make_stream, Reading, QueueSource: Python generators and queues
  make_file_stream, RecordLayout, TFDS: TFRecord files of other programs

Image ops, listed in `trainer.ops`:
  parse_ops: a chain such as "decode_random_crop(224)|flip" -> ops
  apply_ops: runs a chain on one image

Training:
  Job: dataset, splits and options of a training
  fit_job: trains the model of a job, from its newest checkpoint if there is one
  TrainerConfig, TrainOptions: options of model, optimizer, schedule, epochs and others
  Checkpoints: the checkpoints of one training
  Progress: the progress and history of a training
  build_model, ModelSpec: models by name
  make_strategy: several devices or machines

After training:
  evaluate_model, Plan, Evaluation: accuracy and loss with confidence intervals, on any number of hosts
  export, ServingSpec: a SavedModel that takes encoded image bytes, and a description of its dataset
  predict_files, Prediction: classification of files with such a model

Examples:
  >>> from trainer import InputOptions, make_dataset
  >>> options = InputOptions(image_side_px=64, batch_size=8)
  >>> train = make_dataset("dataset", "train", options, training=True)
  >>> for features, label in train.take(1):
  ...     print(features["image"].shape, features["image"].dtype, label.shape)
  (8, 64, 64, 3) <dtype: 'uint8'> (8,)

Importing the package loads neither TensorFlow nor Keras; the first use of a name loads its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.evaluation.evaluate import Evaluation, Plan
    from trainer.evaluation.evaluate import evaluate as evaluate_model
    from trainer.input.mixture import make_mixture, mixture_labels
    from trainer.input.plan import describe as describe_input
    from trainer.input.position import Host, Position
    from trainer.input.windowed_reader import FOREVER
    from trainer.input_fn import epoch_records, make_dataset
    from trainer.job import Job
    from trainer.job import fit as fit_job
    from trainer.models import ModelSpec, build_model
    from trainer.ops import apply_ops, parse_ops
    from trainer.options import InputOptions, TrainerConfig, TrainOptions
    from trainer.serving.export import export
    from trainer.serving.predict import Prediction, ServingSpec
    from trainer.serving.predict import predict as predict_files
    from trainer.streams import TFDS, QueueSource, Reading, RecordLayout, make_file_stream, make_stream
    from trainer.training.checkpoint import Checkpoints, Progress
    from trainer.training.losses import for_keras, keras_datasets
    from trainer.training.strategy import make_strategy

__all__ = [
    "FOREVER",
    "TFDS",
    "Checkpoints",
    "Evaluation",
    "Host",
    "InputOptions",
    "Job",
    "ModelSpec",
    "Plan",
    "Position",
    "Prediction",
    "Progress",
    "QueueSource",
    "Reading",
    "RecordLayout",
    "ServingSpec",
    "TrainOptions",
    "TrainerConfig",
    "apply_ops",
    "build_model",
    "describe_input",
    "epoch_records",
    "evaluate_model",
    "export",
    "fit_job",
    "for_keras",
    "keras_datasets",
    "make_dataset",
    "make_file_stream",
    "make_mixture",
    "make_strategy",
    "make_stream",
    "mixture_labels",
    "parse_ops",
    "predict_files",
]

# Module -> its public names.
_MODULES = {
    "training.checkpoint": ("Checkpoints", "Progress"),
    "evaluation.evaluate": ("Evaluation", "Plan"),
    "input_fn": ("epoch_records", "make_dataset"),
    "job": ("Job",),
    "input.mixture": ("make_mixture", "mixture_labels"),
    "models": ("ModelSpec", "build_model"),
    "ops": ("apply_ops", "parse_ops"),
    "options": ("InputOptions", "TrainerConfig", "TrainOptions"),
    "input.position": ("Host", "Position"),
    "serving.predict": ("Prediction", "ServingSpec"),
    "serving.export": ("export",),
    "training.strategy": ("make_strategy",),
    "streams": ("TFDS", "QueueSource", "Reading", "RecordLayout", "make_file_stream", "make_stream"),
    "training.losses": ("for_keras", "keras_datasets"),
    "input.windowed_reader": ("FOREVER",),
}
# Public name -> module and name of a function that has another name in its module.
_ALIASES = {
    "describe_input": ("input.plan", "describe"),
    "evaluate_model": ("evaluation.evaluate", "evaluate"),
    "fit_job": ("job", "fit"),
    "predict_files": ("serving.predict", "predict"),
}

if not TYPE_CHECKING:  # a type checker would accept every name
    from beam_jobs.common import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _MODULES, _ALIASES)

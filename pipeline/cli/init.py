"""`feedline init`, and the files of a new project: a commented `pipeline.yaml`, a model, a README and `.gitignore`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

import click

from beam_jobs import storage
from beam_jobs.common.yaml_text import one_line
from beam_jobs.errors import OptionError
from pipeline.cli.click_groups import DIR, PATH, Command
from pipeline.cli.common import echo, json_option, print_json, program, say

CONFIG_NAME = "pipeline.yaml"
DEFAULT_SOURCE = "photos"

_CONFIG_TEXT = """\
# Settings of a Feedline pipeline. A line such as #seed: 0 shows a default; take the # away to change it.
#
#   feedline run --config pipeline.yaml                  train a model; a second run repeats only changed steps
#   feedline run --config pipeline.yaml --show-config    print every setting with the origin of its value
#   feedline doctor --config pipeline.yaml               list missing requirements of this machine
#
# FEEDLINE_TRAIN__EPOCHS=20 in the environment overrides this file, and --set train.epochs=20 overrides both.

root: work  # directory for all outputs

ingest:
  # Your images: a folder with one sub-folder per class, a CSV or JSONL table, COCO json, an archive, s3:// or gs://
  source: {source}
  #source_kind: auto
  #splits: {{train: 0.9, eval: 0.1}}  # the first is for training, the second for evaluation
  #stratify: false  # apply the shares to every class
  #seed: 0  # another seed assigns the images to splits differently
  #duplicates: keep  # or drop exact copies; copies are always in the same split
  #near_duplicates: auto  # off, report, group (similar images stay in one split) or drop
  #about: {{title: '', license: '', creators: [], intended_use: ''}}  # for the report and for exports
  #max_reject_ratio: 0.05  # share of bad images, 0-1, that stops the run
  #columns:  # of a table
    #image: image
    #label: label
    #group: ''  # images with the same value stay in one split
    #split: ''  # names the split of each image
  #pixels:
    #policy: copy  # resize and raw store smaller images
    #side_px: 256

# A reviewed schema; the first run writes the file if it does not exist.
#schema: ''

# Limits of the dataset; the pipeline stops when one is exceeded.
#gate:
  #mode: stop  # or report, which continues
  #min_images_per_class: 1
  #max_imbalance: 0  # images of the largest class per image of the smallest class; 0 is off
  #near_leaks: false  # search for similar images in different splits

input:
  image_side_px: 96  # height and width of the input of the model
  batch_size: 32
  #train_ops: ''  # empty is decode_random_crop(96)|flip
  #device_ops: ''  # ops on complete batches, such as mixup(0.2)
  #shuffle: window
  #cache: auto

train:
  model: small_cnn  # resnet20, MobileNetV2, ... or my_model.build, the example in this folder
  epochs: 10
  #weights: ''  # imagenet, or a file
  #frozen: false  # true trains only the last layer
  #optimizer: adamw
  #learning_rate: 2e-3
  #schedule: cosine
  #weight_decay: 1e-4
  #class_weights: ''  # balanced
  #patience: 0  # the training ends after so many epochs without an improvement; 0 is off

evaluate:
  min_accuracy: 0.0  # a model with a lower accuracy is not pushed
  #max_drop: null  # largest difference to the accuracy of the last blessed model, if lower
"""

_MODEL_TEXT = '''\
"""An example of a custom model: `PYTHONPATH=. feedline run --config pipeline.yaml --set train.model=my_model.build`."""

import keras
from trainer.models import ModelSpec


def build(spec: ModelSpec) -> keras.Model:
    """Returns a model from uint8 images of `spec.side_px` pixels to `spec.classes` probabilities."""
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(inputs)
    for width in (16, 32, 64):
        features = keras.layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(inputs, keras.layers.Dense(spec.classes, activation="softmax")(features))
'''

_README_TEXT = """\
# A Feedline project

    feedline doctor --config pipeline.yaml    # list missing requirements of this machine
    feedline run --config pipeline.yaml       # train and push a model, write a report

First set `ingest.source` in `pipeline.yaml` to the path of your images. A run writes into `work/`: the models into
`work/serving`, the report about the images into `work/report.html`. To train the model in `my_model.py`:

    PYTHONPATH=. feedline run --config pipeline.yaml --set train.model=my_model.build
"""

_GITIGNORE_TEXT = """\
work/
__pycache__/
"""


def project_files(source: str = DEFAULT_SOURCE) -> dict[str, str]:
    """Returns name -> text of every file of a new project.

    Args:
      source: value of `ingest.source` in the configuration.
    """
    return {
        CONFIG_NAME: _CONFIG_TEXT.format(source=one_line(source)),
        "my_model.py": _MODEL_TEXT,
        "README.md": _README_TEXT,
        ".gitignore": _GITIGNORE_TEXT,
    }


@click.command("init", cls=Command)
@click.argument("directory", type=DIR, default=".")
@click.option("--images", type=PATH, help="Path of your images, for ingest.source in the file.")
@json_option
def command(directory: str, images: str | None, as_json: bool) -> None:
    """Write a commented pipeline.yaml, an example model and a README into DIRECTORY.

    The default of DIRECTORY is the current directory. It may contain files, such as the images; no file is replaced.

    \b
    Examples:
      feedline init flowers
      feedline init . --images photos
    """
    source = images if not images or storage.is_remote(images) else os.path.abspath(images)
    files = project_files(source) if source else project_files()
    _check_directory(directory, files)
    try:
        for name, text in files.items():
            storage.write_bytes(os.path.join(directory, name), text.encode())
    except OSError as error:
        raise OptionError(f"{directory} cannot be written: {error.strerror}") from error
    change_directory = "" if os.path.samefile(directory, ".") else f"cd {shlex.quote(directory)} && "
    next_command = f"{change_directory}{program()} run --config {CONFIG_NAME}"
    if as_json:
        print_json({"directory": os.path.abspath(directory), "files": list(files), "next": next_command})
        return
    for name in files:
        echo(os.path.join(directory, name))
    config = os.path.join(directory, CONFIG_NAME)
    if images and not (storage.is_remote(images) or set(images) & set("*?[{") or os.path.exists(images)):
        say(f"{images} does not exist yet; put the images there, or correct ingest.source in {config}")
    if not images and not os.path.exists(os.path.join(directory, DEFAULT_SOURCE)):
        echo("", f"Set ingest.source in {config} to the path of your images; it is {DEFAULT_SOURCE} now.")
    echo("", f"Try next:  {next_command}")


def _check_directory(directory: str, names: Iterable[str]) -> None:
    if storage.is_remote(directory):
        raise OptionError(f"{directory} is not on this machine; name a local directory")
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise OptionError(f"{directory} is a file; name an existing or a new directory")
    existing = [name for name in names if os.path.lexists(os.path.join(directory, name))]
    if existing:
        raise OptionError(f"{directory} already has {', '.join(existing)}; move them, or name another directory")

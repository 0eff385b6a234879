"""The files of a new project: a commented `pipeline.yaml`, a model of one's own, and what goes with them."""

from __future__ import annotations

from beam_jobs.common.yaml_text import one_line

CONFIG_NAME = "pipeline.yaml"
DEFAULT_SOURCE = "photos"

_CONFIG = """\
# Settings of a Feedline pipeline. A line such as #seed: 0 shows a default; take the # away to change it.
#
#   feedline run --config pipeline.yaml                  images to a model; a second run does only what changed
#   feedline run --config pipeline.yaml --show-config    every setting there is, and where its value came from
#   feedline doctor --config pipeline.yaml               what is missing on this machine
#
# FEEDLINE_TRAIN__EPOCHS=20 in the environment wins over this file, and --set train.epochs=20 over both.

root: work  # everything the pipeline writes

ingest:
  # Your images: a folder with one sub-folder a class, a CSV or JSONL table, COCO json, an archive, s3:// or gs://
  source: {source}
  #source_kind: auto
  #splits: {{train: 0.9, eval: 0.1}}  # the first trains, the second evaluates
  #stratify: false  # cut every class by these shares on its own
  #seed: 0  # another seed is another split
  #duplicates: keep  # or drop exact copies; copies are never parted between splits
  #near_duplicates: off  # report, group (look-alikes stay in one split) or drop
  #max_reject_ratio: 0.05  # share of bad images, 0-1, that stops the run
  #columns:  # of a table
    #image: image
    #label: label
    #group: ''  # images with the same value stay in one split
    #split: ''  # names the split itself
  #pixels:
    #policy: copy  # resize or raw store less
    #side_px: 256

# A reviewed schema; the first run writes one that is not there.
#schema: ''

# What the dataset may be before the pipeline stops.
#gate:
  #mode: stop  # report goes on
  #min_images_per_class: 1
  #max_imbalance: 0  # images of the largest class for one of the smallest; 0 is off
  #near_leaks: false  # search for look-alikes across splits

input:
  image_side_px: 96  # height and width the model sees
  batch_size: 32
  #train_ops: ''  # such as decode_random_crop(96)|flip, which is what empty stands for
  #device_ops: ''  # such as mixup(0.2), on whole batches
  #shuffle: window
  #cache: auto

train:
  model: small_cnn  # resnet20, MobileNetV2, ... or my_model.build, the example in this folder
  epochs: 10
  #weights: ''  # imagenet, or a file
  #frozen: false  # train the last layer alone
  #optimizer: adamw
  #learning_rate: 2e-3
  #schedule: cosine
  #weight_decay: 1e-4
  #class_weights: ''  # balanced
  #patience: 0  # epochs without an improvement that end the training; 0 is off

evaluate:
  min_accuracy: 0.0  # no model below it is pushed
  #max_drop: null  # how far it may lie below the model before
"""

_MODEL = '''\
"""A model of your own: `PYTHONPATH=. feedline run --config pipeline.yaml --set train.model=my_model.build`."""

import keras
from trainer.models import ModelSpec


def build(spec: ModelSpec) -> keras.Model:
    """Takes uint8 images of `spec.side_px` pixels and gives `spec.classes` probabilities."""
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(inputs)
    for width in (16, 32, 64):
        features = keras.layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(inputs, keras.layers.Dense(spec.classes, activation="softmax")(features))
'''

_README = """\
# A Feedline project

    feedline doctor --config pipeline.yaml    # is everything there?
    feedline run --config pipeline.yaml       # images to a pushed model and a report

Name your images in `pipeline.yaml` first. Everything a run makes lies in `work/`: `work/serving` holds the models,
`work/report.html` what became of the images. To train the model in `my_model.py`:

    PYTHONPATH=. feedline run --config pipeline.yaml --set train.model=my_model.build
"""

_IGNORED = """\
work/
__pycache__/
"""


def files(source: str = DEFAULT_SOURCE) -> dict[str, str]:
    """Returns name -> text of every file of a new project.

    Args:
      source: of the images, as it is to stand in the configuration.
    """
    return {
        CONFIG_NAME: _CONFIG.format(source=one_line(source)),
        "my_model.py": _MODEL,
        "README.md": _README,
        ".gitignore": _IGNORED,
    }

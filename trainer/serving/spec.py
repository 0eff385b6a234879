"""What stands beside the graph of an exported model: its classes, and what serving has to know of its dataset."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError
from beam_jobs.options import ImageLimits, PixelOptions

EVALUATE_SIGNATURE = "evaluate"  # serialised records in, for TFMA
PROBABILITIES = "probabilities"
# In the place where SavedModel keeps what is not its own. Models with equal descriptions take the same records and
# answer with the same classes, so that one can be measured against the other.
DESCRIPTION_NAME = "assets.extra/feedline.json"
SPEC_NAME = "assets.extra/serving.json"


@dataclass(frozen=True, kw_only=True)
class ServingSpec:
    """What serving has to know of the dataset that a model was trained on.

    Examples:
      >>> from beam_jobs import load
      >>> from trainer import ServingSpec
      >>> ServingSpec.of(load("dataset")).pixels.policy
      'copy'

    Attributes:
      pixels: what the ingest did to the pixels; a file to classify goes through the same.
      limits: what an image may be.
      multi_label: whether an image may have several labels.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)
    limits: ImageLimits = field(default_factory=ImageLimits)
    multi_label: bool = False

    @classmethod
    def of(cls, dataset: Manifest) -> ServingSpec:
        """Returns the spec of a dataset."""
        return cls(
            pixels=PixelOptions(**dataset.options["pixels"]),
            limits=ImageLimits(**dataset.options["limits"]),
            multi_label=dataset.label_kind == "multi",
        )

    @classmethod
    def read(cls, model: str) -> ServingSpec:
        """Reads the spec of an exported model.

        Args:
          model: directory of the SavedModel.

        Raises:
          OptionError: the model has none.
        """
        values = read_json(model, SPEC_NAME)
        return cls(
            pixels=PixelOptions(**values["pixels"]),
            limits=ImageLimits(**values["limits"]),
            multi_label=values["multi_label"],
        )

    def write(self, model: str) -> None:
        """Writes the spec beside the graph of an exported model."""
        write_json(model, SPEC_NAME, dataclasses.asdict(self))


def write_json(model: str, name: str, values: Any) -> None:
    """Writes a file of JSON beside the graph of an exported model, on any file system that TensorFlow writes."""
    import tensorflow as tf

    target = os.path.join(model, name)
    tf.io.gfile.makedirs(os.path.dirname(target))
    with tf.io.gfile.GFile(target, "w") as stream:
        stream.write(json.dumps(values, indent=2, ensure_ascii=False))


def read_json(model: str, name: str) -> Any:
    """Reads a file of JSON beside the graph of an exported model.

    Raises:
      OptionError: the model has none.
    """
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(os.path.join(model, name)) as stream:
            return json.loads(stream.read())
    except tf.errors.NotFoundError as error:
        raise OptionError(
            f"{model} has no {name}: an earlier release or another program exported it; run the pipeline again"
        ) from error

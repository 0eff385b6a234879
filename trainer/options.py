"""Options of the input pipeline and of training, checked when they are made; JSON is their only door from TFX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_jobs import validate
from beam_jobs.errors import OptionError

AUTO_OPS = ""


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How shards become batches.

    Attributes:
      image_side_px: height and width of the images the model sees.
      batch_size: images a step, over all replicas.
      train_ops: ops of training, such as `decode_random_crop(224)|flip`; empty takes that with `image_side_px`.
      eval_ops: ops of evaluation and serving, never random; empty takes a resize and a centre crop.
      seed: decides the order and every random draw, together with the epoch and the key of the record.
      shuffle_mb: memory of the shuffle buffer in MB (1e6 bytes) of serialised records.
      readers: shards read at a time; bounds open files and read buffers whatever the number of shards.
      threads: threads for parsing and image ops; 0 means one a core.
      parse_batch: records parsed by one op. Parsing 64 at a time and taking them apart again costs half of
        parsing one by one (`benchmarks.micro`).
      prefetch_batches: finished batches kept ready; each holds batch_size x side^2 x 3 bytes.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    image_side_px: int = 224
    batch_size: int = 64
    train_ops: str = AUTO_OPS
    eval_ops: str = AUTO_OPS
    seed: int = 0
    shuffle_mb: float = 64.0
    readers: int = 8
    threads: int = 0
    parse_batch: int = 64
    prefetch_batches: int = 2

    def __post_init__(self) -> None:
        for name in ("image_side_px", "batch_size", "readers", "parse_batch", "prefetch_batches"):
            validate.whole(name, getattr(self, name), 1)
        validate.whole("threads", self.threads, 0)
        validate.whole("seed", self.seed, 0)
        if self.seed >= 1 << 32:  # what Keras and NumPy take
            raise OptionError(f"seed is {self.seed}; it must be below 2^32")
        validate.at_least("shuffle_mb", self.shuffle_mb, 0)

    @property
    def thread_count(self) -> int:
        """Threads for parsing and image ops, at least 1."""
        return self.threads or os.cpu_count() or 1

    @property
    def train_spec(self) -> str:
        """The ops of training, spelled out."""
        return self.train_ops or f"decode_random_crop({self.image_side_px})|flip"

    @property
    def eval_spec(self) -> str:
        """The ops of evaluation and serving, spelled out. The margin around the crop is the customary 256 : 224."""
        side = self.image_side_px
        return self.eval_ops or f"decode|resize_short({round(side * 256 / 224)})|center_crop({side})"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a model is trained.

    Attributes:
      model: name in `models.MODELS`.
      epochs: passes over the training split.
      learning_rate: peak of a one-epoch linear warm-up followed by a cosine decay to zero.
      weight_decay: of AdamW.
      label_smoothing: share of the target spread over all classes, 0 to 1.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    model: str = "small_cnn"
    epochs: int = 10
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        validate.whole("epochs", self.epochs, 1)
        validate.above("learning_rate", self.learning_rate, 0)
        validate.at_least("weight_decay", self.weight_decay, 0)
        if not 0 <= self.label_smoothing < 1:
            raise OptionError(f"label_smoothing is {self.label_smoothing!r}; it must be from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Everything the Trainer component is told; crosses TFX as JSON.

    Attributes:
      input: options of the input pipeline.
      train: options of training.
    """

    input: InputOptions = field(default_factory=InputOptions)
    train: TrainOptions = field(default_factory=TrainOptions)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainerConfig:
        """Builds the options from `to_json` output.

        Raises:
          OptionError: a value is out of range.
        """
        return cls(input=InputOptions(**values["input"]), train=TrainOptions(**values["train"]))

"""Datasets whose records hold pixels instead of files: nothing is left to decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from beam_jobs.errors import OptionError
from beam_jobs.manifest import Manifest
from beam_jobs.types import LABEL_KINDS
from trainer.ops import IMAGE, Decode, DecodeRandomCrop, Features, Op, RandomCropResize


@dataclass(frozen=True)
class DecodeRaw:
    """Takes stored pixels as they are: string scalar -> uint8[side, side, 3]."""

    side: int
    random: ClassVar[bool] = False

    def __call__(self, features: Features, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        pixels = tf.reshape(tf.io.decode_raw(features[IMAGE], tf.uint8), [self.side, self.side, 3])
        return {**features, IMAGE: pixels}


def stored_ops(ops: Sequence[Op], dataset: Manifest) -> tuple[Op, ...]:
    """Returns the ops that begin at what the records of a dataset hold.

    Those of the policy `raw` need no decode, so a fused decode and crop becomes the crop alone.

    Raises:
      OptionError: the images do not have one label each, which is what training learns from.
    """
    if dataset.label_kind != "single":
        raise OptionError(
            f"the images have {LABEL_KINDS[dataset.label_kind]}; training reads datasets of one label each"
        )
    pixels = dataset.options["pixels"]
    if pixels["policy"] != "raw":
        return tuple(ops)
    kept = [RandomCropResize(op.side, op.min_area) if isinstance(op, DecodeRandomCrop) else op for op in ops]
    return (DecodeRaw(pixels["side_px"]), *(op for op in kept if not isinstance(op, Decode)))

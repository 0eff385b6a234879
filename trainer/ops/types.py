"""What an image op is. An op that also works on whole batches says so by its class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import tensorflow as tf

from trainer.ops.kernels import gather_pixels

IMAGE = "image"
MASK = "mask"
BOXES = "boxes"
BOX_LABELS = "box_labels"
TARGETS = (MASK, BOXES, BOX_LABELS)

Features: TypeAlias = Mapping[str, tf.Tensor]
Size: TypeAlias = "tuple[int, int] | None"  # height and width in pixels, None where images differ


class Op(Protocol):
    """One step of preprocessing."""

    @property
    def draws(self) -> int:
        """How many random numbers the op takes for an image."""

    @property
    def random(self) -> bool:
        """Whether it takes any."""

    def size(self, before: Size) -> Size:
        """Returns height and width after the op, as far as they are the same for all images."""

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features with `image` changed, and what moves with it.

        Args:
          features: of one image: `image`, and perhaps `boxes` float32[n, 4] (ymin, xmin, ymax, xmax, shares of the
            image) with `box_labels` int64[n], and `mask` uint8[height, width, 1]. Others pass through.
          numbers: float32[draws] in [0, 1).
        """


class ImageOp:
    """Base of the ops: no chance, and the size stays."""

    draws: ClassVar[Any] = 0  # a property in an op whose arguments decide it

    @property
    def random(self) -> bool:
        """Whether the op takes random numbers."""
        return bool(self.draws > 0)

    def size(self, before: Size) -> Size:
        """Returns height and width after the op."""
        return before


class BatchOp(ImageOp, ABC):
    """An op that also works on a batch of images of one size, with any array library."""

    # The most pixels an image may have for a batch on the host to be faster than one image at a time.
    batch_px: ClassVar[int] = 96 * 96

    @abstractmethod
    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """Returns the changed images.

        Args:
          xp: `keras.ops` or `trainer.ops.tf_ops`.
          images: [batch, height, width, 3], 0-255, uint8 or float32.
          numbers: float32[batch, draws].

        Returns:
          [batch, height, width, 3], 0-255: the type of `images`, or float32 that still has to be rounded.
        """


class IndexOp(BatchOp):
    """An op that moves whole rows and columns of pixels. Neighbours in a chain become one gather."""

    moves_window: ClassVar[bool] = True

    @abstractmethod
    def index(self, xp: Any, rows: Any, columns: Any, numbers: Any) -> tuple[Any, Any]:
        """Returns which source row each row after the op shows, int32[batch, height], and which column."""

    def batch(self, xp: Any, images: Any, numbers: Any) -> Any:
        """See `BatchOp`."""
        return moved(xp, [(self, numbers)], images)


class MixingOp(BatchOp):
    """An op that mixes each image of a batch with another one, and their labels alike."""

    batch_px = 1 << 62

    @abstractmethod
    def batch(self, xp: Any, images: Any, numbers: Any, lanes: int = 1) -> Any:
        """See `BatchOp`; with `lanes`, an image is mixed with one that is a multiple of so many places away."""

    @abstractmethod
    def labels(self, xp: Any, labels: Any, numbers: Any, lanes: int = 1) -> Any:
        """Returns the mixed labels, float32[batch, classes]."""


def moved(xp: Any, steps: Sequence[tuple[IndexOp, Any]], images: Any) -> Any:
    """Runs neighbours that only move rows and columns: each pixel is copied once, whatever their number."""
    batch, height, width, _ = xp.shape(images)
    rows = xp.broadcast_to(xp.arange(height, dtype="int32")[None], (batch, height))
    columns = xp.broadcast_to(xp.arange(width, dtype="int32")[None], (batch, width))
    for op, drawn in steps:
        rows, columns = op.index(xp, rows, columns, drawn)
    return gather_pixels(xp, images, rows, columns)

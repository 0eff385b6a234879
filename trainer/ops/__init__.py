"""Image ops: frozen dataclasses in one table, shared by training, evaluation and serving.

An op is a function of the features of one image, `{"image": ...}`, and of random numbers. The decode ops turn `image`
from an encoded string into uint8[height, width, 3], sRGB, 0-255; all others except `normalize` keep that type.
`"decode_random_crop(224)|flip"` is the same as `(DecodeRandomCrop(side=224), Flip())`. `docs/ops.md` describes all ops.
"""

from __future__ import annotations

from trainer.ops.base import BOX_LABELS, BOXES, IMAGE, MASK, BatchOp, Features, ImageOp, MixingOp, Op
from trainer.ops.chain import (
    OPS,
    apply_batch_ops,
    apply_ops,
    draw_numbers,
    first_batch_op,
    mix_batch_labels,
    outputs,
    parse_ops,
)
from trainer.ops.colour import ColorJitter, Cutout, Normalize, bind_statistics
from trainer.ops.geometry import CenterCrop, Flip, FlipVertical, MultiCrop, PadReflect, RandomCrop, Rotate
from trainer.ops.mixing import Cutmix, Mixup, mix_weighted
from trainer.ops.rand_augment import RandAugment
from trainer.ops.resize import Decode, DecodeRandomCrop, RandomCropResize, Resize, ResizeShort

__all__ = [
    "BOXES",
    "BOX_LABELS",
    "IMAGE",
    "MASK",
    "OPS",
    "BatchOp",
    "CenterCrop",
    "ColorJitter",
    "Cutmix",
    "Cutout",
    "Decode",
    "DecodeRandomCrop",
    "Features",
    "Flip",
    "FlipVertical",
    "ImageOp",
    "MixingOp",
    "Mixup",
    "MultiCrop",
    "Normalize",
    "Op",
    "PadReflect",
    "RandAugment",
    "RandomCrop",
    "RandomCropResize",
    "Resize",
    "ResizeShort",
    "Rotate",
    "apply_batch_ops",
    "apply_ops",
    "bind_statistics",
    "draw_numbers",
    "first_batch_op",
    "mix_batch_labels",
    "mix_weighted",
    "outputs",
    "parse_ops",
]

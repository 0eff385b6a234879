"""The ops of evaluation that follow from those of training: the same geometry without the chance."""

from __future__ import annotations

import re

_CALL = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*")
_SIDE = re.compile(r"(?:^|\bside\s*=)\s*(\d+)")
_COUNTED_SIDE = re.compile(r"(?:^[^,]+,|\bside\s*=)\s*(\d+)")
_METHOD = re.compile(r"\bmethod\s*=\s*(['\"]\w+['\"])")
_SAME = ("decode", "resize", "resize_short", "center_crop", "pad_reflect", "normalize")
_FIXES_SIZE = ("resize", "center_crop")
_MARGIN = 256 / 224  # the customary margin around the crop


def eval_chain(train_ops: str, side_px: int) -> str:
    """Returns the ops of evaluation for ops of training.

    A random crop becomes the crop of the middle; one of a random size becomes a resize that leaves the customary
    margin, 256 : 224, and the crop of the middle. Ops that only add chance, such as flips and colours, are left out.
    Where no op sets the size, a resize to that of the model does, which leaves images of that size as they are.

    Args:
      train_ops: the chain of training.
      side_px: height and width of the images that the model sees.
    """
    chain: list[str] = []
    for part in train_ops.split("|"):
        match = _CALL.fullmatch(part)
        chain += _steady(match[1], match[2] or "") if match else []
    if not any(op.partition("(")[0] in _FIXES_SIZE for op in chain):
        last = len(chain) - (bool(chain) and chain[-1].startswith("normalize"))
        chain.insert(last, f"resize({side_px})")
    return "|".join(chain)


def _steady(name: str, arguments: str) -> list[str]:
    """Returns what stands for an op of training in evaluation."""
    if name in _SAME:
        return [f"{name}({arguments})" if arguments else name]
    side = (_COUNTED_SIDE if name == "multi_crop" else _SIDE).search(arguments)
    if not side:
        return []
    crop = f"center_crop({side[1]})"
    if name in ("random_crop", "multi_crop"):
        return [crop]
    if name in ("decode_random_crop", "random_crop_resize"):
        method = _METHOD.search(arguments)
        short = f"resize_short({round(int(side[1]) * _MARGIN)}{f', method={method[1]}' if method else ''})"
        return [*(["decode"] if name == "decode_random_crop" else []), short, crop]
    return []

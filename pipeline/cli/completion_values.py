"""Kinds of values that a shell completes from what this program knows: chains of ops, and settings."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

# The names of `trainer.ops.OPS`, which cannot be asked: TensorFlow comes with it, and nobody waits that long for a TAB.
OPS = (
    "center_crop",
    "color_jitter",
    "cutmix",
    "cutout",
    "decode",
    "decode_random_crop",
    "flip",
    "flip_vertical",
    "mixup",
    "multi_crop",
    "normalize",
    "pad_reflect",
    "rand_augment",
    "random_crop",
    "random_crop_resize",
    "resize",
    "resize_short",
    "rotate",
)


class OpChain(click.ParamType):
    """A chain of ops, such as `decode|resize(32)|flip`; taken as it is typed."""

    name = "ops"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns what the last op of the chain may be, with the chain in front of it."""
        return [CompletionItem(chain) for chain in _chains(incomplete)]


class Assignment(click.ParamType):
    """A setting and its value, such as `train.epochs=20`; taken as it is typed."""

    name = "assignment"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the settings, each with its `=`; of ops the values too."""
        key, equals, value = incomplete.partition("=")
        if equals:
            chains = _chains(value) if key.endswith("_ops") else []
            return [CompletionItem(f"{key}={chain}") for chain in chains]
        return [CompletionItem(f"{name}=") for name in _settings() if name.startswith(key)]


def _chains(incomplete: str) -> list[str]:
    before, bar, last = incomplete.rpartition("|")
    return [f"{before}{bar}{name}" for name in OPS if name.startswith(last)]


def _settings() -> list[str]:
    """Returns the dotted names of all settings that take a value, in the order of the page that describes them."""
    from pipeline.settings import catalog

    every = [f"{section}.{name}".lstrip(".") for section in _sections() for name in catalog.names(section)]
    return [name for name in every if not catalog.is_section(name)]


def _sections() -> list[str]:
    from pipeline.config import TARGET_SECTIONS
    from pipeline.settings import catalog

    return [*catalog.sections(), *TARGET_SECTIONS]


OP_CHAIN = OpChain()
ASSIGNMENT = Assignment()

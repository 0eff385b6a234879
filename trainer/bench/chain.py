"""The input pipeline taken apart: its ops one by one, spelled, and without what makes it fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainer.input.plan import Choices, make_choices
from trainer.input.windowed_reader import FOREVER
from trainer.ops import OPS, Decode, DecodeRandomCrop, MixingOp, Op
from trainer.options import InputOptions

_LONGEST = 40  # characters of an op in a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What is measured.

    Attributes:
      path: directory of the dataset.
      split: name of the split.
      options: how shards become batches.
      choices: what `make_dataset` decides for them.
    """

    path: str
    split: str
    options: InputOptions
    choices: Choices

    @property
    def files(self) -> list[str]:
        """Paths of the shards."""
        return self.choices.dataset.shard_paths(self.choices.path, self.split)

    @property
    def record_bytes(self) -> float:
        """Mean size of a record in its shard."""
        info = self.choices.dataset.split(self.split)
        return info.bytes / info.records

    @property
    def is_raw(self) -> bool:
        """Whether the records hold pixels, so that nothing is decoded."""
        return self.choices.dataset.options["pixels"]["policy"] == "raw"


def open_source(path: str, split: str, options: InputOptions) -> Source:
    """Looks at a dataset.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit.
      CorruptDataset: the dataset is damaged.
    """
    choices = make_choices(path, split, options, training=True, epochs=FOREVER)
    return Source(path=path, split=split, options=options, choices=choices)


def spell(op: Op) -> str:
    """Returns an op as `parse_ops` reads it, arguments that have their default left out."""
    found = next(((name, kind) for name, kind in OPS.items() if isinstance(op, kind)), None)
    if found is None:  # what stands for a decode where nothing is encoded
        return type(op).__name__
    words = []
    for place, field in enumerate(dataclasses.fields(found[1])):
        value = getattr(op, field.name)
        if value != field.default:
            words.append(repr(value) if place == 0 else f"{field.name}={value!r}")
    return f"{found[0]}({', '.join(words)})" if words else found[0]


def names_of(ops: Sequence[Op]) -> list[str]:
    """Returns how each op of a chain is called in the figures; one that comes twice is numbered."""
    spelled = [text if len(text) <= _LONGEST else f"{text.partition('(')[0]}(...)" for text in map(spell, ops)]
    return [
        f"{name} #{spelled[:place].count(name) + 1}" if spelled.count(name) > 1 else name
        for place, name in enumerate(spelled)
    ]


def unfused(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns the chain that decodes whole images and crops them afterwards."""
    if isinstance(ops[0], DecodeRandomCrop):
        return (Decode(), ops[0].on_pixels(), *ops[1:])
    return tuple(ops)


def first_mixing(ops: Sequence[Op]) -> int:
    """Returns the place of the first op that takes several images at a time; the length of the chain if none does."""
    return next((place for place, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))

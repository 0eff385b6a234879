"""The dataset card: what identifies a dataset and what shaped it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.common.strings import plural
from beam_jobs.dataset import leaks
from beam_jobs.dataset.leaks import Leak
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.types import LABEL_KINDS
from components.dataset_report import shown

_MOST_SPLITS = 50
_MOST_CHARACTERS = 1000  # of a warning, which may name several columns or classes


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """One split.

    Attributes:
      name: of the split.
      images: in it.
      share: of all written images, 0-1.
      classes: that it has images of.
      shards: files.
      bytes: of all files.
    """

    name: str
    images: int
    share: float
    classes: int
    shards: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Mean and standard deviation of a channel of the first split, 0-255."""

    name: str
    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Card:
    """The card.

    Attributes:
      source: what the dataset was made of.
      digest: identity of its content.
      facts: name and value of what a reader asks first.
      options: name and value of everything that shaped it.
      versions: package and version that wrote it.
      splits: one row a split.
      channels: red, green and blue; empty when they were not measured.
      channel_split: the split that they describe.
      warnings: what the ingest warned of.
    """

    source: str
    digest: str
    facts: Sequence[tuple[str, str]]
    options: Sequence[tuple[str, str]]
    versions: Sequence[tuple[str, str]]
    splits: Sequence[SplitRow]
    channels: Sequence[Channel]
    channel_split: str
    warnings: Sequence[str]


def card(dataset: Manifest, crossing: Sequence[Leak]) -> Card:
    """Returns the card of a dataset, given the sets of images that lie in several splits of it."""
    counts, channels = dataset.counts, dataset.channels
    warnings = [*dataset.warnings[:_MOST_SPLITS], *([leaks.sentence(crossing)] if crossing else [])]
    facts = [
        ("Content", dataset.digest),
        ("Labels", f"{LABEL_KINDS[dataset.label_kind]}, {plural(len(dataset.labels), 'class', 'classes')}"),
        ("Found", plural(counts.found, "image")),
        ("Written", plural(counts.written, "image")),
        ("Rejected", plural(counts.rejected, "image")),
        ("Hidden", dataset.remarks.hidden_text),
        ("Dropped", plural(counts.dropped, "image")),
        ("Re-encoded", ", ".join(f"{count:,} {reason}" for reason, count in counts.normalised.items()) or "none"),
        ("Options", dataset.options_digest),
        ("Format", f"version {dataset.format_version}"),
    ]
    return Card(
        source=shown.place(dataset.source, 100),
        digest=dataset.digest,
        facts=[(name, shown.text(value, 400)) for name, value in facts if value],
        options=[(name, shown.text(value)) for name, value in _flat(dataset.options)],
        versions=[(shown.text(name), shown.text(value)) for name, value in dataset.producer.items()],
        splits=_splits(dataset),
        channels=[
            Channel(name=name, mean=mean, std=std)
            for name, mean, std in zip(("Red", "Green", "Blue"), channels.mean_rgb, channels.std_rgb, strict=True)
        ]
        if channels
        else (),
        channel_split=channels.split if channels else "",
        warnings=[shown.text(line, _MOST_CHARACTERS) for line in warnings],
    )


def _splits(dataset: Manifest) -> list[SplitRow]:
    return [
        SplitRow(
            name=name,
            images=info.records,
            share=info.records / max(1, dataset.counts.written),
            classes=len(info.classes),
            shards=len(info.shards),
            bytes=info.bytes,
        )
        for name, info in list(dataset.splits.items())[:_MOST_SPLITS]
    ]


def _flat(options: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted name and text of every option that holds something."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{name}.")
        elif name == "splits":
            yield name, ", ".join(f"{split} {share:g}" for split, share in value)
        elif value not in ("", [], None):
            yield where + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)

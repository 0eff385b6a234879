"""The results of an ingest as lines for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_jobs.common import strings
from beam_jobs.common.strings import name_list, plural

if TYPE_CHECKING:
    from beam_jobs.dataset.manifest import Manifest

_WIDTH = 13  # smallest width of the headings, characters


def dataset_lines(dataset: Manifest) -> list[tuple[str, str]]:
    """Returns the heading and text of each line."""
    counts = dataset.counts
    rejected_text, normalised_text = (
        ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        for reasons in (counts.rejects, counts.normalised)
    )
    return [
        ("images", f"{counts.found:,} found, {counts.written:,} written"),
        ("rejected", f"{counts.rejected:,} ({rejected_text})" if counts.rejected else "none"),
        *([("re-encoded", f"{normalised_text}; the trainer cannot read the originals")] if normalised_text else []),
        *([("hidden", dataset.remarks.hidden_text)] if dataset.remarks.hidden else []),
        ("duplicates", _duplicates_text(dataset)),
        *([("near duplicates", near_text)] if (near_text := _near_duplicates_text(dataset)) else []),
        *([("classes", name_list(dataset.labels))] if dataset.labels else []),
        *((f"split {name}", _split_text(dataset, name)) for name in dataset.splits),
        *(("warning", line) for line in dataset.warnings),
    ]


def aligned(lines: Sequence[tuple[str, str]], min_width: int = _WIDTH, columns: int = 0) -> str:
    """Returns lines as text, with the headings padded to the same width, and the texts wrapped at words.

    Args:
      lines: headings and texts.
      min_width: smallest width of the headings, characters.
      columns: width of a line, characters; 0 is the width of the terminal, or no limit without a terminal.
    """
    width = max([min_width, *(1 + len(name) for name, _ in lines)])
    columns = columns or (shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize)
    wrapper = textwrap.TextWrapper(max(1, columns - width), break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        f"{strings.line(name):<{width}}" + ("\n" + " " * width).join(wrapper.wrap(strings.line(value)))
        for name, value in lines
    )


def _duplicates_text(dataset: Manifest) -> str:
    counts = dataset.counts
    if not counts.duplicate_clusters:
        return "none"
    conflicts = f", label conflicts in {counts.label_conflicts:,}" if counts.label_conflicts else ""
    dropped = f", {counts.duplicates_dropped:,} dropped" if counts.duplicates_dropped else ""
    clusters_text = f"{plural(counts.duplicate_images, 'image')} in {plural(counts.duplicate_clusters, 'set')}"
    return f"{clusters_text}{dropped}{conflicts}"


def _near_duplicates_text(dataset: Manifest) -> str:
    if dataset.options.get("near_duplicates", "off") == "off":
        return "not searched; --near-duplicates report searches for them"
    counts = dataset.counts
    dropped = f", {counts.near_dropped:,} dropped" if counts.near_dropped else ""
    clusters_text = f"{plural(counts.near_images, 'image')} in {plural(counts.near_clusters, 'set')}{dropped}"
    return clusters_text if counts.near_clusters else ""


def _split_text(dataset: Manifest, name: str) -> str:
    split = dataset.splits[name]
    return f"{plural(split.records, 'image')}, {plural(len(split.shards), 'shard')}, {split.bytes:,} bytes"

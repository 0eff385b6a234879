"""The results of an ingest as lines for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_jobs.common import strings
from beam_jobs.common.strings import listed, plural

if TYPE_CHECKING:
    from beam_jobs.dataset.manifest import Manifest

_WIDTH = 13  # least width of the headings


def dataset_lines(dataset: Manifest) -> list[tuple[str, str]]:
    """Returns the heading and text of each line."""
    counts = dataset.counts
    rejected, normalised = (
        ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        for reasons in (counts.rejects, counts.normalised)
    )
    return [
        ("images", f"{counts.found:,} found, {counts.written:,} written"),
        ("rejected", f"{counts.rejected:,} ({rejected})" if counts.rejected else "none"),
        *([("re-encoded", f"{normalised}; as the trainer cannot read them")] if normalised else []),
        *([("hidden", dataset.remarks.hidden_text)] if dataset.remarks.hidden else []),
        ("duplicates", _duplicates(dataset)),
        *([("near duplicates", near)] if (near := _near_duplicates(dataset)) else []),
        *([("classes", listed(dataset.labels))] if dataset.labels else []),
        *((f"split {name}", _split(dataset, name)) for name in dataset.splits),
        *(("warning", line) for line in dataset.warnings),
    ]


def aligned(lines: Sequence[tuple[str, str]], least: int = _WIDTH, columns: int = 0) -> str:
    """Returns lines as text, with headings of one width, `least` or more, and wrapped at words.

    Args:
      lines: headings and texts.
      least: smallest width of the headings, characters.
      columns: width of the text, characters; 0 is that of the terminal, and no limit without one.
    """
    width = max([least, *(1 + len(name) for name, _ in lines)])
    columns = columns or (shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize)
    wrapper = textwrap.TextWrapper(max(1, columns - width), break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        f"{strings.line(name):<{width}}" + ("\n" + " " * width).join(wrapper.wrap(strings.line(value)))
        for name, value in lines
    )


def _duplicates(dataset: Manifest) -> str:
    counts = dataset.counts
    if not counts.duplicate_clusters:
        return "none"
    conflicts = f", label conflicts in {counts.label_conflicts:,}" if counts.label_conflicts else ""
    dropped = f", {counts.duplicates_dropped:,} dropped" if counts.duplicates_dropped else ""
    sets = f"{plural(counts.duplicate_images, 'image')} in {plural(counts.duplicate_clusters, 'set')}"
    return f"{sets}{dropped}{conflicts}"


def _near_duplicates(dataset: Manifest) -> str:
    if dataset.options.get("near_duplicates", "off") == "off":
        return "not looked for; --near-duplicates report looks for them"
    counts = dataset.counts
    dropped = f", {counts.near_dropped:,} dropped" if counts.near_dropped else ""
    sets = f"{plural(counts.near_images, 'image')} in {plural(counts.near_clusters, 'set')}{dropped}"
    return sets if counts.near_clusters else ""


def _split(dataset: Manifest, name: str) -> str:
    info = dataset.splits[name]
    return f"{plural(info.records, 'image')}, {plural(len(info.shards), 'shard')}, {info.bytes:,} bytes"

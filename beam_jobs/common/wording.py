"""Words of messages and pages."""

from __future__ import annotations

from collections.abc import Sequence

WARNING = "warning   "  # how a line of an ingest begins that is more than progress


def plural(count: int, one: str, many: str = "") -> str:
    """Returns `1 image` or `1,234 images`.

    Args:
      count: of them.
      one: what one of them is called.
      many: what several are called; `one` with an s when not given.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Returns `2: cat, dog`: how many names there are, and the first of them.

    Args:
      names: of classes or the like.
      most: how many of them to name.
    """
    return f"{len(names):,}: {some(names, most)}"


def some(names: Sequence[str], most: int = 8) -> str:
    """Returns `cat, dog`: the first of the names, and dots when there are more than `most`."""
    return ", ".join(names[:most]) + " ..." * (len(names) > most)

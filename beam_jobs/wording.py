"""Words of messages and pages."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """Returns `1 image` or `1,234 images`.

    Args:
      count: of them.
      one: what one of them is called.
      many: what several are called; `one` with an s when not given.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"

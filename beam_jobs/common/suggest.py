"""Help with names that are nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: object, known: Iterable[str], within: str = "") -> str:
    """Returns one line about an unknown name: the nearest known one, if any is near, and all of them.

    Args:
      kind: what is named, such as `op`.
      name: the unknown name.
      known: what would have been right.
      within: what the names belong to, such as `train.`; shown in front of the unknown one.
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no {kind} {f'{within}{name}'!r}; {hint}known are {', '.join(names)}"

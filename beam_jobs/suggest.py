"""Help with names that are nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Returns one line about an unknown name: the nearest known one, if any is near, and all of them."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no {kind} {name!r}; {hint}known are {', '.join(names)}"

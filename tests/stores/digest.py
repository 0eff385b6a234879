"""One word for all that a pipeline delivered, to compare processes by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.trainer.batches import Seen


def digest(delivered: Sequence[Seen]) -> str:
    """Returns the number of images and a hash of all of them, in order."""
    return f"{len(delivered)} {hashlib.sha256(repr(list(delivered)).encode()).hexdigest()}"

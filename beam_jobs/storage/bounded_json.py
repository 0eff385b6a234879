"""JSON out of files of strangers, bounded in bytes and in depth, so that neither ends in memory or in recursion."""

from __future__ import annotations

import json
from typing import Any

from beam_jobs import storage

MAX_BYTES = 64 << 20  # of a file; a `dataset.json` takes 200 bytes a shard and 40 a class and split
MAX_DEPTH = 64  # lists and objects inside each other; an ingest writes 6


def read(path: str) -> Any:
    """Returns the content of a file of JSON.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no JSON, or larger or deeper than the limits.
    """
    return parse(storage.read_at_most(path, MAX_BYTES))


def parse(text: str | bytes) -> Any:
    """Returns the value of a text of JSON.

    Raises:
      ValueError: it is no JSON, or deeper than the limit.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _items(one) if isinstance(item, (dict, list))]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"its JSON is nested more than {MAX_DEPTH} deep"


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()

"""Small JSON files with a checksum of their own: what an earlier run left is taken up only if it is what it wrote."""

from __future__ import annotations

import json
from typing import Any

import google_crc32c

from beam_jobs import storage

_CHECK = "check"


def write(path: str, values: dict[str, Any], durable: bool = True) -> None:
    """Writes values with their checksum, atomically; see `storage.atomic_writer`."""
    storage.write_bytes(path, json.dumps({**values, _CHECK: _checksum(values)}).encode(), durable=durable)


def read(path: str) -> dict[str, Any]:
    """Returns the values that were written.

    Raises:
      OSError: the file is missing or not readable.
      ValueError: it is damaged.
    """
    return loads(storage.read_bytes(path))


def loads(data: bytes) -> dict[str, Any]:
    """Returns the values in the content of such a file.

    Raises:
      ValueError: it is damaged.
    """
    values = json.loads(data)
    if not isinstance(values, dict) or values.pop(_CHECK, None) != _checksum(values):
        raise ValueError("the values are not those that were written")
    return values


def _checksum(values: dict[str, Any]) -> int:
    return google_crc32c.value(json.dumps(values).encode())

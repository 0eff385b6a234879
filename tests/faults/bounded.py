"""Calls that are bound in time: one that does not return is a hang, which is counted and left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Attributes:
      hang: whether it did not end in time; its thread lives on.
      error: what it raised.
      value: what it returned; None when it did not.
    """

    hang: bool
    error: Exception | None
    value: Any


def bounded(call: Callable[[], Any], seconds: float) -> Ended:
    """Runs a call in a thread of its own, and waits for it no longer than so many seconds."""
    raised: list[Exception] = []
    returned: list[Any] = []

    def run() -> None:
        try:
            returned.append(call())
        except Exception as error:  # noqa: BLE001 - the caller says which are right
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return Ended(thread.is_alive(), next(iter(raised), None), next(iter(returned), None))

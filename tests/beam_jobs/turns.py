"""Threads that take turns at every touch of a file or a store, in an order that is drawn: forced interleavings."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from beam_jobs.storage import object_stores

T = TypeVar("T")

_ARGUMENT = {"open": 0, "os.rename": 1, "os.link": 1, "os.remove": 0}  # audit event -> which argument is the path
_PATIENCE_S = 60.0
_taken: list[Turns] = []  # the turns that are taken at this moment


class Turns:
    """Has functions run in threads of which one goes on at a time, from one touch of a place to the next."""

    def __init__(self, seed: int, place: str, look: Callable[[], object] = lambda: None) -> None:
        """Draws an order.

        Args:
          seed: of the order.
          place: beginning of the local paths that count; every object of a store does.
          look: is called at each turn, while all threads stand still.
        """
        self._draw = random.Random(seed)
        self._place = place
        self._look = look
        self._changed = threading.Condition()
        self._numbers: dict[int, int] = {}  # thread -> number of its function
        self._running: set[int] = set()
        self._waiting: set[int] = set()
        self._next: int | None = None

    def run(self, *functions: Callable[[], T]) -> list[T]:
        """Returns what the functions return; raises what one of them raises."""
        self._running = set(range(len(functions)))
        _taken.append(self)
        try:
            with ThreadPoolExecutor(len(functions)) as pool:
                return list(pool.map(self._one, range(len(functions)), functions))
        finally:
            _taken.remove(self)

    def step(self, path: str = "") -> None:
        """Waits for the next turn of this thread; passes threads and paths that do not count."""
        number = self._numbers.get(threading.get_ident())
        if number is None or (path and not path.startswith(self._place)):
            return
        with self._changed:
            self._waiting.add(number)
            self._choose()
            if not self._changed.wait_for(lambda: self._next == number, _PATIENCE_S):
                raise TimeoutError(f"{sorted(self._running - self._waiting)} take no turn")
            self._next = None
            self._waiting.remove(number)

    def _one(self, number: int, function: Callable[[], T]) -> T:
        self._numbers[threading.get_ident()] = number
        try:
            self.step()
            return function()
        finally:
            del self._numbers[threading.get_ident()]
            with self._changed:
                self._running.remove(number)
                self._choose()

    def _choose(self) -> None:
        if self._next is None and self._running and self._waiting == self._running:
            numbers, self._numbers = self._numbers, {}  # the look takes no turn
            self._look()
            self._numbers = numbers
            self._next = self._draw.choice(sorted(self._waiting))
            self._changed.notify_all()


def on_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has threads take turns before each request to a store, too."""
    real = object_stores.store_for

    def store_for(path: str) -> object_stores.Store:
        for turns in _taken:
            turns.step()
        return real(path)

    monkeypatch.setattr(object_stores, "store_for", store_for)


def _hook(event: str, arguments: tuple) -> None:
    if _taken and event in _ARGUMENT:
        path = arguments[_ARGUMENT[event]]
        if isinstance(path, str):
            for turns in _taken:
                turns.step(path)


sys.addaudithook(_hook)

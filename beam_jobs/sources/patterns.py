"""Patterns of paths: `*`, `?` and `[ab]` within a name, `**` for any depth, `{a,b}` and `{00..12}` for alternatives."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from beam_jobs.sources.containers import braced
from beam_jobs.sources.hidden import is_hidden

State = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Pattern:
    """A pattern of paths below a directory, followed one name at a time.

    On the way down a state says how far each alternative has been matched; a tree is then walked once, and only where a
    match can still lie. Hidden names match only a part that begins with a dot, too.

    Attributes:
      alternatives: the names of each, in order.
    """

    alternatives: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Reads a pattern relative to the directory; one that ends in a slash or `**` means all files there.

        Raises:
          SourceError: the braces stand for too many.
        """
        return cls(tuple(_parts(alternative) for alternative in braced(text)))

    def start(self) -> State:
        """Returns the state in the directory itself."""
        return self._with_depths({(which, 0) for which in range(len(self.alternatives))})

    def enter(self, state: State, folder: str) -> State:
        """Returns the state in a folder of a directory; an empty one when nothing below can match."""
        reached = set()
        for which, index in state:
            part = self.alternatives[which][index]
            if part == "**":
                if not is_hidden(folder):
                    reached.add((which, index))
            elif index + 1 < len(self.alternatives[which]) and _fits(folder, part):
                reached.add((which, index + 1))
        return self._with_depths(reached)

    def holds(self, state: State, name: str) -> bool:
        """Returns whether a file of a directory matches."""
        for which, index in state:
            parts = self.alternatives[which]
            if index + 1 == len(parts) and _fits(name, parts[index]):
                return True
        return False

    def matches(self, folders: list[str], name: str) -> bool:
        """Returns whether a file at the end of a path matches."""
        state = self.start()
        for folder in folders:
            state = self.enter(state, folder)
            if not state:
                return False
        return self.holds(state, name)

    def hides(self, state: State, name: str, *, folder: bool) -> bool:
        """Returns whether a name of a directory would match, or a folder be entered, were it not hidden."""
        for which, index in state if is_hidden(name) else ():
            part, is_last = self.alternatives[which][index], index + 1 == len(self.alternatives[which])
            if (folder and part == "**") or (folder != is_last and _matches(name, part)):
                return True
        return False

    def hidden_part(self, folders: list[str], name: str) -> str:
        """Returns the start of a path up to the hidden name without which it might match, a folder with `/`.

        Empty for a path that matches, or that does not for another reason.
        """
        state = self.start()
        for depth, folder in enumerate(folders, 1):
            inside = self.enter(state, folder)
            if not inside:
                return "/".join([*folders[:depth], ""]) if self.hides(state, folder, folder=True) else ""
            state = inside
        shown = self.holds(state, name) or not self.hides(state, name, folder=False)
        return "" if shown else "/".join([*folders, name])

    def _with_depths(self, state: set[tuple[int, int]]) -> State:
        """Adds what is reached where `**` stands for no folder at all; `**` is never the last part."""
        last = state
        while last := {(which, index + 1) for which, index in last if self.alternatives[which][index] == "**"}:
            state |= last
        return frozenset(state)


def _parts(text: str) -> tuple[str, ...]:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.endswith("/") or not parts or parts[-1] == "**":
        parts.append("*")
    return tuple(parts)


def _fits(name: str, part: str) -> bool:
    return _matches(name, part) and (not is_hidden(name) or part.startswith("."))


def _matches(name: str, part: str) -> bool:
    return part == "*" or bool(_compiled(part)(name))


@functools.lru_cache(maxsize=4096)
def _compiled(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match


EVERYTHING = Pattern((("**", "*"),))

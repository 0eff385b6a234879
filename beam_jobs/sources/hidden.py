"""Hidden names: what file managers, archivers and version control leave behind. Passed over, but counted and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from beam_jobs.sources.base import printable

_LITTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # left by file managers and archivers, never data
_EXAMPLES = 5

OnHidden = Callable[[str], None]  # takes the path of a hidden name below the base of its source; a folder ends in `/`


def is_hidden(name: str) -> bool:
    """Returns whether a file or directory is passed over unless it is asked for by name."""
    return name.startswith(".") or name in _LITTER


def hidden_part(names: Sequence[str]) -> str:
    """Returns the start of a path up to its first hidden name, a folder with `/`; empty when it has none.

    Args:
      names: of the folders of the path, then of the file.
    """
    for depth, name in enumerate(names, 1):
        if is_hidden(name):
            return "/".join(names[:depth]) + "/" * (depth < len(names))
    return ""


def ignore(path: str) -> None:
    """Takes a hidden name that is of no interest."""


class HiddenNames:
    """Counts hidden names; a folder counts once, whatever it holds.

    Attributes:
      count: of different folders, and of files outside of them.
      examples: the first paths, one for each last name such as `.DS_Store`; at most five.
    """

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._folders: set[int] = set()

    def add(self, path: str) -> None:
        """Takes a path, of a folder as often as there are files in it."""
        if path.endswith("/"):
            if hash(path) in self._folders:  # a few bytes each, where archives may have any number of them
                return
            self._folders.add(hash(path))
        self.count += 1
        shown = printable(path)
        if len(self.examples) < _EXAMPLES and _last(shown) not in map(_last, self.examples):
            self.examples.append(shown)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

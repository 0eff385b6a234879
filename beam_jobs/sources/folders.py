"""Class folders: `ROOT/CLASS/**/image`. The first folder below the root is the class, the relative path the key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from beam_jobs.errors import SourceError
from beam_jobs.sources.local import leaves, printable, reference
from beam_jobs.types import ImageRef, Reject

_LITTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # left by file managers and archivers, never data


@dataclass(frozen=True)
class ClassFolders:
    """A directory tree, walked in sorted order, one directory in memory at a time.

    Hidden files are passed over; every other file is a reference or a reject. Links are followed as long as they stay
    inside the root, and a directory is entered once however many links lead to it.
    """

    root: str

    @property
    def base(self) -> str:
        """Directory that relative uris start from."""
        return self.root

    def check(self) -> None:
        """Raises `SourceError` unless there is at least one class folder with a file in it, and each can be entered."""
        try:
            entries = list(os.scandir(self.root))
        except OSError as error:
            raise SourceError(f"{self.root} cannot be read: {os.strerror(error.errno or 0)}") from error
        classes = [entry for entry in entries if entry.is_dir() and not _is_hidden(entry.name)]
        if not classes:
            found = "no visible folder" if entries else "nothing"
            raise SourceError(f"{self.root} holds {found}; it must hold one folder a class, with the images in them")
        root = os.path.realpath(self.root)
        for entry in classes:
            _check_enterable(entry.path, root)
        if not any(isinstance(entry, ImageRef) for entry in self.entries()):
            raise SourceError(f"{self.root} has {len(classes)} class folders and no file in any; put the images there")

    def entries(self) -> Iterator[ImageRef | Reject]:
        """Yields a reference or a reject a file.

        Raises:
          SourceError: a directory cannot be entered.
        """
        root = os.path.realpath(self.root)
        yield from self._walk(root, "", root, set())

    def _walk(self, directory: str, below: str, root: str, seen: set[tuple[int, int]]) -> Iterator[ImageRef | Reject]:
        _check_enterable(directory, root)
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in seen:
            return  # a link leads back here: the images are already in
        seen.add((status.st_dev, status.st_ino))
        for name in sorted(os.listdir(directory)):
            if not _is_hidden(name):
                yield from self._visit(os.path.join(directory, name), below + name, root, seen)

    def _visit(self, path: str, key: str, root: str, seen: set[tuple[int, int]]) -> Iterator[ImageRef | Reject]:
        if not os.path.isdir(path):
            label, separator, _ = key.partition("/")
            # The uri is relative, so that a dataset does not depend on, or tell, where the source lay.
            yield reference(path, ImageRef(key=key, uri=key, label=label if separator else ""), root)
        else:
            yield from self._walk(path, key + "/", root, seen)


def _check_enterable(directory: str, root: str) -> None:
    """Raises `SourceError` for a directory whose images would all be missing: one reject could stand for a class."""
    if leaves(directory, root):
        raise SourceError(f"{printable(directory)} is a link that leads out of the source; put the images inside it")
    try:
        os.scandir(directory).close()
    except OSError as error:
        raise SourceError(f"{printable(directory)} cannot be read: {os.strerror(error.errno or 0)}") from error


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _LITTER

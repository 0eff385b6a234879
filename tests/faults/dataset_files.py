"""The files of a dataset, to be broken one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beam_jobs.dataset import tfrecord


class Files:
    """A dataset whose files are changed and put back.

    Attributes:
      root: its directory.
      names: of all files, relative to it, sorted.
      starts: shard -> where its records start, and its size.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._whole = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        self.names = sorted(self._whole)
        self.shards = [name for name in self.names if name.endswith(".tfrecord")]
        self.starts = {name: [*self._offsets(name), len(self._whole[name])] for name in self.shards}

    def __getitem__(self, name: str) -> bytes:
        return self._whole[name]

    def change(self, name: str, data: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(data)

    def restore(self) -> None:
        for path in [path for path in self.root.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.root)) not in self._whole:
                path.unlink()
        for folder in [path for path in self.root.iterdir() if path.is_dir() and not any(path.iterdir())]:
            folder.rmdir()
        for name, data in self._whole.items():
            self.change(name, data)

    def record_at(self, name: str, position: int) -> int | None:
        """Returns where the record starts that holds a byte; None when the file is no shard."""
        starts = self.starts.get(name)
        return starts and max(start for start in starts[:-1] if start <= position)

    def _offsets(self, name: str) -> Iterator[int]:
        with (self.root / name).open("rb") as stream:
            yield from (offset for offset, _ in tfrecord.read_records(stream, name))

"""What an ingest left behind, as the rows here look at it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common.settings import from_mapping
from beam_jobs.dataset import manifest, record, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import FeedlineError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from tests import image_table
from tests.settings.table import nested_of


@contextlib.contextmanager
def databases_opened() -> Iterator[list[tuple[str, str]]]:
    """The memory limits and the directories of the databases that are opened within the block."""
    found: list[tuple[str, str]] = []
    connect = duckdb.connect

    def note(*arguments: Any, **options: Any) -> Any:
        config = options["config"]
        found.append((config["memory_limit"], str(Path(config["temp_directory"]).parent.parent)))
        return connect(*arguments, **options)

    duckdb.connect = note
    try:
        yield found
    finally:
        duckdb.connect = connect


@contextlib.contextmanager
def threads_started() -> Iterator[list[str]]:
    """The names of the threads that are started within the block."""
    names: list[str] = []

    def note(*_: Any) -> None:
        names.append(threading.current_thread().name)
        sys.setprofile(None)  # once a thread

    threading.setprofile(note)
    try:
        yield names
    finally:
        threading.setprofile(None)


@dataclasses.dataclass(frozen=True)
class Published:
    """One ingest.

    Attributes:
      path: of the dataset.
      error: what ended the ingest; empty when it published.
      buckets: units of work that were examined.
      threads: how many its pools for images started.
      databases: memory limits of the databases of its plans, and directories of what exceeds them.
      at_once: most requests at a time that a web server got from it.
      lines: what it reported.
    """

    path: Path
    error: str
    buckets: int
    threads: int
    databases: list[tuple[str, str]]
    at_once: int
    lines: list[str]

    @cached_property
    def manifest(self) -> Manifest:
        return manifest.load(str(self.path))

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Key -> row of the image table."""
        read = image_table.read(self.path).to_pylist()
        return {row["key"]: row for row in read}

    @cached_property
    def rejects(self) -> dict[str, str]:
        """Key -> reason and detail of `rejects.parquet`."""
        read = schemas.read(storage.join(str(self.path), manifest.REJECTS_NAME)).to_pylist()
        return {row["key"]: f"{row['reason']}: {row['detail']}" for row in read}

    @cached_property
    def records(self) -> dict[str, dict[str, list[Any]]]:
        """Key -> features of the record in the shards, in their order."""
        paths = [path for split in self.manifest.splits for path in self.manifest.shard_paths(str(self.path), split)]
        decoded = map(record.decode, tf.data.TFRecordDataset(paths).as_numpy_iterator())
        return {values[record.FILENAME][0].decode(): values for values in decoded}

    @property
    def splits(self) -> dict[str, str]:
        """Key -> split."""
        return {key: row["split"] for key, row in self.rows.items()}

    def said(self, word: str) -> list[str]:
        """Lines of the report that begin with a word."""
        return [line for line in self.lines if line.startswith(word)]

    @property
    def shards(self) -> dict[str, int]:
        """Split -> number of shards."""
        return {name: len(split.shards) for name, split in self.manifest.splits.items()}

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> rejects."""
        return dict(self.manifest.counts.rejects)

    def feature(self, name: str) -> dict[str, list[Any]]:
        """Key -> values of a feature; empty where a record lacks it."""
        return {key: values.get(name, []) for key, values in self.records.items()}

    def count(self, split: str) -> Counter[str]:
        """Class -> records of a split."""
        return Counter(self.manifest.splits[split].classes)


class Ingests:
    """Ingests by their settings, each once, into folders of `root`; `most_at_once` reads and resets a web server."""

    def __init__(self, root: Path, most_at_once: Callable[[], int]) -> None:
        self._root = root
        self._most_at_once = most_at_once
        self._made: dict[str, Published] = {}

    def __call__(self, settings: Mapping[str, Any]) -> Published:
        name = json.dumps(settings, sort_keys=True)
        if name not in self._made:
            self._made[name] = self._ingest(settings, self._root / str(len(self._made)))
        return self._made[name]

    def _ingest(self, settings: Mapping[str, Any], out: Path) -> Published:
        options = from_mapping(IngestOptions, {"out": str(out), **nested_of(settings)["ingest"]}, "ingest")
        lines: list[str] = []
        buckets: list[int] = []

        def report(line: str) -> None:
            lines.append(line)
            if line.startswith("examined"):
                buckets.append(len(list(out.glob("_work/**/facts-*.parquet"))))

        error = ""
        with threads_started() as started, databases_opened() as databases:
            try:
                run(options, report=report)
            except FeedlineError as failure:
                error = type(failure).__name__
        return Published(
            path=out,
            error=error,
            buckets=sum(buckets),
            threads=sum(name.startswith("feedline_") for name in started),
            databases=databases,
            at_once=self._most_at_once(),
            lines=lines,
        )

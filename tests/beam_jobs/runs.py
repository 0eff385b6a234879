"""Ways to run an ingest that a test can look into or break off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apache_beam as beam

from beam_jobs.ingest import local_pipeline


class Recorder:
    """Makes local pipelines and keeps them; `before_write` is called when the second one is made."""

    def __init__(self, before_write: Callable[[], object] = lambda: None) -> None:
        self._before_write = before_write
        self.pipelines: list[beam.Pipeline] = []

    def __call__(self) -> beam.Pipeline:
        if self.pipelines:
            self._before_write()
        self.pipelines.append(local_pipeline())
        return self.pipelines[-1]

    def counters(self) -> dict[str, int]:
        found = [c for p in self.pipelines for c in p.result.metrics().query()["counters"]]
        return {c.key.metric.name: c.committed for c in found if c.key.metric.namespace.endswith(("Buckets", "Shards"))}


class KilledAfterWriting:
    """Makes local pipelines; the process dies, so to speak, when the second one is through."""

    def __init__(self) -> None:
        self._made = 0

    def __call__(self) -> beam.Pipeline:
        self._made += 1
        pipeline = local_pipeline()
        return _Dying(pipeline) if self._made == 2 else pipeline


class _Dying:
    def __init__(self, pipeline: beam.Pipeline) -> None:
        self._pipeline = pipeline

    def __enter__(self) -> beam.Pipeline:
        return self._pipeline.__enter__()

    def __exit__(self, *error: object) -> None:
        self._pipeline.__exit__(*error)
        raise KeyboardInterrupt


def files_under(path: Path) -> dict[str, bytes]:
    """Returns relative path -> content of every file."""
    return {str(found.relative_to(path)): found.read_bytes() for found in sorted(path.rglob("*")) if found.is_file()}


def shards_under(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_under(path).items() if name.endswith(".tfrecord")}

"""Ways to run an ingest that a test can look into or break off."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import apache_beam as beam

from beam_jobs import storage
from beam_jobs.dataset import record, tfrecord
from beam_jobs.runners.beam_job import local_pipeline


class Recorder:
    """Makes local pipelines, and keeps them and their results; runs functions before the second and after each."""

    def __init__(
        self, before_write: Callable[[], object] = lambda: None, after: Mapping[int, Callable[[], object]] | None = None
    ) -> None:
        self._before_write, self._after = before_write, after or {}
        self.pipelines: list[beam.Pipeline] = []
        self.results: list = []

    def __call__(self) -> beam.Pipeline:
        if len(self.pipelines) == 1:
            self._before_write()
        pipeline = local_pipeline()
        self.pipelines.append(_wrap(pipeline, lambda: self._finish(pipeline.result)))
        return pipeline

    def _finish(self, result: object) -> None:
        self.results.append(result)
        self._after.get(len(self.pipelines), lambda: None)()

    def counters(self) -> dict[str, int]:
        found = [c for result in self.results for c in result.metrics().query()["counters"]]
        return {c.key.metric.name: c.committed for c in found if c.key.metric.namespace.endswith(("Buckets", "Shards"))}


class KilledAfterWriting:
    """Makes local pipelines; the process dies, so to speak, when the second one is through."""

    def __init__(self) -> None:
        self._made = 0

    def __call__(self) -> beam.Pipeline:
        self._made += 1
        return _wrap(local_pipeline(), _die) if self._made == 2 else local_pipeline()


def _wrap(pipeline: beam.Pipeline, after: Callable[[], object]) -> beam.Pipeline:
    run = pipeline.run

    def run_then() -> object:
        pipeline.result = run()
        after()
        return pipeline.result

    pipeline.run = run_then
    return pipeline


def _die() -> None:
    raise KeyboardInterrupt


def files_under(path: Path) -> dict[str, bytes]:
    """Returns relative path -> content of every file."""
    return {str(found.relative_to(path)): found.read_bytes() for found in sorted(path.rglob("*")) if found.is_file()}


def shards_under(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_under(path).items() if name.endswith(".tfrecord")}


def remote_shards(out: str) -> dict[str, bytes]:
    """What `shards_under` returns, of a dataset in an object store."""
    names = (name for name, *_ in storage.list_objects(out) if name.endswith(".tfrecord"))
    return {name: storage.read_bytes(f"{out}/{name}") for name in names}


def records_under(path: str | Path) -> dict[str, dict[str, list]]:
    """Returns key -> features of every record, read straight from the shards."""
    payloads = [
        payload
        for name, data in shards_under(Path(path)).items()
        for _, payload in tfrecord.read_records(io.BytesIO(data), name)
    ]
    found = {values[record.FILENAME][0].decode(): values for values in map(record.decode, payloads)}
    assert len(found) == len(payloads), "two records have the same key"
    return found

"""ImageExampleGen in pipelines that really run: what comes from the cache, and what becomes of an adopted directory."""

# No `from __future__ import annotations`: TFX reads those of its components as they stand.
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tfx import v1 as tfx
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils, standard_artifacts

from beam_jobs import ingest
from beam_jobs.dataset import manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import CorruptDataset, DataError
from beam_jobs.options import IngestOptions
from components.image_example_gen.component import Executor, ImageExampleGen
from pipeline.runs.history import newest_run, open_store
from tests.beam_jobs import kill
from tests.components.conftest import run_pipeline
from tests.make_images import jpeg

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Failed(DataError):
    """What the failing parts of these pipelines raise."""


class FailingExecutor(Executor):
    """Does everything and fails all the same."""

    def Do(self, *args, **kwargs) -> None:
        super().Do(*args, **kwargs)
        raise Failed("after the work")


class FailingExampleGen(ImageExampleGen):
    """An ImageExampleGen that fails half way."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(FailingExecutor)


@component
def FailingStep(  # noqa: N802 - components are called like classes
    examples: tfx.dsl.components.InputArtifact[standard_artifacts.Examples],
) -> None:
    """Fails downstream of the examples."""
    raise Failed(f"downstream of {examples.uri}")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of one component, and sometimes a failing one behind it, in a root of its own."""

    root: Path

    def run(self, example_gen: ImageExampleGen, then: Callable | None = None) -> str:
        """Runs it and returns the state of ImageExampleGen: `complete` or `cached`."""
        more = [then(examples=example_gen.outputs["examples"])] if then else []
        return run_pipeline(self.root, example_gen.with_id("ImageExampleGen"), *more)["ImageExampleGen"].state

    def output(self) -> str:
        """Returns the directory of the examples of the newest run, from the cache or not."""
        return newest_run(self._store())["ImageExampleGen"].outputs["examples"]

    def artifacts(self) -> list[standard_artifacts.Examples]:
        """Returns every `Examples` that was ever published, oldest first."""
        store = self._store()
        kind = store.get_artifact_type("Examples")
        found = sorted(store.get_artifacts_by_type("Examples"), key=lambda artifact: artifact.id)
        return [artifact_utils.deserialize_artifact(kind, artifact) for artifact in found]

    def _store(self):
        return open_store(str(self.root / "metadata.sqlite"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "root").mkdir()
    return Pipeline(tmp_path / "root")


def write_images(directory: Path, seed: int = 0) -> Path:
    for label in ("cat", "dog"):
        (directory / label).mkdir(parents=True)
        for number in range(4):
            seed += 1
            (directory / label / f"{number}.jpg").write_bytes(jpeg(seed, 16, 16))
    return directory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos")


def read_options(source: Path | str, out: Path | str = "", **fields) -> IngestOptions:
    given = {"splits": {"train": 0.5, "eval": 0.5}, "seed": 3, "shards": 1, "threads": 1, **fields}
    return IngestOptions(source=str(source), out=str(out), **given)


def ingesting(source: Path | str, **pins) -> ImageExampleGen:
    return ImageExampleGen(read_options(source), **pins)


def make_dataset(source: Path, out: Path, **fields) -> str:
    """Ingests into `out` and returns the digest."""
    return ingest.run(read_options(source, out, **fields)).digest


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns path -> inode, time of writing and bytes of every file."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_only_what_changes_the_images_misses_the_cache(pipeline, source):
    path = source / "cat" / "0.jpg"
    path.write_bytes(path.read_bytes().ljust(2000, b"\0"))
    assert pipeline.run(ingesting(source)) == "complete"

    for touched in source.rglob("*"):
        os.utime(touched, (1, 1))
    assert pipeline.run(ingesting(source)) == "cached"

    status = path.stat()
    path.write_bytes(jpeg(99, 16, 16).ljust(2000, b"\0"))  # bytes behind the end of a JPEG are no part of the picture
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert pipeline.run(ingesting(source)) == "complete"

    path.rename(source / "dog" / "9.jpg")
    assert pipeline.run(ingesting(source)) == "complete"
    before, after = (manifest.load(artifact.uri) for artifact in pipeline.artifacts()[-2:])
    assert [sum(info.classes["dog"] for info in made.splits.values()) for made in (before, after)] == [4, 5]

    made = pipeline.artifacts()
    assert len({artifact.get_string_custom_property("input_fingerprint") for artifact in made}) == len(made) == 3
    assert {(artifact.span, artifact.version, artifact.is_external) for artifact in made} == {(0, 0, False)}


def test_an_unchanged_source_is_not_read_for_the_cache_key(pipeline, source):
    time.sleep(2.1)  # a younger file is read again
    opened = []
    kill.on_each_moment((str(source),), opened.append)
    assert pipeline.run(ingesting(source)) == "complete"
    assert len(opened) >= 8
    opened.clear()
    assert pipeline.run(ingesting(source)) == "cached"
    assert opened == []


def test_a_new_span_misses_the_cache_and_the_old_one_keeps_its_artifact(pipeline, tmp_path):
    pattern = f"{tmp_path}/photos/{{SPAN}}/v{{VERSION}}"
    write_images(tmp_path / "photos" / "01" / "v1")
    assert pipeline.run(ingesting(pattern)) == "complete"
    assert pipeline.run(ingesting(pattern)) == "cached"
    write_images(tmp_path / "photos" / "02" / "v1", seed=50)
    assert pipeline.run(ingesting(pattern)) == "complete"
    # The same images again, as another edition: a version of its own all the same.
    shutil.copytree(tmp_path / "photos" / "02" / "v1", tmp_path / "photos" / "02" / "v2")
    assert pipeline.run(ingesting(pattern)) == "complete"
    made = pipeline.artifacts()
    for pins, artifact in zip([{"span": 1}, {"span": 2, "version": 1}, {"span": 2}], made, strict=True):
        assert pipeline.run(ingesting(pattern, **pins)) == "cached"
        assert pipeline.output() == artifact.uri
    assert len(pipeline.artifacts()) == 3
    assert [(artifact.span, artifact.version) for artifact in made] == [(1, 1), (2, 1), (2, 2)]
    assert [manifest.load(artifact.uri).source for artifact in made] == ["v1", "v1", "v2"]
    assert [verify(artifact.uri).problems for artifact in made] == [[], [], []]
    digests = [artifact.get_string_custom_property("dataset_digest") for artifact in made]
    assert digests == [manifest.load(artifact.uri).digest for artifact in made]
    assert digests[0] != digests[1] == digests[2]


def test_a_dataset_is_adopted_where_it_lies_and_found_again_by_its_content(pipeline, source, tmp_path):
    out = tmp_path / "dataset"
    first = make_dataset(source, out)
    before = contents(out)
    assert pipeline.run(ImageExampleGen(dataset=str(out))) == "complete"
    assert pipeline.run(ImageExampleGen(dataset=str(out))) == "cached"
    assert contents(out) == before
    (artifact,) = pipeline.artifacts()
    assert artifact.uri == str(out)
    assert artifact_utils.decode_split_names(artifact.split_names) == ["train", "eval"]
    assert (artifact.span, artifact.get_string_custom_property("dataset_digest")) == (0, first)
    assert not list((pipeline.root / "artifacts").rglob("*.tfrecord"))

    for path in out.rglob("*"):
        os.utime(path, (1, 1))
    assert pipeline.run(ImageExampleGen(dataset=str(out))) == "cached"

    (source / "cat" / "0.jpg").rename(source / "dog" / "9.jpg")
    second = make_dataset(source, out, overwrite=True)
    assert pipeline.run(ImageExampleGen(dataset=str(out))) == "complete"
    digests = [artifact.get_string_custom_property("dataset_digest") for artifact in pipeline.artifacts()]
    assert digests == [first, second]
    assert first != second


def test_nothing_that_fails_removes_an_adopted_dataset(pipeline, source, tmp_path):
    out = tmp_path / "dataset"
    make_dataset(source, out)
    before = contents(out)
    with pytest.raises(Failed, match="after the work"):
        pipeline.run(FailingExampleGen(dataset=str(out)))
    assert contents(out) == before
    for _ in range(2):  # once fresh, once from the cache
        with pytest.raises(Failed, match=f"downstream of {out}"):
            pipeline.run(ImageExampleGen(dataset=str(out)), then=FailingStep)
        assert contents(out) == before
    assert pipeline.run(ImageExampleGen(dataset=str(out))) == "cached"
    assert len(pipeline.artifacts()) == 1  # what failed published nothing
    shard = next(out.glob("Split-eval/*"))
    shard.write_bytes(b"")
    with pytest.raises(CorruptDataset, match="has 0 bytes"):
        pipeline.run(ImageExampleGen(dataset=str(out)))
    assert contents(out).keys() == before.keys()


def test_an_ingest_that_fails_leaves_nothing_and_the_next_one_makes_the_same(pipeline, source):
    with pytest.raises(Failed, match="after the work"):
        pipeline.run(FailingExampleGen(read_options(source)))
    assert not list((pipeline.root / "artifacts").rglob("*.tfrecord"))
    assert pipeline.run(ingesting(source)) == "complete"
    (artifact,) = pipeline.artifacts()
    assert verify(artifact.uri).problems == []
    assert not list((pipeline.root / "artifacts").rglob(".work-*"))

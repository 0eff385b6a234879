"""Stores that refuse, fail or break off while an ingest reads from them: nothing is lost, and little is read twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.errors import Unreadable
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from beam_jobs.stages import resume
from beam_jobs.storage.object_stores import gcs
from tests.beam_jobs.runs import Recorder, files_under
from tests.make_images import class_folders
from tests.stores.emulators import Bucket
from tests.stores.tap import CUT, Asked

pytestmark = pytest.mark.stores

VICTIM, NEIGHBOUR = "china/003.jpg", "china/002.png"  # of one unit of work
KEYS = [f"{label}/{name}" for label in ("china", "flower") for name in ("000.jpg", "001.jpg", "002.png", "003.jpg")]
BUCKET = 2  # images of a unit of work


@pytest.fixture
def source(bucket: Bucket, tmp_path: Path) -> str:
    """Eight images in a store."""
    return bucket.put_tree("photos", class_folders(tmp_path / "photos", per_class=4))


@pytest.fixture
def options(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IngestOptions:
    from google.cloud.storage.retry import DEFAULT_RETRY

    short = DEFAULT_RETRY.with_timeout(0.5)  # the store stays down for longer than the two minutes
    monkeypatch.setattr(gcs, "_RETRY", short)
    monkeypatch.setattr(resume, "WAITS_S", (0.0, 0.0))
    return IngestOptions(source=source, out=str(tmp_path / "out"), splits={"all": 1}, bucket_images=BUCKET)


@pytest.fixture
def plain(source: str, tmp_path: Path) -> dict[str, bytes]:
    """The dataset, from a store that always answers."""
    run(IngestOptions(source=source, out=str(tmp_path / "plain"), splits={"all": 1}, bucket_images=BUCKET))
    return files_under(tmp_path / "plain")


def refusing(answer: int) -> Callable[[Asked], int]:
    """Answers so to whoever reads one of the images."""
    return lambda asked: answer if asked.method == "GET" and VICTIM in asked.path else 0


def reads(bucket: Bucket) -> Counter[str]:
    """Image -> how often its bytes were asked for."""
    bodies = (asked.path for asked in bucket.tap.asked if asked.range or "alt=media" in asked.path)
    return Counter(path.partition("?")[0].rpartition("photos/")[2] for path in bodies)


@pytest.mark.parametrize("answer", [503, CUT])
def test_what_a_store_refuses_at_first_is_in(bucket, options, plain, answer):
    def say(line: str) -> None:
        if line.startswith("retrying"):
            bucket.tap.refuse = lambda _: 0

    bucket.tap.asked.clear()
    bucket.tap.refuse = refusing(answer)
    run(options, Recorder(), say)
    assert files_under(Path(options.out)) == plain
    asked = reads(bucket)
    assert asked.pop(VICTIM) > 2
    assert asked == {key: 3 if key == NEIGHBOUR else 2 for key in KEYS if key != VICTIM}  # once to be written


@pytest.mark.parametrize(("answer", "cause"), [(403, "AccessDenied"), (CUT, "")])
def test_what_a_store_goes_on_refusing_is_named_and_the_next_run_reads_it(bucket, options, plain, answer, cause):
    bucket.tap.refuse = refusing(answer)
    with pytest.raises(Unreadable, match=rf"^1 file could not be read or written in 3 passes: {VICTIM} \(.*{cause}"):
        run(options)
    assert not manifest.is_published(options.out)
    bucket.tap.refuse = lambda _: 0
    bucket.tap.asked.clear()
    run(options)
    assert files_under(Path(options.out)) == plain
    assert reads(bucket) == {key: 2 if key in (VICTIM, NEIGHBOUR) else 1 for key in KEYS}

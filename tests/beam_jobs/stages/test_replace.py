from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from beam_jobs.dataset import manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import OptionError, TooManyRejects
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.stages.replace import replace_dataset
from tests.beam_jobs import kill
from tests.make_images import class_folders, jpeg


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos", per_class=3)


@pytest.fixture
def out(tmp_path, photos):
    """A published dataset of six photographs."""
    run(make_options(photos, tmp_path / "out", overwrite=False))
    return tmp_path / "out"


def make_options(photos, out, overwrite=True):
    return IngestOptions(source=str(photos), out=str(out), splits={"all": 1}, overwrite=overwrite)


def names(folder):
    return sorted(name for name in os.listdir(folder) if "out" in name)


def test_the_old_generation_is_there_until_the_new_one_is_whole(photos, out, tmp_path):
    before = manifest.load(str(out))
    (photos / "china" / "new.jpg").write_bytes(jpeg(99))
    seen = []

    def watching():
        seen.append(manifest.load(str(out)).digest)
        return local_pipeline()

    after = run(make_options(photos, out), make_pipeline=watching)
    assert seen == [before.digest, before.digest]
    assert manifest.load(str(out)) == after
    assert (before.counts.written, after.counts.written) == (6, 7)
    assert verify(str(out)).problems == []
    assert names(tmp_path) == ["out"]


def test_a_new_generation_that_is_removed_leaves_the_old_one_where_it_was(tmp_path):
    place = tmp_path / "out"
    following = tmp_path / ".out.feedline-next"

    def build(there: str) -> None:
        os.mkdir(there)
        Path(there, manifest.MANIFEST_NAME).write_text(f"of {os.path.basename(there)}")

    def remove(path: str) -> None:
        if path == str(place):  # about to take its place
            shutil.rmtree(following, ignore_errors=True)

    build(str(place))
    kill.on_each_moment((str(place),), remove)
    with pytest.raises(FileNotFoundError):
        replace_dataset(str(place), build)
    assert (place / manifest.MANIFEST_NAME).read_text() == "of out"
    assert os.listdir(tmp_path) == ["out"]


def test_without_a_dataset_to_replace_one_is_made(photos, tmp_path):
    assert run(make_options(photos, tmp_path / "out")).counts.written == 6
    assert names(tmp_path) == ["out"]


def test_what_is_not_a_dataset_is_never_replaced(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(OptionError, match="holds 'thesis.tex' and is not an unfinished"):
        run(make_options(photos, tmp_path / "out"))
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("died", ["between the renames", "after the renames", "before the renames"])
def test_a_run_that_died_while_swapping_is_made_good(photos, out, tmp_path, died):
    if died == "between the renames":
        out.rename(tmp_path / ".out.feedline-old")
    elif died == "after the renames":
        run(make_options(photos, tmp_path / ".out.feedline-old", overwrite=False))
    else:
        run(make_options(photos, tmp_path / ".out.feedline-next", overwrite=False))
    (photos / "flower" / "new.jpg").write_bytes(jpeg(98))
    assert run(make_options(photos, out)).counts.written == 7
    assert manifest.load(str(out)).counts.written == 7
    assert names(tmp_path) == ["out"]


def test_a_generation_that_was_between_the_renames_is_back_before_anything_else(photos, out, tmp_path):
    before = manifest.load(str(out))
    out.rename(tmp_path / ".out.feedline-old")
    (photos / "china" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(TooManyRejects):
        run(make_options(photos, out))
    assert manifest.load(str(out)) == before
    assert verify(str(out)).problems == []


def test_a_backup_beside_the_dataset_is_left_alone(photos, out, tmp_path):
    name = "out.old"
    run(make_options(photos, tmp_path / name, overwrite=False))
    before = manifest.load(str(tmp_path / name))
    (photos / "china" / "new.jpg").write_bytes(jpeg(97))
    run(make_options(photos, out))
    assert manifest.load(str(tmp_path / name)) == before
    assert verify(str(tmp_path / name)).problems == []


def test_an_object_store_cannot_rename(photos):
    with pytest.raises(OptionError, match="gs://bucket/out cannot be replaced by rename"):
        run(make_options(photos, "gs://bucket/out"))

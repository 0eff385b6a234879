"""A place as the page has it: a dataset of the photographs, and the exports that the page makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import image_table
from tests.interop import page


@pytest.fixture(scope="session")
def place(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `dataset`, splits train and eval of two shards each, in which every command of the page ran."""
    from pipeline.cli import execute

    folder = tmp_path_factory.mktemp("place")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert execute(["ingest", str(photos), *"--out dataset --splits train=0.7,eval=0.3 --shards 2".split()]) == 0
        for words in page.commands():
            assert execute(words) == 0, words
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def rows(place: Path) -> dict[str, dict]:
    """Key -> row of the image table: what every client must come to."""
    return {row["key"]: row for row in image_table.read(place / "dataset").to_pylist()}

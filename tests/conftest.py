"""Fixtures in two groups: a source of photographs, and the dataset made of it. Both are real and small."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before anything imports TensorFlow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, or one worker would wait at the end for the other one's."""
    longest = {item.path for item in items if item.get_closest_marker("e2e")}
    items.sort(key=lambda item: item.path not in longest)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Puts back the handlers that a command called in this process leaves, or the next test would find them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders `china` and `flower`, 12 JPEG and PNG photographs each, 40-90 pixels. Read only."""
    from tests.make_images import class_folders

    return class_folders(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def _dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from beam_jobs.ingest import run
    from beam_jobs.options import IngestOptions

    out = tmp_path_factory.mktemp("dataset")
    options = IngestOptions(source=str(photos), out=str(out), splits={"train": 0.7, "eval": 0.3}, shards=2)
    run(options)
    return out


@pytest.fixture
def dataset(_dataset: Path, tmp_path: Path) -> Path:
    """A published dataset of `photos`: splits train and eval, two shards each. A copy of one's own."""
    return Path(shutil.copytree(_dataset, tmp_path / "dataset"))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that succeeds, and returns its output."""
    from pipeline.cli import execute

    def run(*arguments: object) -> str:
        code = execute([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that fails with a code, and returns the one line that it says."""
    from pipeline.cli import execute

    def run(*arguments: object, code: int = 2, printed: str = "") -> str:
        capsys.readouterr()
        ended = execute([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (ended, out, err.count("\n")) == (code, printed, 1), err
        return err.removesuffix("\n")

    return run


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a `feedline` that need not import anything; see `doc_warm`."""
    from tests import doc_warm

    with doc_warm.programs(tmp_path_factory.mktemp("warm")) as programs:
        yield programs

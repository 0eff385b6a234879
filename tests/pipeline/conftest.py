from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.locked import Locked, locked_directory


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def locked() -> Iterator[Locked]:
    with locked_directory("work") as found:
        yield found

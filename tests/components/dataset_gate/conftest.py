from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.components.dataset_gate.datasets import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """Datasets by name. Read only."""
    made = Library(tmp_path_factory.mktemp("gate"))
    with made.stack:
        yield made

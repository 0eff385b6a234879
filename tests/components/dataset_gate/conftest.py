from __future__ import annotations

import pytest

from tests.components.dataset_gate.datasets import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Datasets by name. Read only."""
    return Library(tmp_path_factory.mktemp("gate"))

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.locked import Locked, locked_directory


@pytest.fixture
def locked() -> Iterator[Locked]:
    with locked_directory("work") as found:
        yield found

from __future__ import annotations

import platform
from importlib import metadata

import pytest

from beam_jobs import stack


@pytest.fixture
def installed(monkeypatch) -> dict[str, str]:
    """Distribution -> version that this environment seems to have."""
    versions: dict[str, str] = {}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(stack.metadata, "version", version)
    return versions


@pytest.mark.parametrize(
    ("versions", "line"),
    [
        (
            {"tensorflow": "2.21.0", "tfx": "1.21.0", "apache-beam": "2.77.0"},
            "current stack: TensorFlow 2.21.0, TFX 1.21.0, Beam 2.77.0",
        ),
        ({"tensorflow": "2.16.2", "apache-beam": "2.74.0"}, "legacy stack: TensorFlow 2.16.2, no TFX, Beam 2.74.0"),
        ({}, "no stack: no TensorFlow, no TFX, no Beam"),
    ],
)
def test_one_line_says_which_stack_this_is_and_what_it_lacks(installed, versions, line):
    installed.update(versions)
    assert stack.summary() == f"{line}, Python {platform.python_version()}"

"""What counts as missing, and what as broken, when the parts for the tests on Flink are fetched."""

from __future__ import annotations

import pytest

from tests.engines import flink_parts
from tests.engines.flink_parts import Missing, made


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_a_command_makes_is_kept():
    made(flink_parts.cache() / "part", ["sh", "-c", "mkdir there; echo x > there/file"], "there")
    assert (flink_parts.cache() / "part" / "file").read_text() == "x\n"


@pytest.mark.parametrize(
    "command",
    [
        ["no-such-program"],
        ["sh", "-c", "echo '[ERROR] building'; echo 'Could not transfer artifact a:b:jar:1 from central'; exit 1"],
        ["sh", "-c", "echo 'error: Failed to fetch: https://there/simple/x/' >&2; exit 2"],
    ],
)
def test_a_missing_program_or_network_is_missing(command):
    with pytest.raises(Missing, match="no-such-program|Could not transfer|Failed to fetch"):
        made(flink_parts.cache() / "part", command, "there")


def test_anything_else_is_an_error():
    with pytest.raises(RuntimeError, match="failed: .ERROR. the POM is malformed"):
        made(flink_parts.cache() / "part", ["sh", "-c", "echo '[ERROR] the POM is malformed'; exit 1"], "there")
